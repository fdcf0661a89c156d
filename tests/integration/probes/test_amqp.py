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
from tests.support.backends import Backend, Peer, close, mute, refusing, reset, saying, server_tls
from tests.support.certificates import make_certificate
from tests.support.looks import (
    ENDS_SOON,
    assert_all_failed,
    assert_cut_off,
    assert_leaves_nothing,
    assert_lost_is_failed,
    assert_not_kept_when_cut_off,
    assert_reused,
    clients_of,
    garbage,
    generating,
    keeping,
    steps_of,
)
from tests.support.servers.base import free_port
from tests.support.servers.rabbitmq import PASSWORD, QUEUE, USER, VHOST, RabbitServer
from tests.support.wire import LOOPS, PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pamqp.base import Frame

    from tests.integration.probes.conftest import Look
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

    def shown(self, rest: str = f"/{VHOST}") -> str:
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


def test_a_broker_that_opens_a_channel_is_ready(look: Look, broker: Broker) -> None:
    assert look(broker.url) == READY
    assert look.steps(broker.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]


def test_credentials_and_vhost_may_stand_beside_the_url(look: Look, broker: Broker) -> None:
    url = f"amqp://127.0.0.1:{broker.port}"
    assert look(url, username=USER, password=PASSWORD, vhost=VHOST) == READY


def test_a_look_says_goodbye_so_that_the_broker_has_nothing_to_log(look: Look, broker: Broker) -> None:
    assert until(lambda: LOST in broker.log_file.read_text())  # as those who waited for it to be ready did
    logged = len(broker.log_file.read_text())
    for options in ({}, {"queue": QUEUE}):
        assert assert_leaves_nothing(look, broker.url, broker.port, **options) == READY
        tls = {"ca": str(broker._tls.certificate), **options}
        assert assert_leaves_nothing(look, broker.tls_url, broker.tls_port, **tls) == READY
    # The broker takes its time on a busy machine; what it has to say, it says when it lets go.
    until(lambda: not clients_of(broker.port) + clients_of(broker.tls_port), 3 * PATIENCE_S)
    assert broker.log_file.read_text()[logged:] == ""


def test_a_broker_that_does_not_let_us_in_is_failed(look: Look, broker: Broker) -> None:
    refused = (
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile"
    )
    assert look(broker.wrong_url) == Verdict.failed(f"{refused}: {broker.shown()}")
    url = f"amqp://127.0.0.1:{broker.port}"
    assert look(url, username=USER, password="not-the-password") == Verdict.failed(f"{refused}: {url}")


def test_a_vhost_that_is_not_there_is_failed(look: Look, broker: Broker) -> None:
    assert look(broker.at("/nowhere")) == Verdict.failed(
        f"NOT_ALLOWED - vhost nowhere not found: {broker.shown('/nowhere')}"
    )


@pytest.mark.parametrize("rest", ["", "/", "/%2F", "/%2f"])
def test_the_vhost_is_a_slash_when_none_is_named(look: Look, broker: Broker, rest: str) -> None:
    assert look(broker.at(rest)) == READY
    assert look(broker.at(rest), queue=QUEUE) == Verdict.failed(f'there is no queue "{QUEUE}": {broker.shown(rest)}')


def test_a_queue_must_be_there_when_it_is_named(look: Look, broker: Broker) -> None:
    assert look(broker.url, queue=QUEUE) == READY
    assert look(broker.url, queue="invoices") == Verdict.failed(f'there is no queue "invoices": {broker.shown()}')


def test_a_broker_without_a_connection_to_spare_is_failed_in_its_own_words(look: Look, broker: Broker) -> None:
    with broker.exhaust():
        verdict = look(broker.url)
    assert until(lambda: look(broker.url) == READY)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith(f"NOT_ALLOWED - access to vhost '{VHOST}' refused for user '{USER}'")
    assert "connection limit" in verdict.reason


def test_a_frozen_broker_is_failed_at_the_deadline(look: Look, broker: Broker) -> None:
    broker.freeze()
    try:
        assert_cut_off(look, broker.url, broker.port, "log in")
    finally:
        broker.thaw()
    assert until(lambda: not clients_of(broker.port))


# ---- amqps


def test_a_broker_whose_certificate_is_trusted_is_ready(look: Look, broker: Broker, certificate: Certificate) -> None:
    assert look(broker.tls_url, ca=str(certificate.certificate)) == READY
    assert look.steps(broker.tls_url, ca=str(certificate.certificate)) == [
        ("connect", "127.0.0.1", True),
        ("handshake", "127.0.0.1", True),
        ("log in", "", True),
        ("exchange", "", True),
    ]


