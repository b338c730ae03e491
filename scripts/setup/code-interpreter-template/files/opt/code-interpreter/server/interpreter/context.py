"""A context: a language, a folder and the kernel that keeps the state of what ran in it."""

import asyncio
import logging
import uuid

from interpreter import output
from interpreter.agent import sandbox_id
from interpreter.kernel import Kernel, KernelEnded, base_environment
from interpreter.languages import Changes, Language
from interpreter.run import Run

log = logging.getLogger(__name__)

RUNS_MAX = 256


class TooMany(Exception):
    """More than there may be; says of what."""


class ContextRemoved(Exception):
    """The context was removed while something waited for it; says which."""


class Context:
    """Runs go one after the other, in the order they came. The kernel is started when it is first needed."""

    def __init__(self, language: Language, cwd: str) -> None:
        self.id = str(uuid.uuid4())
        self.language = language
        self.cwd = cwd
        #: From before its process is there, so that whoever stops it never misses it.
        self._kernel: Kernel | None = None
        self._closed = False
        self._lock = asyncio.Lock()
        self._runs: dict[asyncio.Task[None], Run] = {}
        #: Of the sandbox, as the kernel has it.
        self._environment: dict[str, str] = {}
        #: The sandbox its random numbers are of.
        self._seeded_for = ""
        self._count = 0

    async def start(self) -> None:
        """Starts the kernel if it does not run. Raises ContextRemoved, KernelEnded, what Jupyter raises."""
        async with self._lock:
            await self._running(self._environment)

    async def warm_up(self) -> None:
        """Starts the kernel and has it do once what every first run does."""
        async with self._lock:
            kernel = await self._running(self._environment)
            await kernel.execute_silently(self.language.warm_up)

    def run(self, code: str, environment: dict[str, str], env_vars: dict[str, str]) -> Run:
        """Begins a run, or lets it wait for its turn; it goes on by itself. Raises TooMany."""
        if len(self._runs) >= RUNS_MAX:
            raise TooMany(f"{RUNS_MAX} runs wait in context {self.id}")
        run = Run()
        task = asyncio.create_task(self._carry_out(run, code, environment, env_vars))
        self._runs[task] = run
        task.add_done_callback(self._runs.pop)
        return run

    async def restart(self) -> None:
        """A new kernel under the same id; a run under way ends, those that wait go on in the new one. Raises as start()."""
        await self._stop_kernel()
        async with self._lock:
            await self._running(self._environment)

    async def close(self) -> None:
        """Ends the kernel and every run, whatever they are doing. Repeatable."""
        self._closed = True
        runs = dict(self._runs)
        for run in runs.values():
            run.cut(output.error("ContextRemoved", str(self._removed())))
        # First the kernel: what waits for its answer would otherwise go on waiting.
        await self._stop_kernel()
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)

    async def check(self) -> None:
        if self._kernel is not None:
            await self._kernel.check()

    async def _carry_out(self, run: Run, code: str, environment: dict[str, str], env_vars: dict[str, str]) -> None:
        try:
            async with self._lock:
                # Whoever went away while it waited wants nothing run.
                if not run.abandoned:
                    await self._execute(run, code, environment, env_vars)
        except ContextRemoved:
            # close() has told the client.
            return
        except KernelEnded:
            await run.emit(output.error("KernelEnded", f"{self._last_words()}; the next run starts a new kernel"))
        except Exception as error:
            log.exception("a run in context %s failed", self.id)
            await run.emit(output.error(type(error).__name__, str(error)))
        await run.emit(None)

    async def _execute(self, run: Run, code: str, environment: dict[str, str], env_vars: dict[str, str]) -> None:
        kernel = await self._running(environment)
        await self._prepare(kernel, environment, env_vars)
        self._count += 1
        await run.emit({"type": "number_of_executions", "execution_count": self._count})
        try:
            await run.execute(kernel, code)
        finally:
            if env_vars and not kernel.ended.done():
                usual = base_environment() | environment
                await self._change(kernel, {name: usual.get(name) for name in env_vars})

    async def _running(self, environment: dict[str, str]) -> Kernel:
        while self._kernel is None or self._kernel.ended.done():
            await self._stop_kernel()
            if self._closed:
                raise self._removed()
            self._kernel = kernel = Kernel(self.language.kernel)
            try:
                await kernel.start(self.cwd, base_environment() | environment)
            except KernelEnded:
                # Stopped by restart() or close() before it had run anything.
                if self._kernel is not kernel:
                    continue
                raise
            self._environment = environment
            self._seeded_for = sandbox_id()
            self._count = 0
        return self._kernel

    async def _prepare(self, kernel: Kernel, environment: dict[str, str], env_vars: dict[str, str]) -> None:
        """Brings the kernel up to date with the sandbox it is in, and gives it the variables of one run."""
        gone: Changes = {name: base_environment().get(name) for name in self._environment.keys() - environment.keys()}
        new = {name: value for name, value in environment.items() if self._environment.get(name) != value}
        changes = {**gone, **new, **env_vars}
        here = sandbox_id()
        if here != self._seeded_for and self.language.reseed:
            await kernel.execute_silently(self.language.reseed)
        self._seeded_for = here
        if changes:
            await self._change(kernel, changes)
        self._environment = environment

    async def _change(self, kernel: Kernel, changes: Changes) -> None:
        if self.language.set_environment is not None:
            await kernel.execute_silently(self.language.set_environment(changes))

    async def _stop_kernel(self) -> None:
        kernel, self._kernel = self._kernel, None
        if kernel is not None:
            await kernel.stop()

    def _removed(self) -> ContextRemoved:
        return ContextRemoved(f"context {self.id} was removed")

    def _last_words(self) -> str:
        ended = None if self._kernel is None else self._kernel.ended
        if ended is None or not ended.done():
            return f"the kernel of context {self.id} was ended"
        return f"the kernel of context {self.id} ended with status {ended.result()} and its state is lost"
