"""What every sandbox of the chaos run holds: bytes in memory and in a file, made from a seed, and how often it was written.

GET / tells what is there now; POST /SEED writes both anew.
"""

import hashlib
import http.server
import json
import os
import sys

BLOCKS = 4096
FILE = "/home/user/bytes"
build, port = sys.argv[1], int(sys.argv[2])


def bytes_of(kind, seed):
    return b"".join(hashlib.sha256(f"{kind}:{seed}:{at}".encode()).digest() for at in range(BLOCKS))


def write(seed):
    held["seed"] = seed
    held["memory"] = bytes_of("memory", seed)
    with open(FILE, "wb") as file:
        file.write(bytes_of("file", seed))
    held["writes"] += 1


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        write(self.path[1:])
        self.tell()

    def do_GET(self):
        self.tell()

    def tell(self):
        with open(FILE, "rb") as file:
            data = file.read()
        body = json.dumps(
            {
                "build": build,
                "seed": held["seed"],
                "writes": held["writes"],
                "memory": hashlib.sha256(held["memory"]).hexdigest(),
                "file": hashlib.sha256(data).hexdigest(),
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


held = {"writes": 0}
write("template")
server = http.server.ThreadingHTTPServer(("0.0.0.0", port), Handler)
open("/tmp/ready", "w").close()
# The ready command is asked as soon as the start command has said something.
print("ready", flush=True)
server.serve_forever()
