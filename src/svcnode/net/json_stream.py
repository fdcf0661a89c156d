"""JSON values on a stream without lengths, one answer for each request: the IPC sockets of Ethereum clients.

go-ethereum and others end each value with a line break; some end it with nothing. So a value ends where its last brace
closes. What begins with anything but a brace is not an answer, whatever follows.
"""

from __future__ import annotations

import asyncio
from json import JSONDecodeError
from typing import Any

from svcnode.core.codes import ReasonCode
from svcnode.core.strict_json import parse_strict_json
from svcnode.net.connect import send
from svcnode.net.http_response import InvalidJson
from svcnode.net.os_errors import CodedOSError

_NO_ANSWER = "connection closed before the response was complete"


class JsonStreamProtocol(asyncio.Protocol):
    def __init__(self) -> None:
        self._received = bytearray()
        self._max_bytes = 0
        self._answer: asyncio.Future[Any] | None = None
        self._error: OSError | None = None

    async def ask(self, transport: asyncio.WriteTransport, request: bytes, max_bytes: int) -> Any:  # noqa: ANN401  any JSON value
        """The answer, or an `InvalidJson`. Raises `OSError`."""
        self._received.clear()
        self._max_bytes = max_bytes
        self._answer = asyncio.get_running_loop().create_future()
        if self._error is not None:
            raise self._error
        send(transport, request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            return
        self._received += data
        start = self._received.lstrip()
        if len(self._received) > self._max_bytes:
            text = f"response larger than {self._max_bytes // 1024} KiB"
            self._answer.set_exception(CodedOSError(text, ReasonCode.UNEXPECTED_RESPONSE))
        elif start and not start.startswith(b"{"):
            self._answer.set_result(InvalidJson())
        elif start.rstrip().endswith(b"}"):
            self._end_if_complete(bytes(start))

    def _end_if_complete(self, text: bytes) -> None:
        assert self._answer is not None
        try:
            self._answer.set_result(parse_strict_json(text))
        except JSONDecodeError:
            pass  # the brace of an inner value
        except ValueError as exc:
            self._answer.set_result(InvalidJson(str(exc)))

    def connection_lost(self, exc: Exception | None) -> None:
        error = exc if isinstance(exc, OSError) else CodedOSError(_NO_ANSWER, ReasonCode.CONNECTION_CLOSED)
        self._error = error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
