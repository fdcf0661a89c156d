"""Sends questions in datagrams, over UDP or the kernel's ping sockets, again and again until an answer arrives.

A datagram may be lost, so the question is sent again every second, until the deadline of the check ends it. If a name
has several addresses, they are asked in turn, and in each round for longer than in the round before.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from svcnode.core.codes import ReasonCode
from svcnode.net.connect import address_family, raise_if_own_network
from svcnode.net.dns import is_ip_address, resolve_host
from svcnode.net.os_errors import CodedOSError, InconclusiveError
from svcnode.net.trace import step

if TYPE_CHECKING:
    from collections.abc import Sequence

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")

PAUSE_S = 1.0  # before the question is sent again
_MAX_ANSWER_BYTES = 65_535


class InvalidAnswerError(CodedOSError):
    """A datagram that does not answer the question. The right answer may still follow it."""

    def __init__(self, text: str, code: ReasonCode = ReasonCode.PROTOCOL_ERROR) -> None:
        super().__init__(text, code)


class Question(Protocol[T_co]):
    def open_socket(self, family: socket.AddressFamily) -> socket.socket: ...

    def encode(self) -> bytes:
        """The datagram to send. An answer to an earlier one may still arrive."""

    def decode(self, data: bytes) -> T_co:
        """The answer. Raises `InvalidAnswerError`, or any other `OSError` to end the question."""


class UdpQuestion:
    """The socket of a question over UDP."""

    def open_socket(self, family: socket.AddressFamily) -> socket.socket:
        return socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)


async def addresses_of(host: str, port: int) -> list[tuple[str, int]]:
    return [(address, port) for address in ([host] if is_ip_address(host) else await resolve_host(host))]


async def ask(
    question: Question[T], addresses: Sequence[tuple[str, int]], step_name: str = "exchange"
) -> tuple[T, tuple[str, int]]:
    """The first answer, and the address that it is from. Raises `OSError` when each address gave an error in turn."""
    patience_s = PAUSE_S if len(addresses) > 1 else None  # with each address
    while True:
        errors: list[OSError] = []
        for address in addresses:
            try:
                with step(step_name, address[0]):
                    return await _ask_one(question, address, patience_s), address
            except TimeoutError:
                pass
            except OSError as exc:
                errors.append(exc)
        if len(errors) == len(addresses):
            raise next((exc for exc in errors if not isinstance(exc, InconclusiveError)), errors[0])
        if patience_s is not None:
            patience_s *= 2


async def _ask_one(question: Question[T], address: tuple[str, int], patience_s: float | None) -> T:
    """Raises TimeoutError on silence."""
    with question.open_socket(address_family(address[0])) as sock:
        try:
            sock.connect(address)  # only datagrams from there are received, and errors of the network
            async with asyncio.timeout(patience_s):
                while True:
                    sock.send(question.encode())
                    with suppress(TimeoutError):
                        return await _answer(question, sock)
        except TimeoutError:
            raise
        except OSError as exc:
            raise_if_own_network(exc, address[0])
            raise


async def _answer(question: Question[T], sock: socket.socket) -> T:
    """Raises TimeoutError on silence, and the last `InvalidAnswerError` if there were only invalid answers."""
    invalid: InvalidAnswerError | None = None
    try:
        async with asyncio.timeout(PAUSE_S):
            while True:
                data = await asyncio.get_running_loop().sock_recv(sock, _MAX_ANSWER_BYTES)
                try:
                    return question.decode(data)
                except InvalidAnswerError as exc:
                    invalid = exc
    except TimeoutError:
        if invalid is None:
            raise
        raise invalid from None
