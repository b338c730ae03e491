"""All contexts, and which one a request means."""

import asyncio
import os
import signal
from types import TracebackType

from interpreter.context import Context, TooMany
from interpreter.languages import find_language
from interpreter.requests import DEFAULT_CWD, BadRequest

__all__ = ["Contexts", "TooMany", "UnknownContext"]

CONTEXTS_MAX = 32
#: Listed from the start. Only Python's kernel runs then, and so is part of a snapshot.
DEFAULT_LANGUAGES = ("python", "javascript")


class UnknownContext(Exception):
    """There is no context of this id."""


class Contexts:
    """Contexts by id, in the order they were made."""

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}
        #: Language → id of the context that runs without a context get.
        self._defaults: dict[str, str] = {}
        self._checks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Contexts":
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._child_ended)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGCHLD)
        await asyncio.gather(*(context.close() for context in self._contexts.values()))

    async def warm_up(self) -> None:
        """Makes the default contexts, and has Python do once what every first run does."""
        for language in DEFAULT_LANGUAGES:
            self.choose(None, language)
        python = self.choose(None, "python")
        await python.warm_up()

    def all(self) -> list[Context]:
        return list(self._contexts.values())

    def choose(self, context_id: str | None, language: str | None) -> Context:
        """The context named, or the default one of a language. Raises UnknownContext, UnknownLanguage."""
        if context_id is not None:
            return self._find(context_id)
        wanted = find_language(language)
        default = self._contexts.get(self._defaults.get(wanted.name, ""))
        if default is None:
            default = self._add(Context(wanted, DEFAULT_CWD))
            self._defaults[wanted.name] = default.id
        return default

    async def create(self, language: str | None, cwd: str) -> Context:
        """A new context whose kernel runs. Raises UnknownLanguage, BadRequest (cwd), TooMany."""
        wanted = find_language(language)
        if not os.path.isabs(cwd) or not os.path.isdir(cwd):
            raise BadRequest(f"cwd: '{cwd}' is not the absolute path of a directory")
        context = self._add(Context(wanted, cwd))
        try:
            await context.start()
        except BaseException:
            self._contexts.pop(context.id, None)
            await context.close()
            raise
        return context

    async def restart(self, context_id: str) -> None:
        await self._find(context_id).restart()

    async def remove(self, context_id: str) -> None:
        context = self._find(context_id)
        del self._contexts[context_id]
        await context.close()

    def _add(self, context: Context) -> Context:
        if len(self._contexts) >= CONTEXTS_MAX:
            raise TooMany(f"there are {CONTEXTS_MAX} contexts; remove one first")
        self._contexts[context.id] = context
        return context

    def _find(self, context_id: str) -> Context:
        context = self._contexts.get(context_id)
        if context is None:
            raise UnknownContext(f"Context {context_id} not found")
        return context

    def _child_ended(self) -> None:
        for context in self._contexts.values():
            task = asyncio.create_task(context.check())
            self._checks.add(task)
            task.add_done_callback(self._checks.discard)
