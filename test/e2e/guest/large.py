"""GET answers 48 MB of bytes that follow from their position; POST answers how many bytes came and their SHA-256."""
import hashlib, http.server, socketserver

PIECE = b"".join((at * at % 65521).to_bytes(4, "big") for at in range(262144))
PIECES = 48

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", str(len(PIECE) * PIECES))
        self.end_headers()
        for at in range(PIECES):
            self.wfile.write(PIECE[at:] + PIECE[:at])
    def do_POST(self):
        left, digest = int(self.headers["Content-Length"]), hashlib.sha256()
        total = left
        while left:
            piece = self.rfile.read(min(left, 1 << 20))
            left -= len(piece)
            digest.update(piece)
        text = f"{total} {digest.hexdigest()}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *_):
        pass

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64

Server(("0.0.0.0", 8090), Handler).serve_forever()
