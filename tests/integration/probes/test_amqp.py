"""amqp:// and amqps:// against a real RabbitMQ and against scripted servers."""

from __future__ import annotations

import json
import re
import shlex
import threading
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from pamqp import commands
from pamqp.frame import marshal, unmarshal

from svcnode.core.codes import ReasonCode
from tests.support.backends import Backend, Peer, close, reset, sending, unresponsive
from tests.support.check_runner import CheckRunner
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import (
    assert_no_leaks,
    assert_reused,
    check_with_steps,
    reusing,
)
from tests.support.probe_assertions import becomes_true as becomes_true_async
from tests.support.servers.base import OwnPort
from tests.support.servers.rabbitmq import PASSWORD, QUEUE, USER, VHOST, RabbitServer, queue_definition
from tests.support.verdicts import CONNECTION_CLOSED, READY, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pamqp.base import Frame

    from tests.support.certificates import Certificate
    from tests.support.verdicts import ExpectedVerdict

OWN_QUEUE = "svcnode_write"
FULL_QUEUE = "full"  # rejects every message
WRITER, READER = "writer", "reader"  # users with the permissions that a write needs, and with none
LOST = "client unexpectedly closed TCP connection"  # logged for a client that did not close its session
AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
NOT_FOUND = failed(ReasonCode.NOT_FOUND)
SHUTTING_DOWN = failed(ReasonCode.SHUTTING_DOWN)


class Broker(RabbitServer):
    """With TLS on a second port, because a second broker would take seconds to start, and with the vhost / too."""

    tls_port = OwnPort()

    def __init__(self, folder: Path, certificate: Certificate) -> None:
        super().__init__(folder)
        self._tls = certificate

    def prepare(self) -> None:
        super().prepare()
        file = self.folder / "definitions.json"
        made = json.loads(file.read_text())
        made["vhosts"].append({"name": "/"})
        made["vhosts"].append({"name": "forbidden"})
        permissions, user = made["permissions"][0], made["users"][0]
        made["permissions"].append({**permissions, "vhost": "/"})
        made["users"] += [{**user, "name": name} for name in (WRITER, READER)]
        least = {**permissions, "configure": "^svcnode_write", "write": r"^amq\.default$", "read": "^$"}
        made["permissions"].append({**least, "user": WRITER})
        made["permissions"].append({**least, "user": READER, "configure": "^$", "write": "^$"})
        made["queues"].append({**queue_definition(OWN_QUEUE, {}), "vhost": "/"})
        made["queues"].append(queue_definition(FULL_QUEUE, {"x-max-length": 0, "x-overflow": "reject-publish"}))
        file.write_text(json.dumps(made))
        with (self.folder / "rabbitmq.conf").open("a") as config:
            config.write(f"listeners.ssl.1 = {self.host}:{self.tls_port}\n")
            config.write(f"ssl_options.certfile = {self._tls.certificate}\nssl_options.keyfile = {self._tls.key}\n")

    @property
    def tls_url(self) -> str:
        return f"amqps://{USER}:{quote(PASSWORD, safe='')}@{self.host}:{self.tls_port}/{VHOST}"

    def display_url(self, rest: str = f"/{VHOST}") -> str:
        """The URL without its password."""
        return f"amqp://{USER}:***@{self.host}:{self.port}{rest}"

    def url_with_path(self, rest: str) -> str:
        return self.url.removesuffix(f"/{VHOST}") + rest


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("rabbitmq"), certificate) as broker:
        yield broker


def test_a_broker_that_opens_a_channel_is_ready(check: CheckRunner, broker: Broker) -> None:
    assert check(broker.url) == READY
    assert check.steps(broker.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]


