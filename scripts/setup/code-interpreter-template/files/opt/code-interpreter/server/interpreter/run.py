"""One execution: what is heard of it, until it is over or nobody listens any more."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from interpreter import output
from interpreter.kernel import Kernel, KernelEnded, is_idle, of_execution
from interpreter.output import Event

KEEPALIVE_S = 5.0
#: An interrupt that comes before the kernel has begun is lost, and some code swallows one.
INTERRUPT_AGAIN_S = 1.0
#: Events a client may be behind; then the kernel's messages wait in its socket.
EVENTS_MAX = 256


class Run:
    """A run's events, from the task that carries it out to the one that answers the client."""

    def __init__(self) -> None:
        self._events: asyncio.Queue[Event | None] = asyncio.Queue(maxsize=EVENTS_MAX)
        self._abandoned = asyncio.Event()
        self._is_over = False

    @property
    def abandoned(self) -> bool:
        return self._abandoned.is_set()

    async def events(self) -> AsyncIterator[list[Event]]:
        """To the last one, those that are there together, with signs of life in between."""
        while True:
            try:
                events = [await asyncio.wait_for(self._events.get(), KEEPALIVE_S)]
            except TimeoutError:
                events = [output.KEEPALIVE]
            while not self._events.empty():
                events.append(self._events.get_nowait())
            if None in events:
                yield [*(event for event in events[: events.index(None)] if event is not None), output.END]
                return
            yield [event for event in events if event is not None]

    def abandon(self) -> None:
        """Nobody listens any more: what still runs is interrupted. Repeatable, also after the end."""
        self._abandoned.set()
        while not self._events.empty():
            self._events.get_nowait()

    def cut(self, last: Event) -> None:
        """Ends it at once with these words, however far behind the client is: it loses what there is no room for."""
        if self.abandoned or self._is_over:
            return
        self._is_over = True
        while self._events.qsize() > EVENTS_MAX - 2:
            self._events.get_nowait()
        self._events.put_nowait(last)
        self._events.put_nowait(None)

    async def emit(self, event: Event | None) -> None:
        """None is the end."""
        if self.abandoned or self._is_over:
            return
        self._is_over = event is None
        await self._events.put(event)

    async def execute(self, kernel: Kernel, code: str) -> None:
        """Executes the code and emits all that comes of it but the end. Raises KernelEnded."""
        message_id = kernel.send(code)
        failed = False
        interrupt_at_s = 0.0
        abandoned = asyncio.ensure_future(self._abandoned.wait())
        receiving = asyncio.ensure_future(kernel.receive())
        try:
            while True:
                stirring: set[asyncio.Future[Any]] = {receiving, kernel.ended}
                if not abandoned.done():
                    stirring.add(abandoned)
                patience_s = max(0.0, interrupt_at_s - _now_s()) if self.abandoned else None
                await asyncio.wait(stirring, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED)
                # What a kernel said before it ended is heard; with its sockets closed there is nothing to hear.
                if receiving.done() and not (kernel.ended.done() and _has_failed(receiving)):
                    messages = of_execution(message_id, receiving.result())
                    receiving = asyncio.ensure_future(kernel.receive())
                    for event in map(output.event_of, messages):
                        if event is not None:
                            failed = failed or event["type"] == "error"
                            await self.emit(event)
                    # The last that is heard of it: nothing of it comes behind.
                    if any(map(is_idle, messages)):
                        break
                elif kernel.ended.done():
                    raise KernelEnded
                # By the clock: what goes on printing always has something to be received.
                if self.abandoned and _now_s() >= interrupt_at_s:
                    await kernel.interrupt()
                    interrupt_at_s = _now_s() + INTERRUPT_AGAIN_S
        finally:
            receiving.cancel()
            abandoned.cancel()
        reply = await kernel.reply(message_id)
        content = {"status": "ok"} if reply is None else reply["content"]
        if content["status"] != "ok" and not failed:
            name, value = content.get("ename", "ExecutionAborted"), content.get("evalue", "Execution was aborted")
            await self.emit(output.error(name, value, "\n".join(content.get("traceback", ()))))


def _has_failed(task: asyncio.Future[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


def _now_s() -> float:
    return asyncio.get_running_loop().time()
