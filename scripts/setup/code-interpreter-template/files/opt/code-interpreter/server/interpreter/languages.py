"""What has to be said in a kernel's own language: there is no other way to change a running kernel's environment."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from jupyter_client.kernelspec import NATIVE_KERNEL_NAME, KernelSpecManager

#: Variables to set; None removes one.
Changes = Mapping[str, str | None]

_ALIASES = {"py": "python", "python3": "python", "js": "javascript", "ts": "typescript", "sh": "bash", "shell": "bash"}
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class UnknownLanguage(Exception):
    """There is no kernel for it; says which there are."""


@dataclass(frozen=True)
class Language:
    """A language with a kernel."""

    name: str
    #: Code that applies changes to the kernel's environment; None where nobody taught us how.
    set_environment: Callable[[Changes], str] | None = None
    #: Code that makes random numbers differ from those of other copies of this kernel; "" where that cannot be done.
    reseed: str = ""
    #: Code that has the kernel do once what every first run does, so that a snapshot has it behind it.
    warm_up: str = ""

    @property
    def kernel(self) -> str:
        """Of the same name, but for the one that Jupyter itself names."""
        return NATIVE_KERNEL_NAME if self.name == "python" else self.name


def _python_environment(changes: Changes) -> str:
    return (
        "(lambda env, new: [env.pop(k, None) if v is None else env.__setitem__(k, v) for k, v in new.items()])"
        f"(__import__('os').environ, {dict(changes)!r})"
    )


def _javascript_environment(changes: Changes) -> str:
    # One statement for each: what TypeScript would say of the types of a loop is nobody's business.
    return "\n".join(
        f"delete process.env[{json.dumps(name)}];"
        if value is None
        else f"process.env[{json.dumps(name)}] = {json.dumps(value)};"
        for name, value in changes.items()
    )


def _bash_environment(changes: Changes) -> str:
    return "\n".join(
        f"unset {name}" if value is None else "export {}='{}'".format(name, value.replace("'", "'\\''"))
        for name, value in changes.items()
        if _SHELL_NAME.fullmatch(name)
    )


# numpy's global generator was seeded before the machine was copied, if it was there already. What is made from now on
# (random.Random(), numpy.random.default_rng(), secrets, uuid) takes the kernel's fresh numbers anyway.
_PYTHON_RESEED = (
    "(lambda m: (__import__('random').seed(), 'numpy.random' in m and m['numpy.random'].seed(), None)[-1])"
    "(__import__('sys').modules)"
)

_PYTHON_WARM_UP = "get_ipython().display_formatter.format([1]) and print(end='')"

_KNOWN = {
    language.name: language
    for language in (
        Language("python", _python_environment, _PYTHON_RESEED, _PYTHON_WARM_UP),
        Language("javascript", _javascript_environment),
        Language("typescript", _javascript_environment),
        Language("bash", _bash_environment, "RANDOM=$(od -An -N4 -tu4 /dev/urandom)"),
    )
}


def find_language(name: str | None) -> Language:
    """The language of a request, Python when none is named; any kernel there is. Raises UnknownLanguage."""
    wanted = (name or "python").strip().lower()
    wanted = _ALIASES.get(wanted, wanted)
    installed = KernelSpecManager(ensure_native_kernel=False).find_kernel_specs()
    kernels = {_ALIASES.get(kernel, kernel) for kernel in installed}
    if wanted not in kernels:
        there = ", ".join(sorted(kernels))
        raise UnknownLanguage(f"language '{name}' has no kernel in this sandbox; there are: {there}")
    return _KNOWN.get(wanted, Language(wanted))
