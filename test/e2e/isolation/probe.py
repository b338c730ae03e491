"""Tries to connect to each [host, port] of the JSON list in argv; prints what became of each, as a JSON list of texts."""
import concurrent.futures, errno, json, socket, sys


def probe(target):
    host, port = target
    try:
        with socket.create_connection((host, port), timeout=3) as connection:
            connection.settimeout(1)
            try:
                return "connected: " + connection.recv(100).decode("latin1").strip()
            except socket.timeout:
                return "connected"
    except socket.timeout:
        return "timeout"
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


with concurrent.futures.ThreadPoolExecutor(16) as pool:
    print(json.dumps(list(pool.map(probe, json.loads(sys.argv[1])))))
