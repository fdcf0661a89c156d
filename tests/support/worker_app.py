"""A node in each worker of a server. Every response has the process id and whether this worker runs the checks.

Environment: WORKERS (the folder that they share), BACKEND (the port of a service), WEBHOOK and GROUP_WAIT (messages),
HISTORY (a file). The operator page is at /status.
"""

from __future__ import annotations

import os
from typing import Any

from svcnode import Node, OperatorOptions, asgi, wsgi
from svcnode.agent.embed.node import internals_of

node = Node("validator-7", version="v1.4.2")
node.share_states(os.environ["WORKERS"])
node.register(
    "db",
    probe=f"tcp://127.0.0.1:{os.environ['BACKEND']}",
    impact="critical",
    interval="200ms",
    timeout="150ms",
    rise=1,
    fall=2,
    tolerance="off",
    stale_after="2500ms",
)
node.register("indexer").up()
if "WEBHOOK" in os.environ:
    node.notify(webhook="${WEBHOOK}", group_wait=os.environ["GROUP_WAIT"], resolve_delay="0s")
if "HISTORY" in os.environ:
    node.record_history(os.environ["HISTORY"])


def own_headers() -> list[tuple[str, str]]:
    return [("X-Pid", str(os.getpid())), ("X-Checks", str(internals_of(node).checks.next_check_in_s("db") is not None))]


_page = OperatorOptions(path="/status")
_asgi = asgi(node, operator=_page)
_wsgi = wsgi(node, operator=_page)


async def asgi_app(scope: Any, receive: Any, send: Any) -> None:
    async def send_with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            added = [(name.lower().encode(), value.encode()) for name, value in own_headers()]
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    await _asgi(scope, receive, send_with_headers)


def wsgi_app(environ: Any, start_response: Any) -> Any:
    def start_with_headers(status: str, headers: list[tuple[str, str]]) -> Any:
        return start_response(status, [*headers, *own_headers()])

    return _wsgi(environ, start_with_headers)
