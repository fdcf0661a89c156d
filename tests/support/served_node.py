"""A node with one check, for real servers that start it in different ways. Its state is at /state.

Environment: START_AT_IMPORT, START=off (the first request does not start it).
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from svcnode import Node, asgi, wsgi

START = os.environ.get("START") != "off"

node = Node("validator-7", version="v1.4.2")
threads: set[str] = set()


@node.check("cache", name="Cache", description="", interval="200ms", stale_after="1s")
async def cache_is_warm() -> None:
    threads.add(threading.current_thread().name)


if os.environ.get("START_AT_IMPORT"):
    node.start()


def state() -> bytes:
    cache = node.state("cache")
    return json.dumps(
        {"pid": os.getpid(), "code": cache.code, "reason": cache.reason, "threads": sorted(threads)}
    ).encode()


async def _asgi_fallback(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        raise ValueError("no lifespan here")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": state()})


def _wsgi_fallback(environ: Any, start_response: Any) -> list[bytes]:
    start_response("200 OK", [])
    return [state()]


asgi_app = asgi(node, fallback=_asgi_fallback, start=START)
wsgi_app = wsgi(node, fallback=_wsgi_fallback, start=START)


def litestar_app() -> Any:
    from litestar import Litestar
    from litestar import asgi as mount

    return Litestar(route_handlers=[mount("/", is_mount=True, copy_scope=True)(asgi_app)])


def quart_app() -> Any:
    from hypercorn.middleware import DispatcherMiddleware
    from quart import Quart

    return DispatcherMiddleware({"/quart": Quart(__name__), "": asgi_app})
