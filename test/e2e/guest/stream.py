import threading
from http.server import *
released = threading.Event()
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()
    def start(self, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
    def do_GET(self):
        if self.path != "/events":
            released.set() if self.path == "/release" else None
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.start("text/event-stream")
        self.chunk(b"data: 1\n\n")
        released.wait()
        self.chunk(b"data: 2\n\n")
        self.chunk(b"")
    def do_POST(self):
        self.start("text/plain")
        while size := int(self.rfile.readline(), 16):
            self.chunk(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        self.chunk(b"")
ThreadingHTTPServer(("0.0.0.0", 8082), H).serve_forever()
