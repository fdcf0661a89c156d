"""The contract between a server and an application that is mounted next to the interface.

The interface is served from encoded responses. An application may take longer, or send a stream of events.
A connection parses the next request when the response to the current one is complete.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol

from svcnode.api.routing import log_failure
from svcnode.api.spec import INTERNAL_ERROR, Response, error_response

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable

    from svcnode.api.spec import Request

PROXY_HEADERS = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
)
FETCH_METADATA_HEADERS = frozenset({b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site"})
# The headers that an application can read. The parser drops all others.
RETAINED_HEADERS = (
    PROXY_HEADERS
    | FETCH_METADATA_HEADERS
    | {
        b"accept",
        b"accept-encoding",
        b"authorization",
        b"host",
        b"if-match",
        b"if-none-match",
        b"last-event-id",
        b"origin",
    }
)


PUSH_METHODS = ("GET", "HEAD", "POST")
HANDLER_TIMED_OUT = error_response(503, "Timeout: the server did not complete the response in time")
HANDLER_TIMEOUT_S = 30.0


class StreamWriter(Protocol):
    """The connection that a stream is written to."""

    @property
    def max_live_s(self) -> float | None:
        """How long a stream may wait for new data; None: without a limit."""

    @property
    def buffered_bytes(self) -> int:
        """Bytes written but not yet sent: the client reads slowly, or not at all."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until most of the buffer is sent."""


class StreamingResponse(NamedTuple):
    """A response of unknown length. The connection closes when `write_body` returns."""

    head: Response
    write_body: Callable[[StreamWriter], Awaitable[None]]


class App(Protocol):
    def matches(self, path: bytes) -> bool:
        """True if this application handles the path."""

    def rejection(self, request: Request) -> Response | None:
        """The response to a request that is not allowed; None if it is allowed."""

    async def handle(self, request: Request) -> Response | StreamingResponse: ...


async def call_handler(handler: Callable[[], Awaitable[Response | StreamingResponse]]) -> Response | StreamingResponse:
    """Every failure is a response. The cause goes to the log, not to the client."""
    try:
        async with asyncio.timeout(HANDLER_TIMEOUT_S) as deadline:
            response = await handler()
    except Exception as exc:  # noqa: BLE001  as the docstring says
        response = replace(HANDLER_TIMED_OUT if deadline.expired() else INTERNAL_ERROR, cause=exc)
    return log_failure(response) if isinstance(response, Response) else response


class Closable(Protocol):
    def close(self) -> None: ...


class Mount:
    """The application mounted on one listener. It can be replaced while the listener is open."""

    def __init__(
        self,
        app: App | None = None,
        *,
        push: App | None = None,
        kept_body_bytes: int = 0,
        max_body_bytes: int | None = None,
        peer_user: Callable[[socket.socket], str | None] | None = None,
    ) -> None:
        self.app = app
        self.push = push  # receives the requests to its paths
        self.public: App | None = None  # as well
        self.kept_body_bytes = kept_body_bytes  # how much of the body of a request an application gets
        self.max_body_bytes = max_body_bytes  # of a request that is not refused; None: the limit of the server
        self.peer_user = peer_user  # of a client, or None if it may not connect; without it, every client may
        self.open_streams: set[Closable] = set()

    def app_for(self, request: Request) -> App | None:
        if self.push is not None and request.method in PUSH_METHODS and self.push.matches(request.path):
            return self.push
        if self.public is not None and self.public.matches(request.path):
            return self.public
        return self.app if self.app is not None and self.app.matches(request.path) else None

    def set_app(self, app: App | None) -> None:
        """Replace the application and close the open streams: clients reconnect under the new access rules."""
        self.app = app
        for stream in tuple(self.open_streams):
            stream.close()


def authorization_token(authorization: bytes) -> bytes:
    """The token of the header `Authorization`: a Bearer token, or the Basic password with any user name."""
    scheme, _, credentials = authorization.strip().partition(b" ")
    match scheme.lower():
        case b"bearer":
            return credentials.strip()
        case b"basic":
            import binascii  # most nodes have no token
            from base64 import b64decode

            try:
                return b64decode(credentials.strip(), validate=True).partition(b":")[2]
            except binascii.Error:
                return b""
        case _:
            return b""
