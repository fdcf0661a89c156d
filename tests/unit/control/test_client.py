"""The clients against servers that answer, close, hang and talk nonsense."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.control import AsyncControlClient, ControlClient
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ControlError, ControlUnreachableError, InvalidValueError
from svcnode.core.model import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Ask = Callable[..., object]

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n{"health":1}'
NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


class Server:
    """Answers each request with what `answer` returns: None closes the connection, empty bytes are no response."""

    def __init__(self, path: Path, answer: Callable[[bytes], bytes | None]) -> None:
        self.requests: list[bytes] = []
        self._answer = answer
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.bind(str(path))
        self._sock.listen()
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def connections(self) -> int:
        return len(self._open)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self._open.append(self._sock.accept()[0])
                self._threads.append(threading.Thread(target=self._serve, args=(self._open[-1],), daemon=True))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while request := connection.recv(65536):
                self.requests.append(request)
                response = self._answer(request)
                if response is None:
                    connection.close()
                    return
                connection.sendall(response)

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()  # it may have accepted one more
        self._sock.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def serving(path: Path, *responses: bytes | None) -> Iterator[Server]:
    """One after another."""
    remaining = list(responses)
    with closing(Server(path, lambda _: remaining.pop(0))) as server:
        yield server


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "c.sock"


def sync_node(path: Path, times: int = 1, timeout_s: float = 5) -> object:
    with ControlClient(path, timeout=timeout_s) as client:
        return [client.node() for _ in range(times)][-1]


def async_node(path: Path, times: int = 1, timeout_s: float = 5) -> object:
    async def ask() -> object:
        async with AsyncControlClient(path, timeout=timeout_s) as client:
            return [await client.node() for _ in range(times)][-1]

    return asyncio.run(ask())


BOTH = pytest.mark.parametrize("ask", [sync_node, async_node])


@BOTH
def test_a_connection_is_reused_and_a_request_on_one_that_was_closed_meanwhile_is_repeated(
    ask: Ask, path: Path
) -> None:
    with serving(path, OK, OK, None, OK) as server:
        assert ask(path, 3) == {"health": 1}
        assert server.connections == 2
        assert len(server.requests) == 4
        assert server.requests[2] == server.requests[3]


@BOTH
def test_a_missing_socket_is_named_and_a_request_on_a_new_connection_is_not_repeated(ask: Ask, path: Path) -> None:
    with pytest.raises(ControlUnreachableError, match=f"{path}: no node listens there"):
        ask(path)
    with serving(path, None, OK) as server:
        with pytest.raises(ControlUnreachableError):
            ask(path)
        assert server.connections == 1


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
    with serving(path, response), pytest.raises(ControlUnreachableError) as raised:
        ask(path)
    assert not isinstance(raised.value.__cause__, OSError)  # a response has arrived


@BOTH
def test_a_node_that_does_not_answer_or_does_not_end_its_head_is_an_error_in_time(ask: Ask, path: Path) -> None:
    endless = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000
    for response in (b"", endless):
        with serving(path, response, b""), pytest.raises(ControlUnreachableError) as caught:
            ask(path, timeout_s=0.2)
        assert response or "no response in time" in str(caught.value)
        path.unlink()


@BOTH
def test_a_call_ends_in_time_though_its_response_comes_byte_by_byte(ask: Ask, path: Path) -> None:
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.recv(64 * 1024)
                for byte in OK:
                    connection.send(bytes([byte]))
                    time.sleep(0.05)

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(ControlUnreachableError, match="in time"):
            ask(path, timeout_s=0.3)
        thread.join()


def test_calls_at_the_same_time_share_no_time_limit_but_each_keeps_its_own(path: Path) -> None:
    async def ask() -> list[object]:
        async with AsyncControlClient(path, timeout=0.2) as client:
            return await asyncio.gather(*(client.node() for _ in range(20)), return_exceptions=True)

    async def main() -> list[object]:
        return await asyncio.wait_for(ask(), 2.0)

    with serving(path, *[b""] * 20):
        assert {type(result) for result in asyncio.run(main())} == {ControlUnreachableError}


def test_a_number_is_a_duration_in_seconds_unless_it_is_a_count(path: Path) -> None:
    with serving(path, OK, OK) as server, ControlClient(path) as client:
        client.register("db", probe="tcp://db:1", interval=0.5, timeout="2s", stale_after=90, rise=2)
        client.maintain("db", 3600.0)
    [registered, maintained] = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in server.requests]
    expected = {"probe": "tcp://db:1", "interval": "0.5s", "timeout": "2s", "stale_after": "90s", "rise": 2}
    assert (registered, maintained) == (expected, {"duration": "3600s"})


@BOTH
def test_an_error_has_its_status_message_and_pointer(ask: Ask, path: Path) -> None:
    body = b'{"message":"wrong","pointer":"/ttl"}'
    head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body)
    with serving(path, head + body), pytest.raises(ControlError, match="wrong") as caught:
        ask(path)
    assert (caught.value.status, caught.value.pointer) == (400, "/ttl")


def test_the_path_may_be_in_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVCNODE_CONTROL", f"unix:{path}")
    assert ControlClient().path == AsyncControlClient().path == path
    monkeypatch.delenv("SVCNODE_CONTROL")
    with pytest.raises(ControlUnreachableError, match="SVCNODE_CONTROL"):
        ControlClient()


def test_the_requests_of_a_client(path: Path) -> None:
    with serving(path, *[NO_CONTENT] * 4) as server, ControlClient(path) as client:
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


@pytest.mark.parametrize("reason", [None, b"\xff\n", OSError("no disk"), "a\ud800", "x" * 100_000])
def test_any_object_can_be_a_reason(path: Path, reason: object) -> None:
    with serving(path, *[NO_CONTENT] * 3) as server, ControlClient(path) as client:
        client.beat("a", "down", reason)
        client.set_issue("disk", reason)
        client.drain(reason)
    for request in server.requests:
        fields = json.loads(request.partition(b"\r\n\r\n")[2] or b"{}")
        assert fields.get("reason", "").isprintable()
        assert len(request) < 5000


def accept_even_ids(request: bytes) -> bytes:
    """The response to `beat(id)`."""
    time.sleep(0.001)  # so that a signal arrives in the middle
    refused = b'HTTP/1.1 409 Conflict\r\nContent-Length: 17\r\n\r\n{"message": "no"}'
    return NO_CONTENT if int(request.split(b"/")[3]) % 2 == 0 else refused


@pytest.fixture
def echo(path: Path) -> Iterator[Server]:
    with closing(Server(path, accept_even_ids)) as server:
        yield server


def is_accepted(client: ControlClient, number: int) -> bool:
    try:
        client.beat(str(number))
    except ControlError:
        return False
    return True


class LimitError(BaseException):
    """As of a time limit that a signal handler raises."""


# The handler may raise between any two instructions, also of the interpreter's own.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_call_after_one_that_a_signal_has_ended_gets_its_own_response(path: Path, echo: Server) -> None:
    def raise_limit(*_: object) -> None:
        raise LimitError

    old, ended = signal.signal(signal.SIGALRM, raise_limit), 0
    try:
        with ControlClient(path) as client:
            for number in range(100):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0005 * (1 + number % 3))
                    with suppress(ControlError):
                        client.beat(str(number))
                    time.sleep(0.1)  # until the signal, if the call was faster
                except LimitError:
                    ended += 1
                assert is_accepted(client, number + 1) == (number % 2 == 1)
    finally:
        signal.signal(signal.SIGALRM, old)
    assert ended


def test_a_call_after_one_that_was_cancelled_gets_its_own_response(path: Path, echo: Server) -> None:
    async def ask() -> None:
        async with AsyncControlClient(path) as client:
            for number in range(50):
                with suppress(TimeoutError, ControlError):
                    async with asyncio.timeout(0.0005 * (1 + number % 3)):
                        await client.beat(str(number))
                if number % 2:
                    await client.beat(str(number + 1))
                else:
                    with pytest.raises(ControlError):
                        await client.beat(str(number + 1))

    asyncio.run(ask())


def test_calls_of_several_threads_get_their_own_responses(path: Path, echo: Server) -> None:
    with ControlClient(path) as client, ThreadPoolExecutor(4) as threads:
        accepted = list(threads.map(lambda number: is_accepted(client, number), range(100)))
    assert accepted == [number % 2 == 0 for number in range(100)]
    assert echo.connections <= 4


def test_a_forked_child_has_its_own_connection_and_leaves_that_of_the_parent(path: Path, echo: Server) -> None:
    with ControlClient(path) as client:
        client.beat("0")
        child = os.fork()
        if not child:
            code = 1
            try:
                code = 0 if [is_accepted(client, number) for number in range(20)] == [True, False] * 10 else 2
                client.close()
            finally:
                os._exit(code)
        assert [is_accepted(client, number) for number in range(1, 21)] == [False, True] * 10
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        client.beat("0")
        assert echo.connections == 2


def test_a_forked_child_of_an_async_client_has_its_own_connection(path: Path, echo: Server) -> None:
    client = AsyncControlClient(path)

    async def beat(count: int) -> None:
        for _ in range(count):
            await client.beat("0")

    with asyncio.Runner() as runner:
        runner.run(beat(1))
        child = os.fork()
        if not child:
            code = 1
            try:
                with asyncio.Runner() as own:
                    own.run(beat(5))
                code = 0
            finally:
                os._exit(code)
        runner.run(beat(5))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert echo.connections == 2
        client.close()
        runner.run(asyncio.sleep(0))


@pytest.mark.parametrize(("status", "code"), [(Status.DOWN, b"timeout"), ("Down", 5), ("down", ReasonCode.TIMEOUT)])
def test_bad_news_may_have_any_form_of_status_and_code(path: Path, status: Any, code: Any) -> None:
    with serving(path, OK) as server, ControlClient(path) as client:
        client.beat("db", status, code=code)
    [request] = server.requests
    assert json.loads(request.partition(b"\r\n\r\n")[2])["status"] == "down"


@pytest.mark.parametrize("service_id", [None, 5])
def test_an_id_that_is_no_text_is_named(path: Path, service_id: Any) -> None:
    with pytest.raises(InvalidValueError, match="id"):
        ControlClient(path).beat(service_id, "down")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_client_may_be_used_in_one_loop_after_another(path: Path) -> None:
    client = AsyncControlClient(path)
    with serving(path, OK, OK, OK) as server:
        for _ in range(3):
            asyncio.run(client.beat("db", "down"))
    assert len(server.requests) == 3
    del client
    gc.collect()  # asyncio warns of connections whose loop was closed first
