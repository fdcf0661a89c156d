"""A node mounted in frameworks that treat paths in their own way. Run as a program with a name and a port."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from svcnode import Node, asgi, wsgi

SERVICES = ("db", "a/b c%")


def make_node() -> Node:
    node = Node("validator-7", version="v1.4.2")
    for service_id in SERVICES:
        node.register(service_id, name=service_id, description="").up()
    return node


def litestar() -> Any:
    from litestar import Litestar
    from litestar import asgi as mount

    node = make_node()
    handler = mount("/", is_mount=True, copy_scope=True)(asgi(node))
    return Litestar(route_handlers=[handler], lifespan=[node.lifespan])


def litestar_below_a_path() -> Any:
    from litestar import Litestar
    from litestar import asgi as mount

    return Litestar(route_handlers=[mount("/status", is_mount=True, copy_scope=True)(asgi(make_node()))])


def quart() -> Any:
    from quart import Quart

    node = make_node()
    app = Quart(__name__)
    app.asgi_app = asgi(node, fallback=app.asgi_app)
    return app


def quart_behind_dispatcher() -> Any:
    from hypercorn.middleware import DispatcherMiddleware
    from quart import Quart

    return DispatcherMiddleware({"/status": asgi(make_node()), "/": Quart(__name__)})


def run_uvicorn(app: Any, port: int) -> None:
    import uvicorn

    uvicorn.run(app, port=port, log_level="warning")


def run_hypercorn(app: Any, port: int) -> None:
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    asyncio.run(serve(app, config))


def run_cheroot(port: int) -> None:
    from cheroot.wsgi import Server

    Server(("127.0.0.1", port), wsgi(make_node())).start()


RUNNERS = {
    "litestar": lambda port: run_uvicorn(litestar(), port),
    "litestar-below-a-path": lambda port: run_uvicorn(litestar_below_a_path(), port),
    "quart": lambda port: run_hypercorn(quart(), port),
    "quart-behind-dispatcher": lambda port: run_hypercorn(quart_behind_dispatcher(), port),
    "cheroot": run_cheroot,
}

if __name__ == "__main__":
    RUNNERS[sys.argv[1]](int(sys.argv[2]))
