import io

from e2b import (
    FileNotFoundException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    Sandbox,
)
from e2b.sandbox.filesystem.filesystem import WriteEntry

from scenario import main, raises, until

sandbox = Sandbox.create("base", timeout=300)
files = sandbox.files
NOISE = bytes(at * 7 % 251 for at in range(300_000))


def test_write_and_read():
    written = files.write("sub/a.txt", "text ✓")
    assert (written.name, written.path, written.type) == ("a.txt", "/home/user/sub/a.txt", FileType.FILE)
    assert files.read("sub/a.txt") == "text ✓"
    files.write("sub/a.txt", "shorter")
    assert files.read("/home/user/sub/a.txt") == "shorter"
    files.write("noise", NOISE)
    assert bytes(files.read("noise", format="bytes")) == NOISE
    assert b"".join(files.read("noise", format="stream")) == NOISE
    files.write("from-file", io.BytesIO(NOISE))
    assert bytes(files.read("from-file", format="bytes", gzip=True)) == NOISE
    files.write("empty", "")
    assert files.read("empty") == ""
    files.write("packed", NOISE, gzip=True)
    assert sandbox.commands.run("cmp packed noise && echo same").stdout == "same\n"
    with raises(FileNotFoundException):
        files.read("nothing")
    assert sandbox.commands.run("stat -c '%U %a' noise").stdout == "user 644\n"
    files.write("/root/secret", "x", user="root")
    assert files.read("/root/secret", user="root") == "x"


def test_write_many():
    names = ["many/1", "many/deep/er/2", "many/Ω 3"]
    infos = files.write_files([WriteEntry(path=name, data=name) for name in names])
    assert [info.path for info in infos] == [f"/home/user/{name}" for name in names]
    assert [files.read(name) for name in names] == names


def test_list_info_exists():
    files.make_dir("tree/a/b")
    files.write("tree/f", "12345")
    sandbox.commands.run("ln -s f tree/link")
    entries = {entry.name: entry for entry in files.list("tree")}
    assert set(entries) == {"a", "f", "link"}
    assert entries["a"].type == FileType.DIR and entries["f"].type == FileType.FILE
    assert (entries["f"].size, entries["f"].owner, entries["f"].permissions) == (5, "user", "-rw-r--r--")
    assert entries["link"].symlink_target == "/home/user/tree/f"
    assert {entry.path for entry in files.list("tree", depth=2)} >= {"/home/user/tree/a/b"}
    info = files.get_info("tree/f")
    assert (info.path, info.mode, info.size) == ("/home/user/tree/f", 0o644, 5)
    assert files.exists("tree") and files.exists("tree/f") and not files.exists("tree/g")
    with raises(FileNotFoundException):
        files.list("no-such-folder")
    with raises(InvalidArgumentException):
        files.list("tree/f")


def test_make_dir_rename_remove():
    assert files.make_dir("made/deep") is True
    assert files.make_dir("made/deep") is False
    files.write("made/old", "x")
    moved = files.rename("made/old", "made/new")
    assert moved.path == "/home/user/made/new" and not files.exists("made/old")
    with raises(FileNotFoundException):
        files.rename("made/old", "made/other")
    files.remove("made")
    assert not files.exists("made")


def test_watch():
    files.make_dir("watched/sub")
    watch = files.watch_dir("watched", recursive=True)
    files.write("watched/sub/new", "x")
    files.rename("watched/sub/new", "watched/sub/newer")
    files.remove("watched/sub/newer")
    seen = []

    def all_there():
        seen.extend((event.type, event.name) for event in watch.get_new_events())
        kinds = {kind for kind, name in seen if name.startswith("sub/new")}
        return {
            FilesystemEventType.CREATE,
            FilesystemEventType.WRITE,
            FilesystemEventType.RENAME,
            FilesystemEventType.REMOVE,
        } <= kinds

    until("events of all kinds", all_there)
    watch.stop()
    with raises(FileNotFoundException):
        files.watch_dir("no-such-folder")


def test_watch_shows_an_upload_as_e2b_does():
    files.make_dir("uploads")
    watch = files.watch_dir("uploads")
    given = [FilesystemEventType.CHMOD, FilesystemEventType.WRITE]
    for expected in ([FilesystemEventType.CREATE, *given], given):
        files.write("uploads/f", "x")
        seen = []

        def written():
            seen.extend((event.type, event.name) for event in watch.get_new_events())
            return (FilesystemEventType.WRITE, "f") in seen

        until("the upload", written)
        assert seen == [(kind, "f") for kind in expected], seen
    watch.stop()


main(globals(), sandbox.kill)