def test_a_wrong_password_is_failed_and_not_shown(check: CheckRunner, broker: Broker) -> None:
    verdict = check(broker.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(broker.display_url())
    url = f"amqp://127.0.0.1:{broker.port}"
    assert check(url, username=USER, password="not-the-password") == AUTH_FAILED


def test_an_unknown_vhost_is_failed(check: CheckRunner, broker: Broker) -> None:
    assert check(broker.url_with_path("/nowhere")) == NOT_FOUND


WRITE = ("write", "", True)
DISK_ALARM = not_ready(ReasonCode.STORAGE_FULL)
MEMORY_ALARM = not_ready(ReasonCode.OUT_OF_MEMORY)
PERMISSION_DENIED = failed(ReasonCode.PERMISSION_DENIED)


def message_counts(broker: RabbitServer) -> dict[str, int]:
    lines = broker.control("list_queues", "--no-table-headers", "-p", VHOST, "name", "messages").splitlines()
    return {name: int(count) for name, count in (line.split() for line in lines)}


def test_a_broker_that_confirms_a_message_is_ready(
    check: CheckRunner, broker: Broker, certificate: Certificate
) -> None:
    assert assert_no_leaks(check, broker.url, broker.port, write=True) == READY
    assert check.steps(broker.url, write=True)[2:] == [WRITE, ("exchange", "", True)]
    assert check(broker.tls_url, ca=str(certificate.certificate), write=True) == READY
    assert check(broker.url, write=QUEUE) == READY
    assert becomes_true(lambda: message_counts(broker) == {QUEUE: 0, FULL_QUEUE: 0, OWN_QUEUE: 0})


def test_a_queue_that_is_written_to_must_exist_and_accept_the_message(check: CheckRunner, broker: Broker) -> None:
    assert check(broker.url, write="invoices") == NOT_FOUND
    assert check(broker.url, write=FULL_QUEUE) == failed(ReasonCode.WRITE_FAILED)
    assert check(broker.url_with_path("/"), write=QUEUE) == NOT_FOUND
    # There, the queue of the checks was declared with other arguments.
    assert check(broker.url_with_path("/"), write=True) == failed(ReasonCode.WRITE_FAILED)


def test_a_missing_permission_is_named_with_the_command_that_grants_it(check: CheckRunner, broker: Broker) -> None:
    url = f"amqp://127.0.0.1:{broker.port}/{VHOST}"
    for target in (True, QUEUE):
        assert broker.control("set_permissions", "-p", VHOST, READER, "^$", "^$", "^$") == ""
        reason = check(url, username=READER, password=PASSWORD, write=target).reason
        found = re.search(r"rabbitmqctl (set_permissions .*) \(", reason)
        assert found, reason
        broker.control(*shlex.split(found[1]))
        assert check(url, username=READER, password=PASSWORD, write=target) == READY
    broker.control("set_permissions", "-p", VHOST, READER, "^$", "^$", "^$")


def test_a_broker_whose_certificate_is_trusted_is_ready(
    check: CheckRunner, broker: Broker, certificate: Certificate
) -> None:
    assert check(broker.tls_url, ca=str(certificate.certificate)) == READY
    assert check.steps(broker.tls_url, ca=str(certificate.certificate)) == [
        ("connect", "127.0.0.1", True),
        ("handshake", "127.0.0.1", True),
        ("log in", "", True),
        ("exchange", "", True),
    ]


def frame(method: Frame, channel: int = 0) -> bytes:
    return marshal(method, channel)


CAPABLE: Any = {"capabilities": {"publisher_confirms": True}}
START = frame(commands.Connection.Start(server_properties=CAPABLE, mechanisms="AMQPLAIN PLAIN"))
TUNE = frame(commands.Connection.Tune(2047, 131_072, 0))
OPENED = frame(commands.Connection.OpenOk())
CHANNEL = frame(commands.Channel.OpenOk(), 1)


# ---- brokers that close the connection


def scripted_broker(*answers: tuple[int, bytes], then: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """A broker that sends each answer after it has read that many frames, and then calls `then`."""

    def script(peer: Peer) -> None:
        peer.read_exactly(8)  # AMQP and its version
        for count, answer in answers:
            for _ in range(count):
                _received(peer)
            peer.send(answer)
        then(peer)

    return script


def _received(peer: Peer) -> Any:
    head = peer.read_exactly(7)
    return unmarshal(head + peer.read_exactly(int.from_bytes(head[3:7]) + 1))[2]


WELCOME = ((0, START), (1, TUNE), (2, OPENED))
SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
FORCED = frame(commands.Connection.Close(320, SHUTDOWN, 0, 0))


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (lambda peer: peer.send(FORCED), SHUTTING_DOWN),
        (lambda peer: (peer.send(FORCED), peer.shutdown_write()), SHUTTING_DOWN),
        (lambda peer: (_received(peer), peer.reset()), CONNECTION_CLOSED),
        (lambda peer: (_received(peer), peer.shutdown_write()), CONNECTION_CLOSED),
    ],
    ids=["forced", "forced and closed", "reset", "closed"],
)
def test_a_broker_that_closes_the_connection_is_failed_with_its_reason(
    check: CheckRunner, length: int, then: Callable[[Peer], object], expected: ExpectedVerdict
) -> None:
    with Backend(scripted_broker(*WELCOME[:length], then=then)) as backend:
        verdict = assert_no_leaks(check, f"amqp://{backend.address}", backend.port)
    assert verdict == expected
    assert (SHUTDOWN in verdict.reason) is (expected == SHUTTING_DOWN)


