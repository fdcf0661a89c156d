"""People are told: a real node, a service that dies and returns, and receivers that are well, slow, wrong or gone."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Self

import pytest

from svcnode.core.model import Identity
from svcnode.notify.dispatcher import MAX_QUEUED, Dispatcher
from svcnode.notify.message import build_test_message
from svcnode.notify.model import DeliveryStats
from svcnode.notify.targets import webhook_from
from tests.integration.test_startup import SERVE, modules_after
from tests.support.backends import (
    Backend,
    HttpBackend,
    ReceivedRequest,
    closed_port,
    http_response,
    server_tls,
    unresponsive,
)
from tests.support.certificates import make_certificate
from tests.support.processes import DEADLINE_S, Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OK = http_response(200, "ok")
FLAGS = ("--listen", "127.0.0.1:0", "--drain", "0s", "--log-level", "debug", "--name", "validator-7")
HEALTH_S = 2.0  # far more than an answer takes, and far less than a receiver that hangs
SOON = """
[defaults]
interval = "200ms"
transition_interval = "50ms"
timeout = "190ms"
fall = 2
rise = 1
start_period = "0s"
stale_after = "60s"
"""
KEY = "k3y-that-nobody-may-see"


class Receiver(HttpBackend):
    """Records what it is told, and answers as it is told to."""

    def __init__(self, answer: bytes | Callable[[ReceivedRequest], bytes] = OK, *, port: int = 0, **more: Any) -> None:
        HttpBackend.__init__(self, answer, **more)
        if port:
            self._listener.close()
            self._listener = socket.create_server(("127.0.0.1", port))
            self.port = port

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.requests]

    @property
    def texts(self) -> list[str]:
        return [document["text"] for document in self.documents]


class Service:
    """Something that is listened on, until it dies."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.port = 0
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def start(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", self.port), backlog=1024)
        self.port = self._socket.getsockname()[1]


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


def config(service: Service, *notify: str, resolve_delay: str = "0s") -> str:
    """A node that notices soon, and tells what it notices at once."""
    probe = f'[[services]]\nid = "db"\nname = "Ledger"\nprobe = "tcp://127.0.0.1:{service.port}"\nimpact = "critical"\n'
    return "\n".join(["[notify]", 'group_wait = "50ms"', f'resolve_delay = "{resolve_delay}"', *notify, SOON, probe])


def hook(port: int) -> str:
    return f'webhook = {{ url = "http://127.0.0.1:{port}/hooks/{KEY}", headers = {{ X-Token = "${{TOKEN}}" }} }}'


@contextmanager
def node(folder: Path, text: str) -> Iterator[Agent]:
    """Once its service is Up; nothing that it says may hold a key."""
    with Agent(folder, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        yield agent
        agent.process.kill()
        agent.wait_for_exit()
        assert KEY not in "\n".join(agent.lines)


# ---- webhooks


def test_a_service_that_dies_and_comes_back_is_two_messages(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, hook(receiver.port))) as agent:
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 1)
        assert agent.health() == 503
        service.start()
        agent.wait_until(lambda: len(receiver.requests) == 2)
        assert agent.health() == 200
        assert agent.stop() == 0
        down, up = receiver.documents
        assert down["text"] == (
            "validator-7 is unhealthy (503), was healthy (200)\n"
            f"- db (Ledger) is Down, was Up: connection refused: 127.0.0.1:{service.port}"
        )
        assert (down["node"]["health"], up["node"]["health"]) == (503, 200)
        assert [one["change"] for document in (down, up) for one in document["services"]] == ["worse", "recovered"]
        assert up["text"].startswith("validator-7 has recovered: healthy (200) after ")
        assert 0 < up["services"][0]["duration_s"] < DEADLINE_S
        assert down["services"][0]["since"] < up["services"][0]["since"]
        request = receiver.requests[0]
        assert (request.method, request.target) == ("POST", f"/hooks/{KEY}")
        assert request.headers["x-token"] == KEY
        assert request.headers["content-type"] == "application/json"


