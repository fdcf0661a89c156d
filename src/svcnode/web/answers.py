"""Answers ready to be sent: encoded when something changed or the second turned, not when they are asked for.

`recall` is what nearly every request comes to: two comparisons and one look into a dictionary. The comparisons are
what makes it true: a change of the node, the turn of the second (`Date`) and the moment at which a service could
lapse all end the life of every ready answer at once.
"""

from __future__ import annotations

import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from svcnode.spec import Answer, Request
from svcnode.web import site

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.node import Node
    from svcnode.spec import View

MAX_TARGETS = 1024
MAX_REMEMBERED_REQUESTS = 1024
MAX_REMEMBERED_BYTES = 2048  # of one request; with the line above: 2 MiB at most

log = logging.getLogger("svcnode.web")

# In English whatever the locale, as HTTP wants them.
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Target:
    """What is asked for, with all settled that does not depend on the node."""

    __slots__ = ("is_head", "reply")

    def __init__(self, reply: Callable[[View], Answer], *, is_head: bool) -> None:
        self.reply = reply
        self.is_head = is_head


class AnswerTable:
    """The answers of one node under its prefixes."""

    def __init__(
        self,
        node: Node,
        prefixes: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._prefixes = prefixes
        self._clock = clock
        self._wall_clock = wall_clock
        self._targets: dict[tuple[str, bytes], Target] = {}
        self._remembered: dict[bytes, Target] = {}
        self._ready: dict[bytes, bytes] = {}  # from a remembered request to its response
        self._revision = -1
        self._fresh_until_s = 0.0
        self._date = ""
        self._date_until_s = 0.0

    def recall(self, raw: bytes, now_s: float) -> bytes | None:
        """The response to a remembered request, for a client that speaks HTTP/1.1 and stays connected."""
        if now_s >= self._fresh_until_s or self._node.revision != self._revision:
            self._refresh()
        response = self._ready.get(raw)
        if response is None and raw in self._remembered:
            response = self._ready[raw] = self.response(self._remembered[raw])
        return response

    def remember(self, raw: bytes, target: Target) -> None:
        """From now on these bytes, as one whole request, are known to ask for this."""
        if len(raw) > MAX_REMEMBERED_BYTES:
            return
        if len(self._remembered) >= MAX_REMEMBERED_REQUESTS:  # somebody asks for ever new things: begin again
            self.forget()
        self._remembered[raw] = target

    def forget(self) -> None:
        self._remembered.clear()
        self._ready.clear()

    def target(self, method: str, path: bytes, query: bytes) -> Target:
        key = (method, path + b"?" + query)
        found = self._targets.get(key)
        if found is None:
            if len(self._targets) >= MAX_TARGETS:
                self._targets.clear()
            reply = site.route(Request(method, path, query), self._prefixes)
            found = self._targets[key] = Target(reply, is_head=method == "HEAD")
        return found

    def response(self, target: Target, connection: str = "") -> bytes:
        """The response as of now; `connection` is the value of that header, where one is needed."""
        return self.encode(self.answer(target), is_head=target.is_head, connection=connection)

    def answer(self, target: Target) -> Answer:
        answer = target.reply(self._node)
        if answer.cause is not None:
            log.error("answering failed; the client got %d", answer.code, exc_info=answer.cause)
        return answer

    def encode(self, answer: Answer, *, is_head: bool = False, connection: str = "") -> bytes:
        headers = [*answer.headers, ("Date", self._date_now())]
        if connection:
            headers.append(("Connection", connection))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 {answer.code} {_PHRASES.get(answer.code, '')}\r\n{lines}\r\n".encode("latin-1")
        return head if is_head else head + answer.body

    def _refresh(self) -> None:
        self._ready.clear()
        node = self._node
        node.settle()  # silence since the last change is a change, too
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
