"""Bodies of requests, checked once. Python's SDK sends null for what is not asked for."""

import json
from dataclasses import dataclass
from typing import Any

DEFAULT_CWD = "/home/user"


class BadRequest(Exception):
    """The body is not what the route takes; says which field and why."""


@dataclass(frozen=True)
class ExecuteRequest:
    code: str
    context_id: str | None
    language: str | None
    env_vars: dict[str, str]

    @classmethod
    def parse(cls, body: bytes) -> "ExecuteRequest":
        fields = _object(body)
        code = fields.get("code")
        if not isinstance(code, str):
            raise BadRequest("code: a string is needed")
        context_id, language = _text(fields, "context_id"), _text(fields, "language")
        if context_id and language:
            raise BadRequest("Only one of context_id or language can be provided")
        return cls(code, context_id, language, _variables(fields.get("env_vars")))


@dataclass(frozen=True)
class ContextRequest:
    language: str | None
    cwd: str

    @classmethod
    def parse(cls, body: bytes) -> "ContextRequest":
        fields = _object(body)
        return cls(_text(fields, "language"), _text(fields, "cwd") or DEFAULT_CWD)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadRequest("the body is not a JSON object")
    return value


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"{name}: a string is needed")
    return value or None


def _variables(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest("env_vars: an object of strings is needed")
    for name, text in value.items():
        if not isinstance(text, str):
            raise BadRequest(f"env_vars.{name}: a string is needed")
        if not name or "=" in name or "\0" in name + text:
            raise BadRequest(f"env_vars: {name!r} is empty, has a '=', or it or its value has a NUL")
    return value
