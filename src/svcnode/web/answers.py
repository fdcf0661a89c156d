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

from svcnode.clock import steady_s
from svcnode.spec import Answer, Reply, Request
from svcnode.web import site

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.node import Node

MAX_KEPT = 1024  # of targets, of remembered requests, of answers
MAX_REMEMBERED_BYTES = 2048  # of one request; with the line above: 2 MiB at most
LARGE_BYTES = 32 * 1024

# In English whatever the locale, as HTTP wants them.
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked for, with all settled that does not depend on the node."""

    reply: Reply
    is_head: bool


class LargeResponse(bytes):
    """A response that also lies in a file in memory, from where the kernel sends it without copying it."""

    file: int

    def __del__(self) -> None:
        os.close(self.file)


class AnswerTable:
    """The answers of one node under its prefixes."""

    def __init__(
        self,
        node: Node,
        prefixes: tuple[str, ...],
        clock: Callable[[], float] = steady_s,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._prefixes = prefixes
        self._clock = clock
        self._wall_clock = wall_clock
        self._targets: dict[tuple[str, bytes], Target] = {}
        self._remembered: dict[bytes, Target] = {}
        self._answers: dict[Reply, Answer] = {}  # good until the node changes
        self._responses: dict[Target, bytes] = {}  # good until then, or until the second turns
        self._ready: dict[bytes, bytes] = {}  # the same ones, by remembered request
        self._last_raw = self._last_response = b""  # of those, the one that was recalled last
        self._revision = -1
        self._fresh_until_s = 0.0
        self._date = ""
        self._date_until_s = 0.0

    def recall(self, raw: bytes, now_s: float) -> bytes | None:
        """The response to a remembered request, for a client that speaks HTTP/1.1 and stays connected."""
        if now_s >= self._fresh_until_s or self._node.revision != self._revision:
            self._refresh()
        if raw == self._last_raw:
            return self._last_response
        response = self._ready.get(raw)
        if response is None and raw in self._remembered:
            response = self._ready[raw] = self.response(self._remembered[raw])
        if response is not None:
            self._last_raw, self._last_response = raw, response
        return response

    def remember(self, raw: bytes, target: Target) -> None:
        """From now on these bytes, as one whole request, are known to ask for this."""
        if len(raw) <= MAX_REMEMBERED_BYTES:
            if _made_room_in(self._remembered):
                self._ready.clear()
            self._remembered[raw] = target

    def target(self, method: str, path: bytes, query: bytes) -> Target:
        key = (method, path + b"?" + query)
        found = self._targets.get(key)
        if found is None:
            _made_room_in(self._targets)
            reply = site.route(Request(method, path, query), self._prefixes)
            found = self._targets[key] = Target(reply, is_head=method == "HEAD")
        return found

    def response(self, target: Target, connection: str = "") -> bytes:
        """The response as of now; `connection` is the value of that header, where one is needed."""
        answer = self.answer(target)
        if connection or answer.cause is not None:
            return self.encode(answer, is_head=target.is_head, connection=connection)
        response = self._responses.get(target)
        if response is None:
            _made_room_in(self._responses)
            response = self._responses[target] = _filed(self.encode(answer, is_head=target.is_head))
        return response

    def answer(self, target: Target) -> Answer:
        if self._clock() >= self._fresh_until_s or self._node.revision != self._revision:
            self._refresh()
        answer = self._answers.get(target.reply)
        if answer is None:
            answer = site.noted(target.reply(self._node))
            if answer.cause is None:
                _made_room_in(self._answers)
                self._answers[target.reply] = answer
        return answer

    def encode(self, answer: Answer, *, is_head: bool = False, connection: str = "") -> bytes:
        headers = [*answer.headers, ("Date", self._date_now())]
        if connection:
            headers.append(("Connection", connection))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {answer.code} {_PHRASES.get(answer.code, '')}\r\n{lines}\r\n".encode("latin-1")
        return head if is_head else head + answer.body

    def _refresh(self) -> None:
        self._last_raw = self._last_response = b""
        self._ready.clear()
        self._responses.clear()
        node = self._node
        node.settle()  # silence since the last change is a change, too
        if node.revision != self._revision:
            self._answers.clear()
            # Read before any answer is made: should the node change in between, what is made then counts as old.
            self._revision = node.revision
        self._date_now()
        self._fresh_until_s = min(self._date_until_s, node.next_lapse_at_s)

    def _date_now(self) -> str:
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


def _made_room_in(kept: dict[Any, Any]) -> bool:
    """What is kept is bounded: when somebody asks for ever new things, it begins again."""
    if len(kept) < MAX_KEPT:
        return False
    kept.clear()
    return True


def _filed(response: bytes) -> bytes:
    if len(response) < LARGE_BYTES or not hasattr(os, "memfd_create"):
        return response
    try:
        file = os.memfd_create("svcnode response")
    except OSError:  # no file descriptor is left, most likely
        return response
    large = LargeResponse(response)
    large.file = file
    with suppress(OSError):  # what does not lie in the file is sent the other way
        os.write(file, response)
    return large
