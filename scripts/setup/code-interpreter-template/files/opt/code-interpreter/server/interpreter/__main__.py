"""The server of port 49999. Exits when it cannot serve; whoever started it starts it again."""

import logging

from aiohttp import web

from interpreter.app import make_app

PORT = 49999
# Longer than the pools of those who call us keep a connection (E2B's proxy: 600 s).
KEEP_ALIVE_S = 640

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("traitlets").setLevel(logging.WARNING)
    web.run_app(
        make_app(),
        port=PORT,
        access_log=None,
        print=None,
        keepalive_timeout=KEEP_ALIVE_S,
        # A client that goes away ends its handler: that is how runs are interrupted.
        handler_cancellation=True,
    )
