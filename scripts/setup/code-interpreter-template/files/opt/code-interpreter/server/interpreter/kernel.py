"""One kernel process and the channels to it, by Jupyter's own client."""

import asyncio
import functools
import logging
import os
import queue
import uuid
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

log = logging.getLogger(__name__)

RUNTIME_DIR = Path("/run/code-interpreter")
START_TIMEOUT_S = 60.0
REPLY_TIMEOUT_S = 5.0
#: Messages that wait on our side for a client that reads slowly; more wait in the kernel.
MESSAGES_MAX = 1_000
BATCH_MAX = 100
#: Kernels that only listen on TCP.
_TCP_ONLY = {"javascript", "typescript"}

Message = dict[str, Any]


@functools.cache
def _sockets() -> zmq.asyncio.Context:
    context = zmq.asyncio.Context()
    context.rcvhwm = MESSAGES_MAX
    return context


class KernelEnded(Exception):
    """The kernel's process is gone, and with it its state."""


class Kernel:
    """A kernel, known to whoever may stop it before its process is there. One execution at a time; whoever calls sees to that."""

    def __init__(self, name: str) -> None:
        self._manager = AsyncKernelManager(
            kernel_name=name,
            transport="tcp" if name in _TCP_ONLY else "ipc",
            # Its own, never one that had this name before: that may yet be removed with the kernel it was of.
            connection_file=str(RUNTIME_DIR / f"{uuid.uuid4()}.json"),
            context=_sockets(),
        )
        self._client: AsyncKernelClient
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        #: Held while the process is made or ended: what a stop finds is whole or not there.
        self._changing = asyncio.Lock()
        self._launched = False
        self._stopped = False

    async def start(self, cwd: str, environment: dict[str, str]) -> None:
        """Returns when it answers. Raises KernelEnded (also when it is stopped meanwhile), what Jupyter raises; nothing is
        left behind then."""
        try:
            await self._launch(cwd, environment)
            ready = asyncio.ensure_future(self._client.wait_for_ready(timeout=START_TIMEOUT_S))
            try:
                await asyncio.wait({ready, self._ended}, return_when=asyncio.FIRST_COMPLETED)
                if self._ended.done():
                    raise KernelEnded
                ready.result()
            finally:
                ready.cancel()
        except BaseException:
            await self.stop()
            raise

    async def _launch(self, cwd: str, environment: dict[str, str]) -> None:
        async with self._changing:
            if self._ended.done():
                raise KernelEnded
            RUNTIME_DIR.mkdir(mode=0o700, exist_ok=True)
            # A kernel ends with us by the signal that its command line asks for, so it need not look whether we live.
            await self._manager.start_kernel(cwd=cwd, env=environment, independent=True, stdout=DEVNULL)
            self._client = self._manager.client()
            self._client.start_channels(hb=False)
            self._launched = True

    @property
    def ended(self) -> "asyncio.Future[int]":
        """Settles with the exit status (negative: a signal) when the process ends."""
        return self._ended

    async def check(self) -> None:
        """Looks whether the process still runs; called when some child of ours has ended."""
        if not self._launched:
            return
        provisioner = self._manager.provisioner
        status = await provisioner.poll() if provisioner is not None else -1
        if status is not None and not self._ended.done():
            self._ended.set_result(status)

    def send(self, code: str, *, silent: bool = False) -> str:
        """Sends code to be executed; its messages have the id returned as their parent."""
        message_id: str = self._client.execute(
            code, silent=silent, store_history=not silent, allow_stdin=False, stop_on_error=False
        )
        return message_id

    async def receive(self) -> list[Message]:
        """Waits for messages for everybody, of whatever execution, and takes those that are there."""
        messages: list[Message] = [await self._client.get_iopub_msg(timeout=None)]
        # What has arrived already is taken without the event loop's turn for each, which costs more than the message.
        arrived = zmq.Socket.shadow(self._client.iopub_channel.socket)
        while len(messages) < BATCH_MAX:
            _, message = self._client.session.recv(arrived, mode=zmq.NOBLOCK)
            if message is None:
                break
            messages.append(message)
        return messages

    async def reply(self, message_id: str) -> Message | None:
        """The kernel's last word on an execution. None: it never came. Raises KernelEnded when it is stopped meanwhile."""
        deadline_s = asyncio.get_running_loop().time() + REPLY_TIMEOUT_S
        while (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            try:
                message: Message = await self._client.get_shell_msg(timeout=left_s)
            except queue.Empty:
                break
            except asyncio.CancelledError:
                # Its sockets were closed under us, or we are meant.
                if self._ended.done():
                    raise KernelEnded from None
                raise
            if message["parent_header"].get("msg_id") == message_id:
                return message
        return None

    async def execute_silently(self, code: str) -> None:
        """Executes code of our own. Raises KernelEnded. What it says is not heard, an error of it is logged."""
        message_id = self.send(code, silent=True)
        while True:
            receiving = asyncio.ensure_future(self.receive())
            await asyncio.wait({receiving, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                receiving.cancel()
                raise KernelEnded
            for message in of_execution(message_id, receiving.result()):
                if message["msg_type"] == "error":
                    log.error("own code failed: %s", message["content"].get("evalue"))
                if is_idle(message):
                    await self.reply(message_id)
                    return

    async def interrupt(self) -> None:
        if not self._ended.done():
            await self._manager.interrupt_kernel()

    async def stop(self) -> None:
        """Kills it, also while it starts. Repeatable. What is executed ends with KernelEnded."""
        if not self._ended.done():
            self._ended.set_result(-9)
        async with self._changing:
            if self._stopped:
                return
            if self._launched:
                self._client.stop_channels()
            if self._manager.has_kernel:
                await self._manager.shutdown_kernel(now=True)
            self._stopped = True


def of_execution(message_id: str, messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["parent_header"].get("msg_id") == message_id]


def is_idle(message: Message) -> bool:
    return bool(message["msg_type"] == "status" and message["content"]["execution_state"] == "idle")


def base_environment() -> dict[str, str]:
    """What a kernel inherits: our own environment without what is only ours."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
