# Knows nothing of copies: one line of its own random generator for each line it is told.
import random, socket
random.seed()
listener = socket.socket(socket.AF_UNIX)
listener.bind("repeats.sock")
listener.listen()
while True:
    client, _ = listener.accept()
    client.sendall(b"%d\n" % random.getrandbits(64))
    client.close()
