"""Runs a command on a terminal of its own and reports how it left it.

Usage: terminal.py STEPS COMMAND...   STEPS is a JSON list, done in order:
  ["expect", TEXT]         wait until the terminal has shown TEXT
  ["send", TEXT]           type TEXT
  ["signal", NAME]         send the command a signal
  ["resize", COLS, ROWS]   change the window
  ["hangup"]               close the terminal; only as the last step

Prints JSON: the exit code (128+n for signal n), whether the terminal was raw when the last step was done, whether all
its settings were as before in the end (not after a hangup: there is no terminal left), and what it showed.
"""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time

DEADLINE_S = 30


def set_size(fd, cols, rows):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


class Terminal:
    def __init__(self, command):
        # The slave stays open here, so that its settings can be read after the command is gone.
        self.master, self.slave = pty.openpty()
        set_size(self.master, 90, 25)
        self.before = termios.tcgetattr(self.slave)
        self.shown = b""
        self.searched = 0
        self.open = True
        self.child = subprocess.Popen(
            command,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def read(self, wait_s):
        ready, _, _ = select.select([self.master], [], [], wait_s)
        if ready:
            self.shown += os.read(self.master, 65536)
        return bool(ready)

    def expect(self, text):
        until = time.monotonic() + DEADLINE_S
        while True:
            at = self.shown.find(text.encode(), self.searched)
            if at >= 0:
                self.searched = at + len(text.encode())
                return
            if time.monotonic() > until:
                self.child.kill()
                sys.exit(f"never showed {text!r}, only {self.shown.decode(errors='replace')!r}")
            self.read(0.2)

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO)

    def hangup(self):
        os.close(self.master)
        self.open = False

    def is_restored(self):
        return self.open and termios.tcgetattr(self.slave) == self.before

    def finish(self):
        until = time.monotonic() + DEADLINE_S
        while self.child.poll() is None:
            if time.monotonic() > until:
                self.child.kill()
                sys.exit(f"does not end: {self.shown.decode(errors='replace')!r}")
            if self.open:
                self.read(0.05)
            else:
                time.sleep(0.05)
        while self.open and self.read(0):
            pass
        return self.child.returncode


def main():
    steps = json.loads(sys.argv[1])
    terminal = Terminal(sys.argv[2:])
    raw = False
    for at, step in enumerate(steps):
        if at == len(steps) - 1:
            raw = terminal.is_raw()
        if step[0] == "expect":
            terminal.expect(step[1])
        elif step[0] == "send":
            os.write(terminal.master, step[1].encode())
        elif step[0] == "signal":
            terminal.child.send_signal(getattr(signal, "SIG" + step[1]))
        elif step[0] == "resize":
            set_size(terminal.master, step[1], step[2])
        elif step[0] == "hangup":
            terminal.hangup()
    code = terminal.finish()
    print(
        json.dumps(
            {
                "code": code if code >= 0 else 128 - code,
                "raw": raw,
                "restored": terminal.is_restored(),
                "shown": terminal.shown.decode(errors="replace"),
            }
        )
    )


main()
