"""Node health written by hand, for uvicorn and granian."""

from __future__ import annotations

from typing import Any

from benchmarks.payloads import EXTRA_HEADERS, HEALTH

_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in EXTRA_HEADERS.items()]
_START = {"type": "http.response.start", "status": 200, "headers": [*_RAW_HEADERS, (b"content-length", b"0")]}
_BODY = {"type": "http.response.body", "body": b""}


async def bare(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """The smallest ASGI application: 200 for every request."""
    if scope["type"] == "http":
        await send(_START)
        await send(_BODY)


def fastapi() -> Any:
    from fastapi import FastAPI, Response

    app = FastAPI()

    @app.get(HEALTH)
    async def health() -> Response:
        return Response(headers=EXTRA_HEADERS)

    return app