def test_neither_the_start_of_a_node_nor_its_end_is_told(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver:
        for _ in range(2):
            with node(tmp_path, config(service, hook(receiver.port))) as agent:
                time.sleep(0.3)
                assert agent.stop() == 0
        assert receiver.texts == []


def test_a_service_that_never_came_up_is_told(service: Service, tmp_path: Path) -> None:
    service.stop()
    with (
        Receiver() as receiver,
        Agent(tmp_path, *FLAGS, config=config(service, hook(receiver.port)), environ={"TOKEN": KEY}) as agent,
    ):
        agent.wait_until(lambda: bool(receiver.requests))
        assert "db (Ledger) is Down, and has not been Up yet: " in receiver.texts[0]


def received_texts(folder: Path) -> list[tuple[str | None, bool]]:
    """What is kept of what was told: of whom, and whether it is certain that everybody knows."""
    path = folder / ".local" / "state" / "svcnode" / "history.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT text FROM saved_state").fetchone()
    rows = json.loads(found[0])["incidents"] if found else []
    return [(service_id, is_sure) for service_id, *_, is_sure, _ in rows]


def notify_down(service: Service, folder: Path, receiver: Receiver, *, is_killed: bool) -> None:
    """A node that sees its service die, tells it, and ends."""
    with node(folder, config(service, hook(receiver.port))) as agent:
        service.stop()
        agent.wait_until(lambda: received_texts(folder) == [(None, True), ("db", True)])
        if not is_killed:
            assert agent.stop() == 0
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("is_killed", [True, False])
def test_what_recovered_while_the_node_was_restarted_is_told(service: Service, tmp_path: Path, is_killed: bool) -> None:
    with Receiver() as receiver:
        notify_down(service, tmp_path, receiver, is_killed=is_killed)
        service.start()
        with node(tmp_path, config(service, hook(receiver.port))) as agent:
            agent.wait_until(lambda: len(receiver.requests) == 2)
            agent.wait_until(lambda: received_texts(tmp_path) == [])
            assert agent.stop() == 0
        up = receiver.documents[-1]
        assert [one["change"] for one in (up["node"], *up["services"])] == ["recovered"] * 2
        assert "db (Ledger) has recovered: Up after at most " in up["text"]
        assert up["services"][0]["duration_is_upper_bound"]
        assert 0 < up["services"][0]["duration_s"] < 2 * DEADLINE_S
        with node(tmp_path, config(service, hook(receiver.port))) as agent:
            assert agent.stop() == 0
        assert len(receiver.requests) == 2


