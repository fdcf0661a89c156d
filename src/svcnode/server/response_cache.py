"""Encoded responses, by the raw bytes of the request.

`get` serves nearly every request with three comparisons, or with one dictionary lookup after them. The first two
comparisons keep responses correct: all of them expire together when the node changes, when the second changes (`Date`)
and when evidence can become stale. The third finds a request with the same bytes as the previous one, the usual case;
comparing bytes is much faster than hashing them.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.api import routing
from svcnode.net.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.api.cors import CorsPolicy
    from svcnode.api.spec import Handler, Headers, Request, Response
    from svcnode.node.node_state import NodeState

MAX_ENTRIES = 1024  # in each dictionary
MAX_CACHED_REQUEST_BYTES = 2048  # per request: 2 MiB in total
MEMFD_MIN_BYTES = 32 * 1024

# HTTP dates are in English, whatever the locale.
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class ResolvedRequest(NamedTuple):
    """The part of a request that its response depends on."""

    handler: Handler
    is_head: bool


class MemfdResponse(bytes):
    """A response that is also in a memory file, from which the kernel sends it without copying."""

    fd: int

    def __del__(self) -> None:
        os.close(self.fd)


class ResponseCache:
    def __init__(
        self,
        node: NodeState,
        prefixes: tuple[str, ...],
        clock: Callable[[], float] = monotonic_s,
        wall_clock: Callable[[], float] = time.time,
        cors: CorsPolicy | None = None,
    ) -> None:
        self._node = node
        self._prefixes = prefixes
        self._cors = cors
        self._clock = clock
        self._wall_clock = wall_clock
        self._resolved: dict[tuple[str, bytes, bytes, Headers], ResolvedRequest] = {}
        self._requests: dict[bytes, ResolvedRequest] = {}
        self._by_handler: dict[Handler, Response] = {}  # valid until the node changes
        self._by_request: dict[ResolvedRequest, bytes] = {}  # valid until the node or the second changes
        self._by_raw: dict[bytes, bytes] = {}  # the same responses
        self._last_raw = self._last_response = b""  # the last one returned by `get`
        self._revision = -1
        self._valid_until_s = 0.0
        self._date = ""
        self._date_until_s = 0.0

    def set_routing(self, prefixes: tuple[str, ...], cors: CorsPolicy | None) -> None:
        self._prefixes = prefixes
        self._cors = cors
        for entries in (self._resolved, self._requests, self._by_handler, self._by_request, self._by_raw):
            entries.clear()
        self._last_raw = self._last_response = b""

    def get(self, raw_request: bytes, now_s: float) -> bytes | None:
        """The encoded response to a stored request (HTTP/1.1, keep-alive); None if the request is not stored."""
        if now_s >= self._valid_until_s or self._node.revision != self._revision:
            self._refresh()
        if raw_request == self._last_raw:
            return self._last_response
        response = self._by_raw.get(raw_request)
        if response is None and raw_request in self._requests:
            response = self._by_raw[raw_request] = self.encoded_response(self._requests[raw_request])
        if response is not None:
            self._last_raw, self._last_response = raw_request, response
        return response

    def put(self, raw_request: bytes, request: ResolvedRequest) -> None:
        """Store the raw bytes of one complete request."""
        if len(raw_request) <= MAX_CACHED_REQUEST_BYTES:
            if _clear_if_full(self._requests):
                self._by_raw.clear()
            self._requests[raw_request] = request

    def resolve(self, request: Request) -> ResolvedRequest:
        cors_headers = () if self._cors is None else self._cors.headers_for(request.headers.get(b"origin", b""))
        key = (request.method, request.path, request.query, cors_headers)
        resolved = self._resolved.get(key)
        if resolved is None:
            _clear_if_full(self._resolved)
            handler = routing.route(request, self._prefixes, cors_headers)
            resolved = self._resolved[key] = ResolvedRequest(handler, is_head=request.method == "HEAD")
        return resolved

    def encoded_response(self, request: ResolvedRequest) -> bytes:
        """The current response, for a connection that stays open."""
        response = self.current_response(request)
        if response.cause is not None:
            return self.encode(response, is_head=request.is_head)
        encoded = self._by_request.get(request)
        if encoded is None:
            _clear_if_full(self._by_request)
            encoded = self._by_request[request] = _in_memfd(self.encode(response, is_head=request.is_head))
        return encoded

    def current_response(self, request: ResolvedRequest) -> Response:
        if self._clock() >= self._valid_until_s or self._node.revision != self._revision:
            self._refresh()
        response = self._by_handler.get(request.handler)
        if response is None:
            response = routing.log_failure(request.handler(self._node))
            if response.cause is None:
                _clear_if_full(self._by_handler)
                self._by_handler[request.handler] = response
        return response

    def encode(self, response: Response, *, is_head: bool = False, connection: str = "") -> bytes:
        headers = [*response.headers, ("Date", self._current_date())]
        if connection:
            headers.append(("Connection", connection))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {response.code} {_PHRASES.get(response.code, '')}\r\n{lines}\r\n".encode("latin-1")
        return head if is_head else head + response.body

    def _refresh(self) -> None:
        self._last_raw = self._last_response = b""
        self._by_raw.clear()
        self._by_request.clear()
        node = self._node
        node.expire_stale()  # stale evidence changes the state, too
        if node.revision != self._revision:
            self._by_handler.clear()
            # Read before any response is made: if the node changes in between, the response expires.
            self._revision = node.revision
        self._current_date()
        self._valid_until_s = min(self._date_until_s, node.next_expiry_at_s)

    def _current_date(self) -> str:
        now_s = self._clock()
        if now_s >= self._date_until_s:
            wall_s = self._wall_clock()
            self._date = http_date(wall_s)
            self._date_until_s = now_s + 1.0 - wall_s % 1.0
        return self._date


def http_date(wall_s: float) -> str:
    now = time.gmtime(wall_s)
    day, month = _DAYS[now.tm_wday], _MONTHS[now.tm_mon - 1]
    return f"{day}, {now.tm_mday:02} {month} {now.tm_year} {now.tm_hour:02}:{now.tm_min:02}:{now.tm_sec:02} GMT"


def _clear_if_full(entries: dict[Any, Any]) -> bool:
    """Bounds the memory if clients send different requests each time."""
    if len(entries) < MAX_ENTRIES:
        return False
    entries.clear()
    return True


def _in_memfd(response: bytes) -> bytes:
    if len(response) < MEMFD_MIN_BYTES or not hasattr(os, "memfd_create"):
        return response
    try:
        fd = os.memfd_create("svcnode response")
    except OSError:  # usually no file descriptors left
        return response
    memfd_response = MemfdResponse(response)
    memfd_response.fd = fd
    with suppress(OSError):  # the connection writes the part that is not in the file
        os.write(fd, response)
    return memfd_response
