"""Runs the functions `test_…` of a scenario one after another and says `ok NAME` or the traceback of each. The first that does not
come to an end ends the scenario, with the tracebacks of all threads."""

import asyncio
import faulthandler
import inspect
import os
import time
import traceback

# Twenty times what the slowest takes.
DEADLINE_S = 60


def until(what, condition, deadline_s=30):
    give_up_at = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up_at, f"{what} did not come within {deadline_s} s"
        time.sleep(0.05)


async def until_async(what, condition, deadline_s=30):
    give_up_at = time.monotonic() + deadline_s
    while not await condition():
        assert time.monotonic() < give_up_at, f"{what} did not come within {deadline_s} s"
        await asyncio.sleep(0.05)


class raises:
    """`with raises(KIND) as caught: …`, after which `caught.error` is the error; nothing but a KIND will do."""

    def __init__(self, kind):
        self.kind = kind

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _):
        assert kind is not None, f"no {self.kind.__name__} was raised"
        self.error = error
        return issubclass(kind, self.kind)


def passes(name, work):
    """Whether it comes to its end without an error, which is told."""
    faulthandler.dump_traceback_later(DEADLINE_S, exit=True)
    try:
        asyncio.run(work()) if inspect.iscoroutinefunction(work) else work()
        return True
    except BaseException:
        print(f"not ok {name}\n{traceback.format_exc()}", flush=True)
        return False


def main(names, clean_up=lambda: None):
    """`clean_up` takes away what the tests share, unless one of them does not come to an end."""
    failed = False
    for name, test in list(names.items()):
        if not name.startswith("test_"):
            continue
        started_at = time.monotonic()
        if passes(name, test):
            print(f"ok {name} {time.monotonic() - started_at:.1f} s", flush=True)
        else:
            failed = True
    failed |= not passes("the clean-up", clean_up)
    # The SDK's HTTP library may crash while the interpreter is taken down, which is none of what is tested.
    os._exit(failed)