def test_what_was_told_before_a_restart_and_still_is_so_is_not_told_again(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver:
        notify_down(service, tmp_path, receiver, is_killed=True)
        text = config(service, hook(receiver.port))
        with Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent:
            agent.wait_until(lambda: agent.health() == 503)
            time.sleep(0.3)
            assert agent.stop() == 0
        assert len(receiver.requests) == 1
        with Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent:
            agent.wait_until(lambda: agent.health() == 503)
            service.start()
            agent.wait_until(lambda: len(receiver.requests) == 2)
        assert not receiver.documents[-1]["services"][0]["duration_is_upper_bound"], "it was seen to come back"


def test_what_nobody_took_before_a_restart_is_told_after_it(service: Service, tmp_path: Path) -> None:
    with closed_port() as port, node(tmp_path, config(service, hook(port))) as agent:
        service.stop()
        agent.wait_until(lambda: received_texts(tmp_path) == [(None, False), ("db", False)])
    text = config(service, hook(port))
    with (
        Receiver(port=port) as receiver,
        Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent,
    ):
        agent.wait_until(lambda: bool(receiver.requests))
        assert "db (Ledger) is still Down, after " in receiver.texts[0]
        assert receiver.documents[0]["lost"] == 1, "before the restart"


def test_a_recovery_that_was_lost_at_a_stop_is_told_after_it_also_beside_a_receiver_that_takes_nothing(
    service: Service, tmp_path: Path
) -> None:
    answers = [OK]
    with closed_port() as deaf, Receiver(lambda _: answers[-1]) as receiver:
        text = config(service, f'webhook = ["http://127.0.0.1:{deaf}/", "http://127.0.0.1:{receiver.port}/"]')
        with node(tmp_path, text) as agent:
            service.stop()
            agent.wait_until(lambda: len(receiver.requests) == 1)
            answers.append(http_response(503, "later"))
            service.start()
            agent.wait_until(lambda: len(receiver.requests) > 1)
            assert agent.stop() == 0
        answers.append(OK)
        refused = len(receiver.requests)
        with node(tmp_path, text) as agent:
            agent.wait_until(lambda: len(receiver.requests) > refused)
            assert agent.stop() == 0
        assert "db (Ledger) has recovered: Up after at most " in receiver.texts[-1]
        assert receiver.documents[-1]["lost"] == 1


def test_the_log_ends_with_stopped_after_what_could_not_be_delivered(service: Service, tmp_path: Path) -> None:
    with closed_port() as port, node(tmp_path, config(service, hook(port))) as agent:
        service.stop()
        agent.wait_for_log(f"a message to http://127.0.0.1:{port} was not delivered: connection refused")
        assert agent.stop() == 0
        assert agent.messages[-2:] == [
            f"1 message to http://127.0.0.1:{port} was not delivered before the end",
            "stopped",
        ]


def test_without_history_what_was_told_is_forgotten_over_a_restart(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver:
        text = "[history]\nkeep = false\n" + config(service, hook(receiver.port))
        with node(tmp_path, text) as agent:
            service.stop()
            agent.wait_until(lambda: len(receiver.requests) == 1)
        with Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent:
            agent.wait_until(lambda: len(receiver.requests) == 2)
        assert "db (Ledger) is Down, and has not been Up yet: " in receiver.texts[1]


def test_what_a_receiver_that_is_gone_did_not_get_it_gets_when_it_is_back(service: Service, tmp_path: Path) -> None:
    with closed_port() as port:
        text = config(service, hook(port))
    with node(tmp_path, text) as agent:
        service.stop()
        agent.wait_for_log(f"a message to http://127.0.0.1:{port} was not delivered: connection refused")
        service.start()
        agent.wait_until(lambda: agent.health() == 200)
        time.sleep(0.2)
        with Receiver(port=port) as receiver:
            agent.wait_until(lambda: len(receiver.requests) == 2)
            agent.wait_for_log(f"messages to http://127.0.0.1:{port} are delivered again")
            assert [document["node"]["health"] for document in receiver.documents] == [503, 200]
            assert [document["lost"] for document in receiver.documents] == [0, 0]
            assert agent.stop() == 0


def test_a_receiver_that_hangs_delays_neither_answers_nor_checks(service: Service, tmp_path: Path) -> None:
    with Backend(unresponsive) as hung, node(tmp_path, config(service, hook(hung.port))) as agent:
        service.stop()
        agent.wait_until(lambda: hung.connection_count == 1)
        slowest_s = 0.0
        for status, change in ((200, service.start), (503, service.stop), (200, service.start)):
            change()
            deadline_s = time.monotonic() + DEADLINE_S
            code = 0
            while code != status:
                assert time.monotonic() < deadline_s, "the looking has stopped"
                began_s = time.monotonic()
                code = agent.health()
                slowest_s = max(slowest_s, time.monotonic() - began_s)
        assert slowest_s < HEALTH_S
        assert hung.connection_count == 1, "one attempt at a time"
        began_s = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - began_s < 2 + HEALTH_S
        agent.wait_for_log(r"[34] messages to http://127.0.0.1:\d+ were not delivered before the end")


@pytest.mark.parametrize(
    "refusal", [http_response(500), http_response(302, Location="http://127.0.0.1:1/"), http_response(404), b"no HTTP"]
)
def test_whatever_is_no_success_is_tried_again(refusal: bytes, service: Service, tmp_path: Path) -> None:
    answers = iter([refusal])
    with (
        Receiver(lambda _: next(answers, http_response(204))) as receiver,
        node(tmp_path, config(service, hook(receiver.port))) as agent,
    ):
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 2)
        first, second = receiver.documents
        assert first == second, "it is known by its id"
        agent.wait_for_log("was not delivered: (it answered (500|302|404)|what came back is not HTTP)")
        assert agent.stop() == 0
        assert len(receiver.requests) == 2


def test_a_slow_receiver_does_not_keep_another_waiting(service: Service, tmp_path: Path) -> None:
    with Backend(unresponsive) as hung, Receiver() as receiver:
        hooks = f'webhook = ["http://127.0.0.1:{hung.port}/", "http://127.0.0.1:{receiver.port}/"]'
        with node(tmp_path, config(service, hooks)) as agent:
            service.stop()
            agent.wait_until(lambda: len(receiver.requests) == 1)
            agent.wait_until(lambda: hung.connection_count == 1)


def test_good_news_that_are_held_back_are_sent_before_the_end(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, hook(receiver.port), resolve_delay="1h")) as agent:
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 1)
        service.start()
        agent.wait_until(lambda: agent.health() == 200)
        time.sleep(0.3)
        assert len(receiver.requests) == 1
        assert agent.stop() == 0
        assert len(receiver.requests) == 2
        assert receiver.documents[1]["node"]["health"] == 200, "and not that of a node that stops"