def test_a_broker_without_password_login_is_failed(check: CheckRunner) -> None:
    start = frame(commands.Connection.Start(server_properties=CAPABLE, mechanisms="EXTERNAL"))
    with Backend(sending(start)) as backend:
        assert check(f"amqp://{backend.address}") == AUTH_FAILED


@pytest.mark.parametrize(
    ("reply_code", "code"),
    [
        (320, ReasonCode.SHUTTING_DOWN),
        (402, ReasonCode.NOT_FOUND),
        (403, ReasonCode.PERMISSION_DENIED),
        (405, ReasonCode.LOCKED),
        (506, ReasonCode.SERVER_ERROR),
        (530, ReasonCode.PERMISSION_DENIED),
        (540, ReasonCode.NOT_SUPPORTED),
        (541, ReasonCode.SERVER_ERROR),
    ],
)
def test_an_error_after_the_login_has_the_code_of_its_reply_code(
    check: CheckRunner, reply_code: int, code: ReasonCode
) -> None:
    closed = frame(commands.Connection.Close(reply_code, "the text of the broker", 0, 0))
    with Backend(scripted_broker(*WELCOME, (1, closed), then=unresponsive)) as backend:
        assert check(f"amqp://{backend.address}") == failed(code)


def test_a_broker_need_not_support_publisher_confirms(check: CheckRunner) -> None:
    start = frame(commands.Connection.Start(server_properties={"product": "another"}, mechanisms="PLAIN"))
    closed = frame(commands.Channel.CloseOk(), 1)
    close_ok = frame(commands.Connection.CloseOk())
    answers = ((0, start), *WELCOME[1:], (1, CHANNEL), (1, closed), (1, close_ok))
    with Backend(scripted_broker(*answers, then=unresponsive)) as backend:
        assert check(f"amqp://{backend.address}") == READY


def test_a_write_needs_publisher_confirms(check: CheckRunner) -> None:
    start = frame(commands.Connection.Start(server_properties={"product": "another"}, mechanisms="PLAIN"))
    with Backend(scripted_broker((0, start), *WELCOME[1:], then=unresponsive)) as backend:
        assert check(f"amqp://{backend.address}", write=True) == failed(ReasonCode.NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("low on memory", MEMORY_ALARM),
        ("low on disk", DISK_ALARM),
        ("low on memory & disk", DISK_ALARM),
        ("closed for the night", not_ready(ReasonCode.WRITE_FAILED)),
    ],
)
def test_a_broker_that_blocks_the_connection_is_not_ready(
    check: CheckRunner, reason: str, expected: ExpectedVerdict
) -> None:
    """Without a write too, if the broker reports it."""
    blocked = frame(commands.Connection.Blocked(reason))
    with Backend(scripted_broker(*WELCOME, (1, blocked), then=unresponsive)) as backend:
        verdict = assert_no_leaks(check, f"amqp://{backend.address}", backend.port)
    assert verdict == expected
    assert reason in verdict.reason


def test_without_credentials_the_user_is_guest(check: CheckRunner) -> None:
    received: list[Any] = []

    def script(peer: Peer) -> None:
        peer.read_exactly(8)
        peer.send(START)
        received.append(_received(peer))
        peer.shutdown_write()

    with Backend(script) as backend:
        check(f"amqp://{backend.address}")
    assert received[0].mechanism == "PLAIN"
    assert received[0].response == "\0guest\0guest"


def test_a_connection_can_be_reused(check: CheckRunner, broker: Broker) -> None:
    assert_reused(check, broker.url, broker.port, queue=QUEUE)


@pytest.mark.parametrize("end", [lambda peer: peer.send(FORCED), close, reset], ids=["forced", "closed", "reset"])
def test_a_reused_connection_that_the_broker_closed_is_replaced(
    check: CheckRunner, end: Callable[[Peer], object]
) -> None:
    closed = frame(commands.Channel.CloseOk(), 1)
    checked, ended = threading.Event(), threading.Event()

    def script(peer: Peer) -> None:
        scripted_broker(*WELCOME, (1, CHANNEL), (1, closed), then=lambda _: checked.wait(WAIT_TIMEOUT_S))(peer)
        end(peer)
        ended.set()

    async def main(url: str) -> None:
        with reusing(url) as probe:
            assert (await check_with_steps(probe))[0] == READY
            checked.set()
            assert await becomes_true_async(ended.is_set)
            verdict, steps = await check_with_steps(probe)
            assert verdict == READY
            assert "connect" in {name for name, _, _ in steps}

    with Backend(script) as backend:
        check.run(main(f"amqp://{backend.address}"))
