"""The sandbox's agent: the environment that the sandbox was created with, and which sandbox this is."""

import json
from pathlib import Path
from types import TracebackType

import aiohttp

URL = "http://localhost:49983/envs"
TIMEOUT_S = 5.0
# The agent writes these when a machine learns which sandbox it is.
IDENTITY_DIR = Path("/run/e2b")
IDENTITY = ("E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID")


class TokenRefused(Exception):
    """The caller's access token is not the sandbox's."""


class AgentUnreachable(Exception):
    """The agent does not answer, or not as it should."""


def sandbox_id() -> str:
    """Which sandbox this machine is now: another after each start from a snapshot and each fork. Empty: not known."""
    return _identity("E2B_SANDBOX_ID") or ""


def _identity(name: str) -> str | None:
    try:
        return (IDENTITY_DIR / f".{name}").read_text().strip()
    except OSError:
        return None


class Agent:
    """Asked for each run: it is near, and what it says may change when the machine becomes another sandbox."""

    _session: aiohttp.ClientSession

    async def __aenter__(self) -> "Agent":
        # No connection is kept: one from before a snapshot leads nowhere after it.
        connector = aiohttp.TCPConnector(force_close=True)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=TIMEOUT_S))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def environment(self, token: str | None) -> dict[str, str]:
        """The environment of every process of this sandbox. The token is checked by the agent on the way.
        Raises TokenRefused, AgentUnreachable."""
        headers = {"X-Access-Token": token} if token else {}
        try:
            async with self._session.get(URL, headers=headers) as answer:
                if answer.status == 401:
                    raise TokenRefused("unauthorized: the X-Access-Token header is missing or wrong")
                answer.raise_for_status()
                variables: dict[str, str] = json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise AgentUnreachable(f"the sandbox's agent does not answer: {error!r}") from error
        identity = {name: value for name in IDENTITY if (value := _identity(name))}
        return identity | variables