def test_the_certificate_of_a_receiver_is_checked(service: Service, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with Receiver(tls=server_tls(made)) as receiver:
        trusting = f'webhook = {{ url = "https://localhost:{receiver.port}", ca = "{made.certificate}" }}'
        text = config(service, f'webhook = "https://localhost:{receiver.port}"')
        with node(tmp_path, text) as agent:
            service.stop()
            agent.wait_for_log("was not delivered: its certificate is not valid: self-signed certificate")
            assert not receiver.requests
            agent.reload(config(service, trusting))
            agent.wait_until(lambda: len(receiver.requests) == 1)


# ---- many at once, over real sockets


def test_an_outbox_is_bounded_and_tells_what_it_lost() -> None:
    with closed_port() as port:
        target = webhook_from(f"http://127.0.0.1:{port}/", {})
    identity = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1")
    notices = DeliveryStats()

    async def story() -> list[dict[str, Any]]:
        sender = Dispatcher(notices)
        sender.set_targets([target])
        for number in range(MAX_QUEUED + 20):
            sender.dispatch(build_test_message(identity, str(number), 0.0), {})
        assert (notices.dropped, notices.queued) == (20, MAX_QUEUED)
        await asyncio.sleep(0.2)
        with Receiver(port=port) as receiver:
            await sender.close()
            return receiver.documents

    documents = asyncio.run(story())
    assert [document["id"] for document in documents] == [str(number) for number in range(20, MAX_QUEUED + 20)]
    assert [document["lost"] for document in documents] == [20] + [0] * (MAX_QUEUED - 1)
    assert notices.sent == MAX_QUEUED


# ---- reload


def test_a_key_that_was_wrong_is_fixed_by_a_reload_and_nothing_is_lost(service: Service, tmp_path: Path) -> None:
    def answer(request: ReceivedRequest) -> bytes:
        return OK if request.headers.get("authorization") == "Bearer right" else http_response(401)

    def text(bearer: str, port: int) -> str:
        return config(service, f'webhook = {{ url = "http://127.0.0.1:{port}/", bearer = "{bearer}" }}')

    with Receiver(answer) as receiver, node(tmp_path, text("wrong", receiver.port)) as agent:
        service.stop()
        agent.wait_for_log("was not delivered: it answered 401")
        service.start()
        agent.wait_until(lambda: agent.health() == 200)
        agent.reload(text("right", receiver.port))
        agent.wait_for_log("are delivered again")
        taken = [document for request, document in zip(receiver.requests, receiver.documents, strict=True)
                 if request.headers["authorization"] == "Bearer right"]  # fmt: skip
        assert taken[0]["node"]["health"] == 503
        agent.wait_until(lambda: receiver.documents[-1]["node"]["health"] == 200)


def test_telling_people_can_be_switched_on_and_off_by_a_reload(service: Service, tmp_path: Path) -> None:
    silent = config(service).replace("[notify]", "[notify]\nwebhook = []")
    with Receiver() as receiver, node(tmp_path, silent) as agent:
        service.stop()
        agent.wait_until(lambda: agent.health() == 503)
        agent.reload(config(service, hook(receiver.port)))
        agent.wait_until(lambda: len(receiver.requests) == 1)
        agent.reload(SOON + f'[[services]]\nid = "db"\nprobe = "tcp://127.0.0.1:{service.port}"\n')
        service.start()
        agent.wait_until(lambda: agent.health() == 200)
        time.sleep(0.3)
        assert len(receiver.requests) == 1


def test_a_reload_that_names_a_wrong_target_changes_nothing(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, hook(receiver.port))) as agent:
        (tmp_path / "svcnode.toml").write_text(config(service, 'apprise = ["slak://a/b/c"]'))
        agent.signal(signal.SIGHUP)
        agent.wait_for_log(r"reload failed, .*: notify\.apprise\[0\]: ")
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 1)


