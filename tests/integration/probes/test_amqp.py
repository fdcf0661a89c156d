"""amqp:// and amqps:// against a real RabbitMQ and against scripted servers."""

from __future__ import annotations

import json
import re
import shlex
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pamqp import commands
from pamqp.frame import marshal, unmarshal

from svcnode.core.codes import ReasonCode
from tests.support.backends import Backend, Peer, close, reset, server_tls, unresponsive
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.probe_assertions import assert_no_leaks, assert_reused, check_with_steps, reusing
from tests.support.probe_assertions import becomes_true as becomes_true_async
from tests.support.servers.base import module_server, wait_until
from tests.support.servers.rabbitmq import PASSWORD, QUEUE, USER, VHOST, RabbitServer, queue_definition
from tests.support.verdicts import CONNECTION_CLOSED, READY, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable

    from pamqp.base import Frame

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner
    from tests.support.verdicts import ExpectedVerdict

FULL_QUEUE = "full"  # rejects every message
WRITER, READER = "writer", "reader"  # users with the permissions that a write needs, and with none
NEEDED = {"configure": "^svcnode_write", "write": r"^amq\.default$", "read": "^$"}
AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
NOT_FOUND = failed(ReasonCode.NOT_FOUND)
SHUTTING_DOWN = failed(ReasonCode.SHUTTING_DOWN)
PERMISSION_DENIED = failed(ReasonCode.PERMISSION_DENIED)
DISK_ALARM = not_ready(ReasonCode.STORAGE_FULL)
MEMORY_ALARM = not_ready(ReasonCode.OUT_OF_MEMORY)


class Broker(RabbitServer):
    """With the vhost / too, where the queue of the checks was declared with other arguments."""

    def prepare(self) -> None:
        super().prepare()
        file = self.folder / "definitions.json"
        made = json.loads(file.read_text())
        permissions, user = made["permissions"][0], made["users"][0]
        made["vhosts"].append({"name": "/"})
        made["users"] += [{**user, "name": name} for name in (WRITER, READER)]
        made["permissions"].append({**permissions, "vhost": "/"})
        made["permissions"].append({**permissions, **NEEDED, "user": WRITER})
        made["permissions"].append({**permissions, **dict.fromkeys(NEEDED, "^$"), "user": READER})
        made["queues"].append({**queue_definition("svcnode_write", {}), "vhost": "/"})
        made["queues"].append(queue_definition(FULL_QUEUE, {"x-max-length": 0, "x-overflow": "reject-publish"}))
        file.write_text(json.dumps(made))


broker = module_server(Broker)
pytestmark = pytest.mark.timeout(400)  # on a busy machine it takes minutes to start


def test_a_broker_that_opens_a_channel_is_ready_and_its_connection_can_be_reused(
    check: CheckRunner, broker: Broker
) -> None:
    assert check.steps(broker.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]
    assert check(broker.url.removesuffix(VHOST)) == READY
    assert_reused(check, broker.url, broker.port, queue=QUEUE)


