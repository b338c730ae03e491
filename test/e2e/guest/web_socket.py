import base64, hashlib, socketserver
class H(socketserver.StreamRequestHandler):
    def say(self, text):
        self.wfile.write(bytes([0x81, len(text)]) + text)
    def handle(self):
        key = None
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"sec-websocket-key":
                key = value.strip()
        if key is None:
            self.wfile.write(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
            return
        accept = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n")
        self.say(b"hello from inside")
        while True:
            first, length = self.rfile.read(2)
            assert first == 0x81 and length & 0x80
            mask = self.rfile.read(4)
            text = bytes(b ^ mask[i % 4] for i, b in enumerate(self.rfile.read(length & 0x7F)))
            if text == b"bye":
                return
            self.say(b"echo " + text)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("0.0.0.0", 8081), H).serve_forever()