# ---- Apprise


def apprise(port: int) -> str:
    return f'apprise = ["json://reader:{KEY}@127.0.0.1:{port}/{KEY}?:X-Token={KEY}"]'


def test_apprise_tells_whoever_it_knows(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, apprise(receiver.port))) as agent:
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 1)
        service.start()
        agent.wait_until(lambda: len(receiver.requests) == 2)
        assert agent.stop() == 0
        down, up = receiver.documents
        assert down["title"] == "validator-7 is unhealthy (503), was healthy (200)"
        assert down["message"].startswith("db (Ledger) is Down, was Up: connection refused")
        assert (down["type"], up["type"]) == ("failure", "success")
        assert up["message"].startswith("db (Ledger) has recovered: Up after ")


def test_what_apprise_could_not_deliver_is_tried_again(service: Service, tmp_path: Path) -> None:
    answers = iter([http_response(500)])
    with (
        Receiver(lambda _: next(answers, OK)) as receiver,
        node(tmp_path, config(service, apprise(receiver.port))) as agent,
    ):
        service.stop()
        agent.wait_for_log(r"a message to json://\*\*\* was not delivered: it answered 500")
        agent.wait_until(lambda: len(receiver.requests) == 2)
        agent.wait_for_log("are delivered again")


def test_apprise_that_hangs_delays_neither_answers_nor_the_end(service: Service, tmp_path: Path) -> None:
    with Backend(unresponsive) as hung, node(tmp_path, config(service, apprise(hung.port))) as agent:
        service.stop()
        agent.wait_until(lambda: hung.connection_count == 1)
        for _ in range(20):
            began_s = time.monotonic()
            assert agent.health() == 503
            assert time.monotonic() - began_s < HEALTH_S
        began_s = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - began_s < 2 + 2 * HEALTH_S


def test_loading_apprise_at_a_reload_does_not_hold_up_the_answers(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, "webhook = []")) as agent:
        reloads = sum("reloaded" in line for line in agent.lines)
        (tmp_path / "svcnode.toml").write_text(config(service, apprise(receiver.port)))
        agent.signal(signal.SIGHUP)
        answers = 0
        while sum("reloaded" in line for line in agent.lines) == reloads:
            assert agent.health() == 200
            answers += 1
        assert answers > 10


