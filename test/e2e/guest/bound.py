"""Web servers on each address given as ADDRESS:PORT[=TEXT]; each answers its text, else its address."""
import http.server, socket, socketserver, sys, threading

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    allow_reuse_port = True
    def server_bind(self):
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        socketserver.TCPServer.server_bind(self)

for argument in sys.argv[1:]:
    where, _, text = argument.partition("=")
    address, _, port = where.rpartition(":")
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        said = (text or address).encode()
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.said)))
            self.end_headers()
            self.wfile.write(self.said)
        def log_message(self, *_):
            pass
    class Bound(Server):
        address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    threading.Thread(target=Bound((address, int(port)), Handler).serve_forever, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
