"""amqp:// and amqps:// against a real RabbitMQ, and against what only stands at its port."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import given
from pamqp import commands
from pamqp.frame import marshal, unmarshal

from svcnode.core.model import Outcome, Verdict
from tests.support.backends import Backend, Peer, close, closed_port, reset, sending, server_tls, unresponsive
from tests.support.certificates import make_certificate
from tests.support.http_server import LOOPS, WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import (
    assert_all_failed,
    assert_disconnect_is_failed,
    assert_no_leaks,
    assert_not_reused_after_timeout,
    assert_reused,
    assert_times_out,
    check_with_steps,
    client_count,
    few_examples,
    garbage,
    reusing,
)
from tests.support.servers.base import free_port
from tests.support.servers.rabbitmq import PASSWORD, QUEUE, USER, VHOST, RabbitServer
from tests.support.verdicts import EXPIRES_SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pamqp.base import Frame

    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate

READY = Verdict.ready()
LOST = "client unexpectedly closed TCP connection"  # how it logs one that left without a word


class Broker(RabbitServer):
    """With TLS at a second port, since it takes seconds to start, and with the vhost / as well."""

    def __init__(self, folder: Path, certificate: Certificate) -> None:
        super().__init__(folder)
        self.tls_port = free_port()
        self._tls = certificate

    def prepare(self) -> None:
        super().prepare()
        file = self.folder / "definitions.json"
        made = json.loads(file.read_text())
        made["vhosts"].append({"name": "/"})
        made["permissions"].append({**made["permissions"][0], "vhost": "/"})
        file.write_text(json.dumps(made))
        with (self.folder / "rabbitmq.conf").open("a") as config:
            config.write(f"listeners.ssl.1 = {self.host}:{self.tls_port}\n")
            config.write(f"ssl_options.certfile = {self._tls.certificate}\nssl_options.keyfile = {self._tls.key}\n")

    @property
    def tls_url(self) -> str:
        return f"amqps://{USER}:{quote(PASSWORD, safe='')}@{self.host}:{self.tls_port}/{VHOST}"

    def display_url(self, rest: str = f"/{VHOST}") -> str:
        """Its URL as a reason shows it."""
        return f"amqp://{USER}:***@{self.host}:{self.port}{rest}"

    def at(self, rest: str) -> str:
        """Its URL with another vhost."""
        return self.url.removesuffix(f"/{VHOST}") + rest


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("rabbitmq"), certificate) as broker:
        yield broker


# ---- a broker


def test_a_broker_that_opens_a_channel_is_ready(check: CheckRunner, broker: Broker) -> None:
    assert check(broker.url) == READY
    assert check.steps(broker.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]


def test_credentials_and_vhost_may_stand_beside_the_url(check: CheckRunner, broker: Broker) -> None:
    url = f"amqp://127.0.0.1:{broker.port}"
    assert check(url, username=USER, password=PASSWORD, vhost=VHOST) == READY


def test_a_check_closes_its_session_so_that_the_broker_logs_nothing(check: CheckRunner, broker: Broker) -> None:
    assert becomes_true(lambda: LOST in broker.log_file.read_text())  # as those who waited for it to be ready did
    logged = len(broker.log_file.read_text())
    for options in ({}, {"queue": QUEUE}):
        assert assert_no_leaks(check, broker.url, broker.port, **options) == READY
        tls = {"ca": str(broker._tls.certificate), **options}
        assert assert_no_leaks(check, broker.tls_url, broker.tls_port, **tls) == READY
    # The broker takes its time on a busy machine; what it has to say, it says when it lets go.
    becomes_true(lambda: not client_count(broker.port) + client_count(broker.tls_port), 3 * WAIT_TIMEOUT_S)
    assert broker.log_file.read_text()[logged:] == ""


def test_a_broker_that_does_not_let_us_in_is_failed(check: CheckRunner, broker: Broker) -> None:
    refused = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile"
    )
    assert check(broker.bad_credentials_url) == Verdict.failed(f"{refused}: {broker.display_url()}")
    url = f"amqp://127.0.0.1:{broker.port}"
    assert check(url, username=USER, password="not-the-password") == Verdict.failed(f"{refused}: {url}")


def test_a_vhost_that_is_not_there_is_failed(check: CheckRunner, broker: Broker) -> None:
    assert check(broker.at("/nowhere")) == Verdict.failed(
        f"NOT_ALLOWED - vhost nowhere not found: {broker.display_url('/nowhere')}"
    )


@pytest.mark.parametrize("rest", ["", "/", "/%2F", "/%2f"])
def test_the_vhost_is_a_slash_when_none_is_named(check: CheckRunner, broker: Broker, rest: str) -> None:
    assert check(broker.at(rest)) == READY
    assert check(broker.at(rest), queue=QUEUE) == Verdict.failed(
        f'there is no queue "{QUEUE}": {broker.display_url(rest)}'
    )


def test_a_queue_must_be_there_when_it_is_named(check: CheckRunner, broker: Broker) -> None:
    assert check(broker.url, queue=QUEUE) == READY
    assert check(broker.url, queue="invoices") == Verdict.failed(
        f'there is no queue "invoices": {broker.display_url()}'
    )


def test_a_broker_without_a_connection_to_spare_is_failed_in_its_own_words(check: CheckRunner, broker: Broker) -> None:
    with broker.exhaust():
        verdict = check(broker.url)
    assert becomes_true(lambda: check(broker.url) == READY)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith(f"NOT_ALLOWED - access to vhost '{VHOST}' refused for user '{USER}'")
    assert "connection limit" in verdict.reason


def test_a_frozen_broker_is_failed_at_the_deadline(check: CheckRunner, broker: Broker) -> None:
    broker.freeze()
    try:
        assert_times_out(check, broker.url, broker.port, "log in")
    finally:
        broker.thaw()
    assert becomes_true(lambda: not client_count(broker.port))


# ---- amqps


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


def test_a_broker_whose_certificate_is_not_trusted_is_failed(
    check: CheckRunner, broker: Broker, tmp_path: Path
) -> None:
    shown = broker.tls_url.replace(quote(PASSWORD, safe=""), "***")
    assert check(broker.tls_url) == Verdict.failed(f"its certificate is not valid: self-signed certificate: {shown}")
    other = make_certificate(tmp_path, "other")
    verdict = check(broker.tls_url, ca=str(other.certificate))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("its certificate is not valid: ")


def test_a_certificate_that_ends_soon_is_not_ready(
    check: CheckRunner, broker: Broker, certificate: Certificate
) -> None:
    assert check(broker.tls_url, ca=str(certificate.certificate), min_cert_days=1) == EXPIRES_SOON


def test_tls_where_none_is_spoken_is_failed(check: CheckRunner, broker: Broker) -> None:
    verdict = check(broker.url.replace("amqp:", "amqps:"))
    assert verdict.outcome is Outcome.FAILED


def test_a_handshake_that_is_never_answered_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"amqps://{backend.address}", backend.port, "handshake")


# ---- what is no broker


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"amqp://127.0.0.1:{port}"
        assert check(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(check: CheckRunner, certificate: Certificate) -> None:
    with Backend(unresponsive) as plain, Backend(unresponsive, tls=server_tls(certificate)) as encrypted:
        assert_times_out(check, f"amqp://{plain.address}", plain.port, "log in")
        ca = str(certificate.certificate)
        assert_times_out(check, f"amqps://{encrypted.address}", encrypted.port, "log in", ca=ca)


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "amqp", closed="it closed the connection before it had answered")


@pytest.mark.parametrize(
    "answer",
    [
        b"AMQP\x00\x01\x00\x00",  # a broker of AMQP 1.0
        b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\xff\xff\xce",  # a method that there is not
        b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x29\xce",  # one that is out of turn
        b"\x03\x00\x00\x00\x00\x00\x02{}\xce",  # a body without its method
    ],
)
def test_what_does_not_speak_the_protocol_is_failed(check: CheckRunner, answer: bytes) -> None:
    with Backend(sending(answer)) as backend:
        url = f"amqp://{backend.address}"
        assert check(url) == Verdict.failed(f"what came back is not AMQP 0-9-1: {url}")


def frame(method: Frame, channel: int = 0) -> bytes:
    return marshal(method, channel)


CAPABLE: Any = {"capabilities": {"publisher_confirms": True}}
START = frame(commands.Connection.Start(server_properties=CAPABLE, mechanisms="AMQPLAIN PLAIN"))
TUNE = frame(commands.Connection.Tune(2047, 131_072, 0))
OPENED = frame(commands.Connection.OpenOk())
CHANNEL = frame(commands.Channel.OpenOk(), 1)


@few_examples
@given(answers=garbage(START, START[:-9], START + TUNE, START + TUNE + OPENED, START + TUNE + OPENED + CHANNEL[:-1]))
def test_no_bytes_make_more_than_a_failure(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"amqp://{backend.address}")


# ---- brokers that break off


def speaking_amqp(*answers: tuple[int, bytes], then: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """A broker that answers after it has heard so many frames, and then does the last thing it does."""

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
    ("then", "words"),
    [
        (lambda peer: peer.send(FORCED), {SHUTDOWN}),
        (lambda peer: (peer.send(FORCED), peer.finish()), {SHUTDOWN}),
        (lambda peer: (_received(peer), peer.reset()), {"connection reset by peer", "Connection lost"}),
        (lambda peer: (_received(peer), peer.finish()), {"it closed the connection before it had answered"}),
    ],
    ids=["forced", "forced and closed", "reset", "closed"],
)
def test_a_broker_that_breaks_off_is_failed_in_its_own_words(
    check: CheckRunner, length: int, then: Callable[[Peer], object], words: set[str]
) -> None:
    with Backend(speaking_amqp(*WELCOME[:length], state_after=then)) as backend:
        url = f"amqp://{backend.address}"
        verdict = assert_no_leaks(check, url, backend.port)
    assert verdict in {Verdict.failed(f"{one}: {url}") for one in words}


def test_a_broker_that_hangs_after_the_login_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(speaking_amqp(*WELCOME, state_after=unresponsive)) as backend:
        assert_times_out(check, f"amqp://{backend.address}", backend.port, "exchange")


def test_a_broker_that_takes_no_passwords_is_failed(check: CheckRunner) -> None:
    start = frame(commands.Connection.Start(server_properties=CAPABLE, mechanisms="EXTERNAL"))
    with Backend(sending(start)) as backend:
        url = f"amqp://{backend.address}"
        assert check(url) == Verdict.failed(f"it lets nobody in by name and password: {url}")


def test_a_broker_need_not_be_able_to_confirm(check: CheckRunner) -> None:
    start = frame(commands.Connection.Start(server_properties={"product": "another"}, mechanisms="PLAIN"))
    closed = frame(commands.Channel.CloseOk(), 1)
    goodbye = frame(commands.Connection.CloseOk())
    answers = ((0, start), *WELCOME[1:], (1, CHANNEL), (1, closed), (1, goodbye))
    with Backend(speaking_amqp(*answers, state_after=unresponsive)) as backend:
        assert check(f"amqp://{backend.address}") == READY


def test_without_credentials_we_are_a_guest(check: CheckRunner) -> None:
    heard: list[Any] = []

    def script(peer: Peer) -> None:
        peer.read_exactly(8)
        peer.send(START)
        heard.append(_received(peer))
        peer.shutdown_write()

    with Backend(script) as backend:
        check(f"amqp://{backend.address}")
    assert heard[0].mechanism == "PLAIN"
    assert heard[0].encoded_response == "\0guest\0guest"


# ---- reuse


def test_a_connection_can_be_kept(check: CheckRunner, broker: Broker) -> None:
    assert_reused(check, broker.url, broker.port, queue=QUEUE)


def test_a_connection_under_tls_can_be_kept(check: CheckRunner, broker: Broker, certificate: Certificate) -> None:
    assert_reused(check, broker.tls_url, broker.tls_port, ca=str(certificate.certificate))


def test_a_frozen_broker_is_failed_at_the_deadline_on_a_reused_connection(check: CheckRunner, broker: Broker) -> None:
    assert_not_reused_after_timeout(check, broker)


def test_a_reused_connection_outlives_a_restart_of_the_broker(broker: Broker) -> None:
    """On both loops at once, since it takes seconds."""
    restarted = threading.Barrier(len(LOOPS), action=broker.restart)

    async def story() -> tuple[list[Verdict], list[Any]]:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        with reusing(broker.url) as probe:
            verdicts = [(await check_with_steps(probe))[0]]
            restarted.wait(12 * WAIT_TIMEOUT_S)
            verdicts.append((await check_with_steps(probe))[0])
        await asyncio.sleep(0.05)
        return verdicts, faults

    def run(name: str) -> tuple[list[Verdict], list[Any]]:
        with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
            return runner.run(story())

    with ThreadPoolExecutor(len(LOOPS)) as pool:
        assert list(pool.map(run, LOOPS)) == [([READY, READY], [])] * len(LOOPS)


def test_a_reused_connection_that_the_broker_ended_is_made_again(check: CheckRunner) -> None:
    """With its words between two looks, or with none."""
    closed = frame(commands.Channel.CloseOk(), 1)
    for end in (lambda peer: peer.send(FORCED), close, reset):
        looked = threading.Event()

        def ends_later(peer: Peer, end: Callable[[Peer], object] = end, looked: threading.Event = looked) -> None:
            speaking_amqp(*WELCOME, (1, CHANNEL), (1, closed), state_after=lambda _: looked.wait(WAIT_TIMEOUT_S))(peer)
            end(peer)

        async def story(url: str, looked: threading.Event = looked) -> None:
            with reusing(url) as probe:
                assert (await check_with_steps(probe))[0] == READY
                looked.set()
                await asyncio.sleep(0.05)
                verdict, steps = await check_with_steps(probe)
                assert verdict == READY
                assert "connect" in {name for name, _, _ in steps}

        with Backend(ends_later) as backend:
            check.run(story(f"amqp://{backend.address}"))