def test_a_broker_whose_certificate_is_not_trusted_is_failed(look: Look, broker: Broker, tmp_path: Path) -> None:
    shown = broker.tls_url.replace(quote(PASSWORD, safe=""), "***")
    assert look(broker.tls_url) == Verdict.failed(f"its certificate is not valid: self-signed certificate: {shown}")
    other = make_certificate(tmp_path, "other")
    verdict = look(broker.tls_url, ca=str(other.certificate))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith("its certificate is not valid: ")


def test_a_certificate_that_ends_soon_is_not_ready(look: Look, broker: Broker, certificate: Certificate) -> None:
    assert look(broker.tls_url, ca=str(certificate.certificate), min_cert_days=1) == ENDS_SOON


def test_tls_where_none_is_spoken_is_failed(look: Look, broker: Broker) -> None:
    verdict = look(broker.url.replace("amqp:", "amqps:"))
    assert verdict.outcome is Outcome.FAILED


def test_a_handshake_that_is_never_answered_is_failed_at_the_deadline(look: Look) -> None:
    with Backend(mute) as backend:
        assert_cut_off(look, f"amqps://{backend.place}", backend.port, "handshake")


# ---- what is no broker


def test_a_port_that_refuses_is_failed(look: Look) -> None:
    with refusing() as port:
        url = f"amqp://127.0.0.1:{port}"
        assert look(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(look: Look, certificate: Certificate) -> None:
    with Backend(mute) as plain, Backend(mute, tls=server_tls(certificate)) as encrypted:
        assert_cut_off(look, f"amqp://{plain.place}", plain.port, "log in")
        ca = str(certificate.certificate)
        assert_cut_off(look, f"amqps://{encrypted.place}", encrypted.port, "log in", ca=ca)


def test_a_connection_that_is_closed_or_reset_is_failed(look: Look) -> None:
    assert_lost_is_failed(look, "amqp", closed="it closed the connection before it had answered")


@pytest.mark.parametrize(
    "answer",
    [
        b"AMQP\x00\x01\x00\x00",  # a broker of AMQP 1.0
        b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\xff\xff\xce",  # a method that there is not
        b"\x01\x00\x00\x00\x00\x00\x04\x00\x0a\x00\x29\xce",  # one that is out of turn
        b"\x03\x00\x00\x00\x00\x00\x02{}\xce",  # a body without its method
    ],
)
def test_what_does_not_speak_the_protocol_is_failed(look: Look, answer: bytes) -> None:
    with Backend(saying(answer)) as backend:
        url = f"amqp://{backend.place}"
        assert look(url) == Verdict.failed(f"what came back is not AMQP 0-9-1: {url}")


def frame(method: Frame, channel: int = 0) -> bytes:
    return marshal(method, channel)


CAPABLE: Any = {"capabilities": {"publisher_confirms": True}}
START = frame(commands.Connection.Start(server_properties=CAPABLE, mechanisms="AMQPLAIN PLAIN"))
TUNE = frame(commands.Connection.Tune(2047, 131_072, 0))
OPENED = frame(commands.Connection.OpenOk())
CHANNEL = frame(commands.Channel.OpenOk(), 1)


@generating
@given(answers=garbage(START, START[:-9], START + TUNE, START + TUNE + OPENED, START + TUNE + OPENED + CHANNEL[:-1]))
def test_no_bytes_make_more_than_a_failure(look: Look, answers: list[bytes]) -> None:
    assert_all_failed(look, answers, lambda backend: f"amqp://{backend.place}")


# ---- brokers that break off


def talking(*answers: tuple[int, bytes], then: Callable[[Peer], object]) -> Callable[[Peer], None]:
    """A broker that answers after it has heard so many frames, and then does the last thing it does."""

    def script(peer: Peer) -> None:
        peer.read_exactly(8)  # AMQP and its version
        for count, answer in answers:
            for _ in range(count):
                _heard(peer)
            peer.say(answer)
        then(peer)

    return script


def _heard(peer: Peer) -> Any:
    head = peer.read_exactly(7)
    return unmarshal(head + peer.read_exactly(int.from_bytes(head[3:7]) + 1))[2]


WELCOME = ((0, START), (1, TUNE), (2, OPENED))
SHUTDOWN = "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'"
FORCED = frame(commands.Connection.Close(320, SHUTDOWN, 0, 0))


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize(
    ("then", "words"),
    [
        (lambda peer: peer.say(FORCED), {SHUTDOWN}),
        (lambda peer: (peer.say(FORCED), peer.finish()), {SHUTDOWN}),
        (lambda peer: (_heard(peer), peer.reset()), {"connection reset by peer", "Connection lost"}),
        (lambda peer: (_heard(peer), peer.finish()), {"it closed the connection before it had answered"}),
    ],
    ids=["forced", "forced and closed", "reset", "closed"],
)
def test_a_broker_that_breaks_off_is_failed_in_its_own_words(
    look: Look, length: int, then: Callable[[Peer], object], words: set[str]
) -> None:
    with Backend(talking(*WELCOME[:length], then=then)) as backend:
        url = f"amqp://{backend.place}"
        verdict = assert_leaves_nothing(look, url, backend.port)
    assert verdict in {Verdict.failed(f"{one}: {url}") for one in words}


def test_a_broker_that_hangs_after_the_login_is_failed_at_the_deadline(look: Look) -> None:
    with Backend(talking(*WELCOME, then=mute)) as backend:
        assert_cut_off(look, f"amqp://{backend.place}", backend.port, "exchange")


def test_a_broker_that_takes_no_passwords_is_failed(look: Look) -> None:
    start = frame(commands.Connection.Start(server_properties=CAPABLE, mechanisms="EXTERNAL"))
    with Backend(saying(start)) as backend:
        url = f"amqp://{backend.place}"
        assert look(url) == Verdict.failed(f"it lets nobody in by name and password: {url}")


def test_a_broker_need_not_be_able_to_confirm(look: Look) -> None:
    start = frame(commands.Connection.Start(server_properties={"product": "another"}, mechanisms="PLAIN"))
    closed = frame(commands.Channel.CloseOk(), 1)
    goodbye = frame(commands.Connection.CloseOk())
    answers = ((0, start), *WELCOME[1:], (1, CHANNEL), (1, closed), (1, goodbye))
    with Backend(talking(*answers, then=mute)) as backend:
        assert look(f"amqp://{backend.place}") == READY


def test_without_credentials_we_are_a_guest(look: Look) -> None:
    heard: list[Any] = []

    def script(peer: Peer) -> None:
        peer.read_exactly(8)
        peer.say(START)
        heard.append(_heard(peer))
        peer.finish()

    with Backend(script) as backend:
        look(f"amqp://{backend.place}")
    assert heard[0].mechanism == "PLAIN"
    assert heard[0].response == "\0guest\0guest"


# ---- reuse


def test_a_connection_can_be_kept(look: Look, broker: Broker) -> None:
    assert_reused(look, broker.url, broker.port, queue=QUEUE)


def test_a_connection_under_tls_can_be_kept(look: Look, broker: Broker, certificate: Certificate) -> None:
    assert_reused(look, broker.tls_url, broker.tls_port, ca=str(certificate.certificate))


def test_a_frozen_broker_is_failed_at_the_deadline_on_a_kept_connection(look: Look, broker: Broker) -> None:
    assert_not_kept_when_cut_off(look, broker)


def test_a_kept_connection_outlives_a_restart_of_the_broker(broker: Broker) -> None:
    """On both loops at once, since it takes seconds."""
    restarted = threading.Barrier(len(LOOPS), action=broker.restart)

    async def story() -> tuple[list[Verdict], list[Any]]:
        faults: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        with keeping(broker.url) as probe:
            verdicts = [(await steps_of(probe))[0]]
            restarted.wait(12 * PATIENCE_S)
            verdicts.append((await steps_of(probe))[0])
        await asyncio.sleep(0.05)
        return verdicts, faults

    def run(name: str) -> tuple[list[Verdict], list[Any]]:
        with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
            return runner.run(story())

    with ThreadPoolExecutor(len(LOOPS)) as pool:
        assert list(pool.map(run, LOOPS)) == [([READY, READY], [])] * len(LOOPS)


def test_a_kept_connection_that_the_broker_ended_is_made_anew(look: Look) -> None:
    """With its words between two looks, or with none."""
    closed = frame(commands.Channel.CloseOk(), 1)
    for end in (lambda peer: peer.say(FORCED), close, reset):
        looked = threading.Event()

        def ends_later(peer: Peer, end: Callable[[Peer], object] = end, looked: threading.Event = looked) -> None:
            talking(*WELCOME, (1, CHANNEL), (1, closed), then=lambda _: looked.wait(PATIENCE_S))(peer)
            end(peer)

        async def story(url: str, looked: threading.Event = looked) -> None:
            with keeping(url) as probe:
                assert (await steps_of(probe))[0] == READY
                looked.set()
                await asyncio.sleep(0.05)
                verdict, steps = await steps_of(probe)
                assert verdict == READY
                assert "connect" in {name for name, _, _ in steps}

        with Backend(ends_later) as backend:
            look.run(story(f"amqp://{backend.place}"))
