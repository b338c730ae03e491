from http.server import *
class H(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_PATCH(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        body = f"{self.command} {self.path}".encode()
        self.send_response(207)
        self.send_header("X-Own", "1")
        self.send_header("X-Own", "2")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
ThreadingHTTPServer(("0.0.0.0", 8080), H).serve_forever()
