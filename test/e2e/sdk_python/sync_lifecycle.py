from datetime import datetime, timedelta, timezone

from e2b import (
    AuthenticationException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

from scenario import main, raises, until


def test_create_find_prolong_kill():
    with Sandbox.create("base", timeout=60, metadata={"k y": "v&1"}, envs={"A": "1"}) as sandbox:
        assert sandbox.is_running()
        info = sandbox.get_info()
        assert info.state == SandboxState.RUNNING and info.metadata == {"k y": "v&1"}
        assert info.cpu_count >= 1 and info.memory_mb >= 512 and info.envd_version
        left = info.end_at - datetime.now(timezone.utc)
        assert timedelta(seconds=55) < left <= timedelta(seconds=61), left
        sandbox.set_timeout(600)
        assert sandbox.get_info().end_at - datetime.now(timezone.utc) > timedelta(seconds=590)
        sandbox.set_timeout(30)
        assert sandbox.get_info().end_at - datetime.now(timezone.utc) < timedelta(seconds=31)
        # Connecting prolongs and never shortens.
        end_at = sandbox.get_info().end_at
        again = Sandbox.connect(sandbox.sandbox_id, timeout=1)
        assert again.get_info().end_at == end_at
        assert again.commands.run("echo $A").stdout == "1\n"
        assert sandbox.kill() is True
        assert not sandbox.is_running()
        assert Sandbox.kill(sandbox.sandbox_id) is False
        with raises(NotFoundException):
            Sandbox.connect(sandbox.sandbox_id)
        with raises(NotFoundException):
            sandbox.set_timeout(10)
        with raises(TimeoutException):
            sandbox.commands.run("true")


def test_list_filters_and_pages():
    mark = {"list": "sync"}
    made = [Sandbox.create("base", timeout=60, metadata={**mark, "n": str(n)}) for n in range(3)]
    try:
        ids = [sandbox.sandbox_id for sandbox in made]
        made[0].pause()

        def found(limit=None, order=None, **query):
            paginator = Sandbox.list(SandboxQuery(metadata=mark, **query), limit=limit, order=order)
            pages = []
            while paginator.has_next:
                pages.append([info.sandbox_id for info in paginator.next_items()])
            return pages

        assert found() == [ids[::-1]]
        assert found(limit=2) == [[ids[2], ids[1]], [ids[0]]]
        assert found(limit=1, order="asc") == [[ids[0]], [ids[1]], [ids[2]]]
        assert found(state=[SandboxState.PAUSED]) == [[ids[0]]]
        assert found(state=[SandboxState.RUNNING]) == [[ids[2], ids[1]]]
        one = Sandbox.list(SandboxQuery(metadata={**mark, "n": "1"})).next_items()
        assert [info.sandbox_id for info in one] == [ids[1]]
        assert Sandbox.list(SandboxQuery(metadata={"list": "nobody"})).next_items() == []
    finally:
        for sandbox in made:
            sandbox.kill()


def test_timeout_ends_it():
    sandbox = Sandbox.create("base", timeout=1)
    until("its end", lambda: not sandbox.is_running(), 10)
    with raises(NotFoundException):
        sandbox.get_info()


def test_timeout_pauses_it():
    sandbox = Sandbox.create("base", timeout=1, lifecycle={"on_timeout": "pause"})
    try:
        until("the pause", lambda: sandbox.get_info().state == SandboxState.PAUSED, 10)
        assert not sandbox.is_running()
        sandbox.connect(timeout=60)
        assert sandbox.get_info().state == SandboxState.RUNNING
    finally:
        sandbox.kill()


def test_pause_and_connect():
    with Sandbox.create("base", timeout=120) as sandbox:
        sandbox.commands.run("n=0; while :; do n=$((n+1)); echo $n > next; mv next count; sleep 0.05; done", background=True)
        until("the counter", lambda: sandbox.files.exists("count"))
        assert sandbox.pause() is True
        assert sandbox.pause() is False
        assert sandbox.get_info().state == SandboxState.PAUSED
        same = Sandbox.connect(sandbox.sandbox_id, timeout=120)
        before = int(same.files.read("count"))
        until("counting on", lambda: int(same.files.read("count")) > before)


def test_pause_without_memory():
    boot_id = "/proc/sys/kernel/random/boot_id"
    with Sandbox.create("base", timeout=120) as sandbox:
        sandbox.files.write("kept", "by the disk")
        before = sandbox.files.read(boot_id)
        assert sandbox.pause(mode="filesystem") is True
        assert not sandbox.is_running()
        same = sandbox.connect()
        assert same.files.read("kept") == "by the disk"
        rebooted = same.files.read(boot_id)
        assert rebooted != before
        sandbox.pause()
        sandbox.connect(on_resume="reboot")
        assert sandbox.files.read(boot_id) != rebooted


def test_fork():
    with Sandbox.create("base", timeout=120, metadata={"branch": "root"}) as sandbox:
        sandbox.files.write("state", "shared")
        forks = sandbox.fork(count=2)
        try:
            assert all(isinstance(fork, Sandbox) for fork in forks), forks
            assert len({sandbox.sandbox_id, *(fork.sandbox_id for fork in forks)}) == 3
            for at, fork in enumerate(forks):
                assert fork.files.read("state") == "shared"
                fork.files.write("state", f"own {at}")
                assert fork.commands.run("hostname").stdout == fork.sandbox_id + "\n"
                assert fork.get_info().metadata == {"branch": "root"}
            assert [fork.files.read("state") for fork in forks] == ["own 0", "own 1"]
            assert sandbox.files.read("state") == "shared"
        finally:
            for fork in forks:
                fork.kill()


def test_snapshots():
    with Sandbox.create("base", timeout=120, envs={"A": "1", "B": "2"}) as sandbox:
        sandbox.files.write("/dev/shm/state", "first")
        first = sandbox.create_snapshot("py-snap")
        assert (first.snapshot_id, first.names) == ("default/py-snap:default", ["default/py-snap"])
        unnamed = Sandbox.create_snapshot(sandbox.sandbox_id)
        assert unnamed.names == [] and unnamed.snapshot_id.endswith(":default"), unnamed

        def found(**query):
            paginator = Sandbox.list_snapshots(**query)
            pages = []
            while paginator.has_next:
                pages.append([info.snapshot_id for info in paginator.next_items()])
            return pages

        of_it = {"sandbox_id": sandbox.sandbox_id}
        assert found(**of_it) == [[unnamed.snapshot_id, first.snapshot_id]]
        assert found(**of_it, limit=1) == [[unnamed.snapshot_id], [first.snapshot_id]]
        assert found(name="py-snap:default") == [[first.snapshot_id]]
        assert [info.snapshot_id for info in sandbox.list_snapshots(name="py-snap").next_items()] == [first.snapshot_id]

        with Sandbox.create(first.snapshot_id, timeout=60, envs={"A": "3"}) as child:
            assert child.files.read("/dev/shm/state") == "first"
            assert child.commands.run("echo $A,$B").stdout == "3,\n"
            child.files.write("/dev/shm/state", "second")
            again = child.create_snapshot("py-snap")
        with Sandbox.create(again.snapshot_id, timeout=60) as grandchild:
            assert grandchild.files.read("/dev/shm/state") == "second"
            with raises(SandboxException):
                Sandbox.delete_snapshot(again.snapshot_id)
        sandbox.files.write("kept", "on disk")
        alone = sandbox.create_snapshot(mode="filesystem")
        assert sandbox.files.read("/dev/shm/state") == "first"
        with Sandbox.create(alone.snapshot_id, timeout=60) as booted:
            assert booted.files.read("kept") == "on disk"
            assert not booted.files.exists("/dev/shm/state")
        sandbox.pause()
        with raises(SandboxException):
            sandbox.create_snapshot()
    for info in (again, unnamed, alone):
        assert Sandbox.delete_snapshot(info.snapshot_id) is True
        assert Sandbox.delete_snapshot(info.snapshot_id) is False
    with raises(NotFoundException):
        Sandbox.create_snapshot("inosuchsandbox000000")


def test_metrics():
    with Sandbox.create("base", timeout=60) as sandbox:
        made_at = datetime.now(timezone.utc)
        until("a reading", lambda: sandbox.get_metrics())
        info, reading = sandbox.get_info(), sandbox.get_metrics()[0]
        assert abs(reading.timestamp - made_at) < timedelta(seconds=10), reading
        assert reading.cpu_count == info.cpu_count and 0 <= reading.cpu_used_pct <= 100, reading
        assert 0 < reading.mem_used < reading.mem_total and reading.mem_cache >= 0, reading
        assert 0 < reading.disk_used < reading.disk_total, reading
        now = datetime.now(timezone.utc)
        assert sandbox.get_metrics(start=made_at - timedelta(seconds=5), end=now)
        assert sandbox.get_metrics(start=now - timedelta(hours=2), end=now - timedelta(hours=1)) == []
    with raises(NotFoundException):
        Sandbox.get_metrics("inosuchsandbox000000")


def test_errors():
    with raises(AuthenticationException):
        Sandbox.create("base", api_key="wrong")
    with raises(AuthenticationException):
        Sandbox.list(api_key="e2b_" + "0" * 40).next_items()
    with raises(SandboxException) as caught:
        Sandbox.create("no-such-template")
    assert "not found" in str(caught.error)
    with raises(SandboxException) as caught:
        Sandbox.create("base", timeout=10**7)
    assert "Timeout cannot be greater than" in str(caught.error)
    with raises(NotFoundException):
        Sandbox.connect("inosuchsandbox000000")
    assert Sandbox.kill("inosuchsandbox000000") is False


main(globals())