def test_wrong_credentials_or_names_are_failed(check: CheckRunner, broker: Broker) -> None:
    verdict = check(broker.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(f"amqp://{USER}:***@127.0.0.1:{broker.port}/{VHOST}")
    assert check(broker.url.removesuffix(VHOST) + "nowhere") == NOT_FOUND
    assert check(broker.url.removesuffix(VHOST), queue=QUEUE) == NOT_FOUND


def test_a_write_is_ready_if_the_queue_confirms_the_message(check: CheckRunner, broker: Broker) -> None:
    for write in (True, QUEUE):
        assert assert_no_leaks(check, broker.url, broker.port, write=write) == READY
    assert check.steps(broker.url, write=True)[2:] == [("write", "", True), ("exchange", "", True)]
    list_queues = ("list_queues", "--no-table-headers", "-p", VHOST, "messages")
    wait_until(lambda: {*broker.control(*list_queues).split()} == {"0"}, "the messages have expired")
    assert check(broker.url, write="invoices") == NOT_FOUND
    assert check(broker.url, write=FULL_QUEUE) == failed(ReasonCode.WRITE_FAILED)
    assert check(broker.url.removesuffix(VHOST), write=True) == failed(ReasonCode.WRITE_FAILED)


def test_a_missing_permission_is_named_with_the_command_that_grants_it(check: CheckRunner, broker: Broker) -> None:
    url = f"amqp://127.0.0.1:{broker.port}/{VHOST}"
    assert check(url, username=WRITER, password=PASSWORD, write=True) == READY
    denied = check(url, username=READER, password=PASSWORD, write=True)
    assert denied == PERMISSION_DENIED
    assert check(url, username=READER, password=PASSWORD, write=QUEUE) == PERMISSION_DENIED
    found = re.search(r"rabbitmqctl (set_permissions .*) \(", denied.reason)
    assert found, denied.reason
    assert shlex.split(found[1]) == ["set_permissions", "-p", VHOST, READER, *NEEDED.values()]


def frame(method: Frame, channel: int = 0) -> bytes:
    return marshal(method, channel)


CAPABLE: Any = {"capabilities": {"publisher_confirms": True}}
START = frame(commands.Connection.Start(server_properties=CAPABLE, mechanisms="AMQPLAIN PLAIN"))
TUNE = frame(commands.Connection.Tune(2047, 131_072, 0))
OPENED = frame(commands.Connection.OpenOk())
CHANNEL = frame(commands.Channel.OpenOk(), 1)


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


def broker_of(properties: Any, mechanisms: str = "PLAIN") -> Callable[[Peer], None]:
    """Closes the channel and the connection in order."""
    start = frame(commands.Connection.Start(server_properties=properties, mechanisms=mechanisms))
    closed, close_ok = frame(commands.Channel.CloseOk(), 1), frame(commands.Connection.CloseOk())
    answers = ((0, start), *WELCOME[1:], (1, CHANNEL), (1, closed), (1, close_ok))
    return scripted_broker(*answers, then=unresponsive)


def test_a_broker_needs_a_login_by_password_and_confirms_only_for_a_write(
    check: CheckRunner, certificate: Certificate
) -> None:
    with Backend(broker_of(CAPABLE), tls=server_tls(certificate)) as backend:
        steps = check.steps(f"amqps://{backend.address}", ca=str(certificate.certificate))
        assert [name for name, _, is_done in steps if is_done] == ["connect", "handshake", "log in", "exchange"]
    with Backend(broker_of({"product": "another"})) as backend:
        assert check(f"amqp://{backend.address}") == READY
        assert check(f"amqp://{backend.address}", write=True) == failed(ReasonCode.NOT_SUPPORTED)
    with Backend(broker_of(CAPABLE, "EXTERNAL")) as backend:
        assert check(f"amqp://{backend.address}") == AUTH_FAILED


def test_without_credentials_the_user_is_guest(check: CheckRunner) -> None:
    received: list[Any] = []
    with Backend(scripted_broker((0, START), then=lambda peer: received.append(_received(peer)))) as backend:
        check.times_out(f"amqp://{backend.address}")
    assert (received[0].mechanism, received[0].response) == ("PLAIN", "\0guest\0guest")


@pytest.mark.parametrize(
    ("length", "then", "expected"),
    [
        (1, lambda peer: peer.send(FORCED), SHUTTING_DOWN),
        (2, lambda peer: (peer.send(FORCED), peer.shutdown_write()), SHUTTING_DOWN),
        (3, lambda peer: peer.send(FORCED), SHUTTING_DOWN),
        (2, lambda peer: (_received(peer), peer.reset()), CONNECTION_CLOSED),
        (3, lambda peer: (_received(peer), peer.shutdown_write()), CONNECTION_CLOSED),
    ],
    ids=["forced in the login", "forced and closed", "forced", "reset", "closed"],
)
def test_a_broker_that_closes_the_connection_is_failed_with_its_reason(
    check: CheckRunner, length: int, then: Callable[[Peer], object], expected: ExpectedVerdict
) -> None:
    with Backend(scripted_broker(*WELCOME[:length], then=then)) as backend:
        verdict = assert_no_leaks(check, f"amqp://{backend.address}", backend.port)
    assert verdict == expected
    assert (SHUTDOWN in verdict.reason) is (expected == SHUTTING_DOWN)


@pytest.mark.parametrize(
    ("reply_code", "code"),
    [
        (402, ReasonCode.NOT_FOUND),
        (403, ReasonCode.PERMISSION_DENIED),
        (405, ReasonCode.LOCKED),
        (506, ReasonCode.SERVER_ERROR),
        (530, ReasonCode.PERMISSION_DENIED),
        (540, ReasonCode.NOT_SUPPORTED),
    ],
)
def test_an_error_after_the_login_has_the_code_of_its_reply_code(
    check: CheckRunner, reply_code: int, code: ReasonCode
) -> None:
    closed = frame(commands.Connection.Close(reply_code, "the text of the broker", 0, 0))
    with Backend(scripted_broker(*WELCOME, (1, closed), then=unresponsive)) as backend:
        assert check(f"amqp://{backend.address}") == failed(code)


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
