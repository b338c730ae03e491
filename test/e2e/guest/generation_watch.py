# What docs/formats.md tells programs to do: watch the folder, and draw new randomness in every copy.
import ctypes, os, random, sys
MARKER = "/run/aenv/generation"
IN_MOVED_TO = 0x80
libc = ctypes.CDLL(None, use_errno=True)
watch = libc.inotify_init1(0)
assert libc.inotify_add_watch(watch, os.path.dirname(MARKER).encode(), IN_MOVED_TO) >= 0, os.strerror(ctypes.get_errno())
random.seed(1)
known = None
while True:
    with open(MARKER) as marker:
        now = marker.read()
    if known is not None and now != known:
        random.seed()
        with open("reseeded.new", "w") as said:
            said.write(f"{now}{random.getrandbits(64)}\n")
        os.rename("reseeded.new", "reseeded")
    known = now
    open("watching", "w").close()
    os.read(watch, 4096)
