"""From Jupyter's messages to the lines the SDKs read."""

import json
from datetime import datetime
from typing import Any

Event = dict[str, Any]

END: Event = {"type": "end_of_execution"}
#: Sent when there is nothing else, so that whoever stands between may see that we live. The SDKs pass over it.
KEEPALIVE: Event = {"type": "keepalive"}

#: What our kernel of JavaScript says for the value of a run and its failure (tslab-kernel.cjs).
VALUE = "application/vnd.aenv.value"
FAILURE = "application/vnd.aenv.failure"

_FIELDS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "e2b/data": "data",
    "e2b/chart": "chart",
}


def event_of(message: dict[str, Any]) -> Event | None:
    """None: nothing that a client hears of (comms, clear_output, updates of a display)."""
    content = message["content"]
    match message["msg_type"]:
        case "stream":
            date = message["header"]["date"]
            return {"type": content["name"], "text": content["text"], "timestamp": _nanoseconds(date)}
        case "display_data" if VALUE in content["data"]:
            return result({"text/plain": content["data"][VALUE]}, is_main=True)
        case "display_data" if FAILURE in content["data"]:
            return error(**json.loads(content["data"][FAILURE]))
        case "display_data":
            return result(content["data"], is_main=False)
        case "execute_result":
            return result(content["data"], is_main=True)
        case "error":
            return error(content.get("ename", ""), content.get("evalue", ""), "\n".join(content.get("traceback", ())))
        case _:
            return None


def result(bundle: dict[str, Any], *, is_main: bool) -> Event:
    event: Event = {"type": "result", "is_main_result": is_main, "extra": {}}
    for mime, data in bundle.items():
        field = _FIELDS.get(mime)
        if field is None:
            event["extra"][mime] = data
        elif data not in ({}, None) or field == "json":
            event[field] = data
    text = event.get("text")
    # A string's value, not the way it would be written in a program.
    if isinstance(text, str) and len(text) > 1 and text[0] == text[-1] == "'":
        event["text"] = text[1:-1]
    return event


def error(name: str, value: str, traceback: str = "") -> Event:
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def _nanoseconds(date: datetime | str) -> int:
    moment = date if isinstance(date, datetime) else datetime.fromisoformat(date)
    return int(moment.timestamp() * 1_000_000) * 1000
