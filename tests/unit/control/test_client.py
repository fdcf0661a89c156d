"""The clients against servers that answer, close, hang and talk nonsense."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from svcnode.control import AsyncClient, Client
from svcnode.core.errors import ControlError, ControlUnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Ask = Callable[..., object]

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"health":1}'
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


class Server:
    """Answers each request with the next bytes; None closes the connection, "" hangs."""

    def __init__(self, path: Path, responses: list[bytes | None]) -> None:
        self.requests: list[bytes] = []
        self.connections = 0
        self._responses = responses
        self._open: list[socket.socket] = []
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.bind(str(path))
        self.sock.listen()

    def run(self) -> None:
        with suppress(OSError):  # closed by `close`
            while self._responses:
                self._serve(self.sock.accept()[0])

    def _serve(self, connection: socket.socket) -> None:
        self._open.append(connection)
        self.connections += 1
        while self._responses and (request := connection.recv(65536)):
            self.requests.append(request)
            response = self._responses.pop(0)
            if response is None:
                connection.close()
                return
            connection.sendall(response)

    def close(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        for connection in self._open:
            connection.close()


@contextmanager
def serving(path: Path, *responses: bytes | None) -> Iterator[Server]:
    server = Server(path, list(responses))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    yield server
    server.close()
    thread.join()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.sock"


def sync_node(path: Path, times: int = 1, timeout_s: float = 5) -> object:
    with Client(path, timeout_s=timeout_s) as client:
        return [client.node() for _ in range(times)][-1]


def async_node(path: Path, times: int = 1, timeout_s: float = 5) -> object:
    async def ask() -> object:
        async with AsyncClient(path, timeout_s=timeout_s) as client:
            return [await client.node() for _ in range(times)][-1]

    return asyncio.run(ask())


BOTH = pytest.mark.parametrize("ask", [sync_node, async_node])


@BOTH
def test_a_connection_is_reused(ask: Ask, path: Path) -> None:
    with serving(path, OK, OK) as server:
        assert ask(path, 2) == {"health": 1}
        assert server.connections == 1


@BOTH
def test_a_request_on_a_connection_that_was_closed_meanwhile_is_repeated(ask: Ask, path: Path) -> None:
    with serving(path, OK, None, OK) as server:
        assert ask(path, 2) == {"health": 1}
        assert server.connections == 2
        assert server.requests[1] == server.requests[2]


@BOTH
def test_a_request_on_a_new_connection_is_not_repeated(ask: Ask, path: Path) -> None:
    with serving(path, None, OK) as server:
        with pytest.raises(ControlUnreachableError):
            ask(path)
        assert server.connections == 1


@BOTH
def test_a_response_with_connection_close_ends_the_connection(ask: Ask, path: Path) -> None:
    with serving(path, OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), OK):
        assert ask(path) == {"health": 1}


@BOTH
@pytest.mark.parametrize(
    "response",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{x",
    ],
)
def test_a_response_that_is_not_one_of_a_node_is_an_error(ask: Ask, path: Path, response: bytes) -> None:
    with serving(path, response), pytest.raises(ControlUnreachableError, match="not one of a node"):
        ask(path)


@BOTH
def test_a_head_that_does_not_end_is_an_error(ask: Ask, path: Path) -> None:
    with serving(path, b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000), pytest.raises(ControlUnreachableError):
        ask(path, timeout_s=1)


@BOTH
def test_a_node_that_does_not_answer_is_an_error_in_time(ask: Ask, path: Path) -> None:
    with serving(path, b"", b""), pytest.raises(ControlUnreachableError, match="no response in time"):
        ask(path, timeout_s=0.2)


@BOTH
def test_an_error_has_its_status_message_and_pointer(ask: Ask, path: Path) -> None:
    body = b'{"message":"wrong","pointer":"/ttl"}'
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(path, head + body), pytest.raises(ControlError, match="wrong") as caught:
        ask(path)
    assert (caught.value.status, caught.value.pointer) == (400, "/ttl")


@BOTH
def test_a_missing_socket_is_an_error_that_names_it(ask: Ask, path: Path) -> None:
    with pytest.raises(ControlUnreachableError, match=f"{path}: no node listens there"):
        ask(path)


def test_the_path_may_be_in_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVCNODE_CONTROL", f"unix:{path}")
    assert Client().path == AsyncClient().path == path
    monkeypatch.delenv("SVCNODE_CONTROL")
    with pytest.raises(ControlUnreachableError, match="SVCNODE_CONTROL"):
        Client()


def test_the_requests_of_a_client(path: Path) -> None:
    with serving(path, *[NO_CONTENT] * 4) as server, Client(path) as client:
        client.beat("a/b", "down", "exit status 1", code="x_exit")
        client.deregister("ä", revision=7)
        client.set_issue("disk: full")
        client.undrain()
    assert server.requests[0].startswith(b"PUT /v1/services/a%2Fb/status HTTP/1.1\r\nHost: localhost\r\n")
    assert server.requests[0].endswith(b'\r\n\r\n{"status": "down", "reason": "exit status 1", "code": "x_exit"}')
    assert server.requests[1].startswith(b"DELETE /v1/services/%C3%A4 HTTP/1.1\r\n")
    assert b'\r\nIf-Match: "7"\r\n' in server.requests[1]
    assert server.requests[2].startswith(b"PUT /v1/issues/disk%3A%20full HTTP/1.1\r\n")
    assert server.requests[3].startswith(b"DELETE /v1/drain HTTP/1.1\r\n")


def test_a_cancelled_request_ends_its_connection(path: Path) -> None:
    """Its response must not be read as the response to the next request."""

    async def ask() -> None:
        async with AsyncClient(path) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.node()
            assert client._streams is None

    with serving(path, b"", b""):
        asyncio.run(ask())
