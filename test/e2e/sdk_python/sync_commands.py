import hashlib
import time

from e2b import CommandExitException, InvalidArgumentException, NotFoundException, PtySize, Sandbox, TimeoutException

from scenario import main, raises, until

sandbox = Sandbox.create("base", timeout=300, envs={"FROM_CREATE": "yes"})
run = sandbox.commands.run


def test_output_and_exit_codes():
    both = run("echo out; echo err >&2")
    assert (both.stdout, both.stderr, both.exit_code, both.error) == ("out\n", "err\n", 0, None)
    with raises(CommandExitException) as caught:
        run("echo before; exit 7")
    assert (caught.error.exit_code, caught.error.stdout) == (7, "before\n")
    text = "né ✓ 'quoted' \"double\" $HOME \\ `x`"
    assert run(f"cat <<'END'\n{text}\nEND").stdout == text + "\n"
    assert len(run("head -c 3000000 /dev/zero | tr '\\0' x").stdout) == 3_000_000


def test_env_cwd_user():
    assert run("echo $FROM_CREATE $OWN", envs={"OWN": "né"}).stdout == "yes né\n"
    assert run("pwd; whoami").stdout == "/home/user\nuser\n"
    assert run("pwd", cwd="/usr/lib").stdout == "/usr/lib\n"
    assert run("whoami; pwd", user="root").stdout == "root\n/root\n"
    assert run("sudo -n id -u").stdout == "0\n"
    with raises(InvalidArgumentException):
        run("true", cwd="/no/such/folder")


def test_background_stream_stdin_list_kill():
    handle = run("cat", background=True, stdin=True, timeout=0)
    sandbox.commands.send_stdin(handle.pid, "hello\n")
    stdout = next(out for out, _, _ in handle if out)
    assert stdout == "hello\n"
    assert handle.pid in [process.pid for process in sandbox.commands.list()]
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, b"more \xe2\x9c\x93")
    sandbox.commands.close_stdin(handle.pid)
    seen = []
    assert again.wait(on_stdout=seen.append).exit_code == 0
    # What was said before comes again.
    assert "".join(seen) == "hello\nmore ✓"

    sleeper = run("sleep 1000", background=True, timeout=0)
    assert sleeper.kill() is True
    with raises(CommandExitException) as caught:
        sleeper.wait()
    assert caught.error.exit_code == -1
    assert sandbox.commands.kill(sleeper.pid) is False
    with raises(NotFoundException):
        sandbox.commands.connect(999_999)


def test_callbacks_come_as_it_goes():
    seen = []
    handle = run("echo one; read x; echo two $x; echo err >&2", background=True, stdin=True)

    def on_stdout(text):
        seen.append(text)
        if text == "one\n":
            sandbox.commands.send_stdin(handle.pid, "x\n")

    errors = []
    result = handle.wait(on_stdout=on_stdout, on_stderr=errors.append)
    assert seen == ["one\n", "two x\n"] and errors == ["err\n"] and result.stdout == "one\ntwo x\n"


def test_timeout_ends_all_it_started():
    start = time.monotonic()
    with raises(TimeoutException):
        run("sleep 4321 & sleep 4321", timeout=1)
    assert time.monotonic() - start < 10
    until("the sleeps' end", lambda: run("pgrep -fc '[s]leep 4321' || true").stdout == "0\n")
    assert run("sleep 1.2; echo done", timeout=0).stdout == "done\n"


def test_large_stdin_by_stream():
    handle = run("exec sha256sum", background=True, stdin=True, timeout=0)
    pieces = [bytes((n * at) % 251 for at in range(256 * 1024)) for n in range(32)]
    sandbox.commands.stream_input(handle.pid, iter(pieces))
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == hashlib.sha256(b"".join(pieces)).hexdigest() + "  -\n"


def test_pty():
    output = bytearray()
    terminal = sandbox.pty.create(PtySize(rows=33, cols=101), envs={"MARK": "here"}, cwd="/usr", timeout=0)

    def read_until(handle, what):
        events = iter(handle)
        # It may have come together with what was waited for before.
        while what not in output:
            _, _, pty = next(events, (None, None, None))
            assert pty is not None, f"{what} never came: {bytes(output)}"
            output.extend(pty)

    sandbox.pty.send_stdin(terminal.pid, b"stty size; echo $MARK $PWD $TERM\n")
    read_until(terminal, b"33 101")
    read_until(terminal, b"here /usr xterm-256color")
    sandbox.pty.resize(terminal.pid, PtySize(rows=20, cols=77))
    terminal.disconnect()
    again = sandbox.pty.connect(terminal.pid)
    sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    read_until(again, b"20 77")
    assert output.count(b"33 101") == 2, "the terminal's output is not said again"
    # Ctrl-C ends what runs in the foreground, and not the shell.
    sandbox.pty.send_stdin(terminal.pid, b"sleep 1000\n")
    until("the sleep", lambda: run("pgrep -fc '[s]leep 1000' || true").stdout == "1\n")
    sandbox.pty.send_stdin(terminal.pid, b"\x03")
    sandbox.pty.send_stdin(terminal.pid, b"echo still $((40+2))\n")
    read_until(again, b"still 42")
    assert sandbox.pty.kill(terminal.pid) is True
    assert sandbox.pty.kill(terminal.pid) is False


def test_kill_in_the_middle():
    other = Sandbox.create("base", timeout=60)
    handle = other.commands.run("sleep 1000", background=True, timeout=0)
    other.kill()
    with raises(TimeoutException) as caught:
        handle.wait()
    assert "killed" in str(caught.error), caught.error


main(globals(), sandbox.kill)
