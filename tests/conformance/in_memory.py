"""A run of the checks without sockets and in virtual time: quick, and the same every time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from unittest import mock

from svcnode.conformance.run import Report, run_checks
from svcnode.conformance.target import parse_target
from tests.conformance.conforming_node import ConformingNode, Request, is_closing, parse_request, serialize
from tests.support.virtual_time import run_in_virtual_time

if TYPE_CHECKING:
    from tests.conformance.conforming_node import Response


class MemoryServer:
    """`connect` stands in for `asyncio.open_connection`."""

    def __init__(self, node: ConformingNode) -> None:
        self.node = node
        self.requests: list[Request] = []
        self.open_connections = 0

    def concurrent_connections(self) -> int:
        return self.open_connections

    async def connect(self, *_: object, **__: object) -> tuple[asyncio.StreamReader, _Connection]:
        connection = _Connection(self)
        return connection.reader, connection


class _Connection:
    """The writer of the client and its transport in one."""

    def __init__(self, server: MemoryServer) -> None:
        self.reader = asyncio.StreamReader()
        self.transport = self
        self._server = server
        self._requests = 0
        self._is_closed = False  # by the server
        server.open_connections += 1

    def write(self, head: bytes) -> None:
        if self._is_closed:
            return
        asked, is_last = parse_request(head, self._requests)
        self._requests += 1
        self._server.requests.append(asked)
        reply = self._server.node.respond(asked)
        asyncio.get_running_loop().call_later(reply.delay_s, self._send, asked, reply, is_last)

    def _send(self, asked: Request, reply: Response, is_last: bool) -> None:
        self.reader.feed_data(serialize(asked, reply, is_last=is_last))
        if is_last or is_closing(reply):
            self._is_closed = True
            self.reader.feed_eof()

    async def drain(self) -> None:
        pass

    def abort(self) -> None:
        self._server.open_connections -= 1


def run_in_memory(node: ConformingNode, **options: Any) -> tuple[Report, MemoryServer]:
    server = MemoryServer(node)
    node.server = server  # type: ignore[attr-defined]
    with mock.patch("asyncio.open_connection", server.connect):
        run = run_checks(parse_target("http://node.example"), timeout_s=10.0, **options)
        return run_in_virtual_time(run), server


def report_of(node: ConformingNode) -> Report:
    report, _ = run_in_memory(node)
    return report
