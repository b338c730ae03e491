"""Carries out steps and times each: one JSON list of steps per line in, one JSON answer per line out.

The bench's yardstick. Starting a process from here costs half a millisecond, from Node several: whatever is measured
by bare commands must not look slower than it is.

Steps: {"run": ARGV, "log": FILE} · {"answer": [HOST, PORT, PATH]} · {"fsync": DIR} · {"parallel": [STEPS…], "width": N}
Answer: {"ms": [per step]} or {"error": TEXT}
"""

import ctypes
import json
import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor

PR_SET_CHILD_SUBREAPER = 36
ANSWER_DEADLINE_S = 30
# What arrives before a restored network is up is lost, so attempts to connect are short and many.
CONNECT_S = 0.005
READ_S = 5


def run(argv, log):
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    files = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    try:
        pid = os.posix_spawn(argv[0], argv, {"PATH": os.environ["PATH"]}, file_actions=files, setsid=True)
    finally:
        os.close(output)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        with open(log, errors="replace") as said:
            raise RuntimeError(f"{' '.join(argv)} ended with {code}: {said.read()[-2000:]}")


def answer(host, port, path):
    request = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode()
    give_up_at = time.monotonic() + ANSWER_DEADLINE_S
    while time.monotonic() < give_up_at:
        with socket.socket() as connection:
            try:
                connection.settimeout(CONNECT_S)
                connection.connect((host, port))
                connection.settimeout(READ_S)
                connection.sendall(request)
                if connection.recv(64).startswith(b"HTTP/1.1 2"):
                    return
            except ConnectionRefusedError:
                time.sleep(0.001)
            except OSError:
                pass
    raise RuntimeError(f"no answer from {host}:{port}{path} within {ANSWER_DEADLINE_S} s")


def fsync(folder):
    for name in [*sorted(os.listdir(folder)), ""]:
        file = os.open(os.path.join(folder, name), os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def parallel(several, width):
    """Carries out lists of steps, so many lists at a time."""
    def one_after_another(steps):
        for step in steps:
            carry_out(step)
    with ThreadPoolExecutor(width) as pool:
        list(pool.map(one_after_another, several))


def carry_out(step):
    if "run" in step:
        run(step["run"], step["log"])
    elif "answer" in step:
        answer(*step["answer"])
    elif "parallel" in step:
        parallel(step["parallel"], step["width"])
    else:
        fsync(step["fsync"])


def reap():
    """Ends of what commands have left running come here."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def main():
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for line in sys.stdin:
        reap()
        times = []
        try:
            for step in json.loads(line):
                started_at = time.perf_counter()
                carry_out(step)
                times.append((time.perf_counter() - started_at) * 1000)
            said = {"ms": times}
        except Exception as error:
            said = {"error": str(error)}
        print(json.dumps(said), flush=True)


main()
