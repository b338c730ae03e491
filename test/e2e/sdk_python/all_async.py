import asyncio

from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FilesystemEventType,
    NotFoundException,
    PtySize,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

from scenario import main, raises, until_async


async def test_life():
    mark = {"list": "async"}
    sandboxes = await asyncio.gather(*(AsyncSandbox.create("base", timeout=120, metadata=mark) for _ in range(3)))
    try:
        assert await sandboxes[0].is_running()
        assert (await sandboxes[0].get_info()).metadata == mark
        paginator = AsyncSandbox.list(SandboxQuery(metadata=mark), limit=2)
        pages = []
        while paginator.has_next:
            pages.append(len(await paginator.next_items()))
        assert pages == [2, 1], pages
        await sandboxes[0].set_timeout(300)
        await sandboxes[0].files.write("kept", "text ✓")
        assert await sandboxes[0].pause() is True
        assert await sandboxes[0].pause() is False
        assert (await sandboxes[0].get_info()).state == SandboxState.PAUSED
        same = await AsyncSandbox.connect(sandboxes[0].sandbox_id)
        assert await same.files.read("kept") == "text ✓"
        (fork,) = await same.fork()
        assert isinstance(fork, AsyncSandbox), fork
        try:
            assert await fork.files.read("kept") == "text ✓"
        finally:
            await fork.kill()
    finally:
        killed = await asyncio.gather(*(sandbox.kill() for sandbox in sandboxes))
    assert killed == [True] * 3
    assert await sandboxes[0].kill() is False
    with raises(NotFoundException):
        await AsyncSandbox.connect(sandboxes[0].sandbox_id)
    with raises(AuthenticationException):
        await AsyncSandbox.create("base", api_key="wrong")


async def test_metrics():
    async with await AsyncSandbox.create("base", timeout=60) as sandbox:
        await until_async("a reading", sandbox.get_metrics)
        (reading, *_) = await sandbox.get_metrics()
        assert reading.mem_total > reading.mem_used > 0, reading


async def test_commands():
    async with await AsyncSandbox.create("base", timeout=120, envs={"A": "1"}) as sandbox:
        run = sandbox.commands.run
        results = await asyncio.gather(*(run(f"echo $A {n} $B; echo e{n} >&2", envs={"B": "x"}) for n in range(10)))
        assert [(r.stdout, r.stderr) for r in results] == [(f"1 {n} x\n", f"e{n}\n") for n in range(10)]
        with raises(CommandExitException) as caught:
            await run("exit 7")
        assert caught.error.exit_code == 7
        with raises(TimeoutException):
            await run("sleep 1000", timeout=1)
        assert (await run("pwd; whoami", cwd="/usr", user="root")).stdout == "/usr\nroot\n"

        seen = []

        async def on_stdout(text):
            seen.append(text)

        handle = await run("cat", background=True, stdin=True, on_stdout=on_stdout)
        await sandbox.commands.send_stdin(handle.pid, "hello\n")

        async def echoed():
            return seen == ["hello\n"]

        await until_async("the echo", echoed)
        assert handle.pid in [process.pid for process in await sandbox.commands.list()]
        assert await handle.kill() is True
        with raises(CommandExitException):
            await handle.wait()
        assert await sandbox.commands.kill(handle.pid) is False

        output = bytearray()

        async def on_data(data):
            output.extend(data)

        terminal = await sandbox.pty.create(PtySize(rows=24, cols=91), on_data=on_data)
        await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")

        async def sized():
            return b"24 91" in output

        await until_async("the terminal's size", sized)
        assert await sandbox.pty.kill(terminal.pid) is True


async def test_files():
    async with await AsyncSandbox.create("base", timeout=120) as sandbox:
        files = sandbox.files
        noise = bytes(at * 7 % 251 for at in range(300_000))
        await asyncio.gather(*(files.write(f"dir/{n}", noise) for n in range(5)))
        read = await asyncio.gather(*(files.read(f"dir/{n}", format="bytes") for n in range(5)))
        assert all(bytes(each) == noise for each in read)
        assert sorted(entry.name for entry in await files.list("dir")) == list("01234")
        stream = await files.read("dir/0", format="stream")
        assert b"".join([part async for part in stream]) == noise
        assert await files.exists("dir/0") and not await files.exists("dir/9")
        with raises(FileNotFoundException):
            await files.read("dir/9")

        events = []

        async def on_event(event):
            events.append((event.type, event.name))

        watch = await files.watch_dir("dir", on_event=on_event)
        await files.remove("dir/0")

        async def told():
            return (FilesystemEventType.REMOVE, "0") in events

        await until_async("the removal's event", told)
        await watch.stop()
        assert await files.make_dir("dir") is False
        await files.rename("dir/1", "dir/renamed")
        assert (await files.get_info("dir/renamed")).size == len(noise)


main(globals())
