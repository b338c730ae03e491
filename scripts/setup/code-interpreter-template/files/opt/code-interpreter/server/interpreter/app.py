"""The routes, as the SDKs call them: /execute streams lines of JSON, /contexts are the kernels, /health says ready."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from interpreter.agent import Agent, AgentUnreachable, TokenRefused
from interpreter.context import Context, ContextRemoved
from interpreter.contexts import Contexts, TooMany, UnknownContext
from interpreter.languages import UnknownLanguage
from interpreter.output import Event
from interpreter.requests import BadRequest, ContextRequest, ExecuteRequest

BODY_MAX_BYTES = 64 * 1024 * 1024
#: Of a request without code.
SMALL_BODY_MAX_BYTES = 64 * 1024

AGENT = web.AppKey("agent", Agent)
CONTEXTS = web.AppKey("contexts", Contexts)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app() -> web.Application:
    app = web.Application(client_max_size=BODY_MAX_BYTES, middlewares=[errors, browsers])
    app.on_response_prepare.append(allow_origin)
    app.cleanup_ctx.append(_parts)
    app.add_routes(
        [
            web.get("/health", health),
            web.post("/execute", execute),
            web.get("/contexts", list_contexts),
            web.post("/contexts", create_context),
            web.delete("/contexts/{id}", remove_context),
            web.post("/contexts/{id}/restart", restart_context),
        ]
    )
    return app


async def _parts(app: web.Application) -> AsyncIterator[None]:
    """The port is open, and so the template ready, only when the default kernel has run something."""
    async with Agent() as agent, Contexts() as contexts:
        app[AGENT] = agent
        app[CONTEXTS] = contexts
        await contexts.warm_up()
        yield


async def health(_request: web.Request) -> web.Response:
    return web.Response(text="OK")


async def execute(request: web.Request) -> web.StreamResponse:
    # Before anything is read: whoever has no token costs next to nothing.
    environment = await request.app[AGENT].environment(request.headers.get("X-Access-Token"))
    asked = ExecuteRequest.parse(await request.read())
    context = request.app[CONTEXTS].choose(asked.context_id, asked.language)
    run = context.run(asked.code, environment, asked.env_vars)
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
    try:
        await response.prepare(request)
        async for events in run.events():
            await response.write(b"".join(_line(event) for event in events))
        await response.write_eof()
    finally:
        run.abandon()
    return response


def _line(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


async def list_contexts(request: web.Request) -> web.Response:
    return web.json_response([_view(context) for context in request.app[CONTEXTS].all()])


async def create_context(request: web.Request) -> web.Response:
    body = await request.clone(client_max_size=SMALL_BODY_MAX_BYTES).read()
    asked = ContextRequest.parse(body)
    return web.json_response(_view(await request.app[CONTEXTS].create(asked.language, asked.cwd)))


async def remove_context(request: web.Request) -> web.Response:
    await request.app[CONTEXTS].remove(request.match_info["id"])
    return web.json_response(None)


async def restart_context(request: web.Request) -> web.Response:
    await request.app[CONTEXTS].restart(request.match_info["id"])
    return web.json_response(None)


def _view(context: Context) -> dict[str, str]:
    return {"id": context.id, "language": context.language.name, "cwd": context.cwd}


@web.middleware
async def errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers errors as plain text, which the SDKs show as it is."""
    try:
        return await handler(request)
    except (BadRequest, UnknownLanguage) as error:
        return web.Response(status=400, text=str(error))
    except TokenRefused as error:
        return web.Response(status=401, text=str(error))
    except (UnknownContext, ContextRemoved) as error:
        return web.Response(status=404, text=str(error))
    except TooMany as error:
        return web.Response(status=429, text=str(error))
    except AgentUnreachable as error:
        return web.Response(status=503, text=str(error))


@web.middleware
async def browsers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets pages of any origin call: access is by token, and by who may reach the port."""
    preflight = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
    if not preflight:
        return await handler(request)
    wanted = request.headers.get("Access-Control-Request-Headers", "*")
    allowed = {"Access-Control-Allow-Methods": "GET, POST, DELETE", "Access-Control-Allow-Headers": wanted}
    return web.Response(status=204, headers=allowed)


async def allow_origin(request: web.Request, response: web.StreamResponse) -> None:
    if "Origin" in request.headers:
        response.headers["Access-Control-Allow-Origin"] = "*"
