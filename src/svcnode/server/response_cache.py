"""Answers ready to be sent: encoded when something changed or the second turned, not when they are asked for.

`recall` is what nearly every request comes to: three comparisons, or a look into a dictionary after them. The first
two are what makes it true: a change of the node, the turn of the second (`Date`) and the moment at which a service
could lapse all end the life of every ready answer at once. The third finds out that somebody asks in the same bytes
as whoever asked last, as most do: to compare them costs far less than to hash them.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from svcnode.api import routing
from svcnode.api.spec import Handler, Request, Response
from svcnode.clock import monotonic_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.node import Node

MAX_ENTRIES = 1024  # of targets, of remembered requests, of answers
MAX_CACHED_REQUEST_BYTES = 2048  # of one request; with the line above: 2 MiB at most
MEMFD_MIN_BYTES = 32 * 1024

# In English whatever the locale, as HTTP wants them.
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """What is asked for, with all settled that does not depend on the node."""

    handler: Handler
    is_head: bool


class MemfdResponse(bytes):
    """A response that also lies in a file in memory, from where the kernel sends it without copying it."""

    fd: int

    def __del__(self) -> None:
        os.close(self.fd)


class ResponseCache:
    """The answers of one node under its prefixes."""

    def __init__(
        self,
        node: Node,
        prefixes: tuple[str, ...],
        clock: Callable[[], float] = monotonic_s,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._prefixes = prefixes
        self._clock = clock
        self._wall_clock = wall_clock
        self._resolved: dict[tuple[str, bytes], ResolvedRequest] = {}
        self._requests: dict[bytes, ResolvedRequest] = {}
        self._by_handler: dict[Handler, Response] = {}  # good until the node changes
        self._by_request: dict[ResolvedRequest, bytes] = {}  # good until then, or until the second turns
        self._by_raw: dict[bytes, bytes] = {}  # the same ones, by remembered request
        self._last_raw = self._last_response = b""  # of those, the one that was recalled last
        self._revision = -1
        self._valid_until_s = 0.0
        self._date = ""
        self._date_until_s = 0.0

    def get(self, raw_request: bytes, now_s: float) -> bytes | None:
        """The response to a remembered request, for a client that speaks HTTP/1.1 and stays connected."""
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

    def put(self, raw_request: bytes, target: ResolvedRequest) -> None:
        """From now on these bytes, as one whole request, are known to ask for this."""
        if len(raw_request) <= MAX_CACHED_REQUEST_BYTES:
            if _clear_if_full(self._requests):
                self._by_raw.clear()
            self._requests[raw_request] = target

    def resolve(self, method: str, path: bytes, query: bytes) -> ResolvedRequest:
        key = (method, path + b"?" + query)
        found = self._resolved.get(key)
        if found is None:
            _clear_if_full(self._resolved)
            reply = routing.route(Request(method, path, query), self._prefixes)
            found = self._resolved[key] = ResolvedRequest(reply, is_head=method == "HEAD")
        return found

    def encoded_response(self, target: ResolvedRequest, connection: str = "") -> bytes:
        """The response as of now; `connection` is the value of that header, where one is needed."""
        answer = self.current_response(target)
        if connection or answer.cause is not None:
            return self.encode(answer, is_head=target.is_head, connection=connection)
        response = self._by_request.get(target)
        if response is None:
            _clear_if_full(self._by_request)
            response = self._by_request[target] = _in_memfd(self.encode(answer, is_head=target.is_head))
        return response

    def current_response(self, target: ResolvedRequest) -> Response:
        if self._clock() >= self._valid_until_s or self._node.revision != self._revision:
            self._refresh()
        answer = self._by_handler.get(target.handler)
        if answer is None:
            answer = routing.log_failure(target.handler(self._node))
            if answer.cause is None:
                _clear_if_full(self._by_handler)
                self._by_handler[target.handler] = answer
        return answer

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
        node.expire_stale()  # silence since the last change is a change, too
        if node.revision != self._revision:
            self._by_handler.clear()
            # Read before any answer is made: should the node change in between, what is made then counts as old.
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
    """What is kept is bounded: when somebody asks for ever new things, it begins again."""
    if len(entries) < MAX_ENTRIES:
        return False
    entries.clear()
    return True


def _in_memfd(response: bytes) -> bytes:
    if len(response) < MEMFD_MIN_BYTES or not hasattr(os, "memfd_create"):
        return response
    try:
        file = os.memfd_create("svcnode response")
    except OSError:  # no file descriptor is left, most likely
        return response
    large = MemfdResponse(response)
    large.fd = file
    with suppress(OSError):  # what does not lie in the file is sent the other way
        os.write(file, response)
    return large