def test_a_node_that_tells_nobody_loads_nothing_for_it(tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text('[[services]]\nid = "db"\nstatus = "Up"\n')
    modules = {name for name in modules_after(SERVE, tmp_path) if name.startswith("svcnode.notify")}
    assert modules == {"svcnode.notify", "svcnode.notify.model"}
    (tmp_path / "svcnode.toml").write_text('[notify]\nwebhook = "http://127.0.0.1:1/"\n')
    assert not modules_after(SERVE, tmp_path) & {"apprise", "requests", "httpx2"}


# ---- svcnode notify-test


def notify_test(folder: Path, text: str | None, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    if text is not None:
        (folder / "svcnode.toml").write_text(text)
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "svcnode", "notify-test", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TOKEN": KEY, **environ},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )


def test_a_test_message_goes_to_every_target(tmp_path: Path) -> None:
    with Receiver() as first, Receiver() as second:
        text = f'[node]\nname = "validator-7"\n[notify]\n{hook(first.port)}\n{apprise(second.port)}'
        ended = notify_test(tmp_path, text)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert [line.split()[:3] for line in ended.stdout.splitlines()] == [
            ["1", f"http://127.0.0.1:{first.port}", "sent"],
            ["2", "json://***", "sent"],
        ]
        (document,) = first.documents
        assert document["kind"] == "test"
        assert document["text"].startswith("validator-7: this is a test\n")
        assert second.documents[0]["title"] == "validator-7: this is a test"


def test_a_test_message_needs_nothing_that_only_services_need(tmp_path: Path) -> None:
    with Receiver() as receiver:
        probe = "postgresql://me:${LEDGER_PASSWORD}@127.0.0.1/ledger"
        text = f'[notify]\n{hook(receiver.port)}\n[[services]]\nid = "ledger"\nprobe = "{probe}"\nimpact = "critcal"'
        ended = notify_test(tmp_path, text)
        assert (ended.returncode, ended.stderr, len(receiver.documents)) == (0, "", 1)
        ended = notify_test(tmp_path, text.replace("[notify]", '[notify]\nquite = "5m"'))
    assert ended.stderr == 'svcnode: notify.resolve_dely: unknown key; did you mean "resolve_delay"? (svcnode.toml:2)\n'
    assert (ended.returncode, ended.stdout) == (2, "")


def test_a_test_message_can_go_to_one_target(tmp_path: Path) -> None:
    with Receiver() as first, Receiver() as second:
        text = f'[notify]\nwebhook = ["http://127.0.0.1:{first.port}", "http://127.0.0.1:{second.port}"]'
        ended = notify_test(tmp_path, text, "--to", "2")
        assert ended.returncode == 0
        assert ended.stdout.startswith(f"2  http://127.0.0.1:{second.port}  sent (")
        assert (len(first.requests), len(second.requests)) == (0, 1)
        ended = notify_test(tmp_path, text, "--to", "3")
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr == "svcnode: --to: there is no target 3; they have the numbers 1 to 2\n"


def test_a_test_message_that_is_not_taken_says_why_without_any_key(tmp_path: Path) -> None:
    with Receiver(http_response(403)) as first, Receiver(http_response(401)) as second, closed_port() as port:
        ended = notify_test(
            tmp_path,
            f'[notify]\nwebhook = ["http://127.0.0.1:{first.port}/{KEY}", "http://127.0.0.1:{port}/{KEY}"]\n'
            f'apprise = ["json://127.0.0.1:{second.port}/{KEY}", "json://127.0.0.1:{port}/{KEY}"]',
        )
    assert (ended.returncode, ended.stderr) == (1, "")
    told = [line.partition("failed: ")[2].partition(" (")[0] for line in ended.stdout.splitlines()]
    assert told == ["it answered 403", "connection refused", "it answered 401", "it cannot be reached"]
    assert KEY not in ended.stdout


@pytest.mark.parametrize("text", [None, '[[services]]\nid = "db"\nstatus = "Up"\n', "[notify]\nwebhook = []\n"])
def test_without_anybody_to_tell_it_says_how_to_name_them(text: str | None, tmp_path: Path) -> None:
    ended = notify_test(tmp_path, text)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        'svcnode: nobody is told of anything: set webhook = "https://…" or apprise = ["…"] in [notify]\n'
    )


def test_whom_to_tell_can_stand_in_the_environment(tmp_path: Path) -> None:
    with Receiver() as receiver:
        ended = notify_test(tmp_path, None, SVCNODE_NOTIFY_WEBHOOK=f"http://127.0.0.1:{receiver.port}/{KEY}")
        assert ended.returncode == 0, ended.stderr
        assert len(receiver.requests) == 1
