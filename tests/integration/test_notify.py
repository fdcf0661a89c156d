"""Notifications of a real node, with receivers that respond, hang, fail or are not there."""

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

from svcnode.control import Client
from svcnode.core.model import Identity
from svcnode.node import Node
from svcnode.notify import NotifyStatus
from svcnode.notify.alert import FLAP_THRESHOLD, AlertPolicy
from svcnode.notify.alertmanager import alertmanager_from
from svcnode.notify.dispatcher import MAX_QUEUED, Dispatcher
from svcnode.notify.message import build_test_message
from svcnode.notify.notifier import Notifier, NotifySettings
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
from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent
from tests.support.servers.alertmanager import AlertmanagerServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from svcnode.notify.targets import NotificationTarget

OK = http_response(200, "ok")
FLAGS = ("--listen", "127.0.0.1:0", "--drain", "0s", "--log-level", "debug", "--name", "validator-7")
RESPONSE_S = 10.0  # less than the 15 s of one attempt to deliver
# Four failures in a row: a refused connection is noticed soon, and a busy machine is not mistaken for one.
FAST = """
[defaults]
interval = "500ms"
transition_interval = "20ms"
timeout = "490ms"
fall = 4
rise = 1
start_period = "0s"
stale_after = "60s"
"""
KEY = "k3y-that-must-not-appear"


class Receiver(HttpBackend):
    """Records the requests and sends the given response."""

    def __init__(
        self, response: bytes | Callable[[ReceivedRequest], bytes] = OK, *, port: int = 0, **more: Any
    ) -> None:
        HttpBackend.__init__(self, response, **more)
        if port:
            self._listener.close()
            self._listener = socket.create_server(("127.0.0.1", port))
            self.port = port

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(request.body) for request in self.requests]

    @property
    def changes(self) -> list[tuple[str, str, str | None]]:
        """The change of `db` in each message: its type, the new status and the previous one."""
        services = [service for document in self.documents for service in document["services"]]
        return [(one["change"], one["status"], one["status_before"]) for one in services]


class Service:
    """A listening socket that can be closed and opened again."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.port = free_port()
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


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


def config(service: Service, *notify: str, resolve_delay: str = "0s") -> str:
    """A node that stats a change soon and sends the message at once."""
    probe = f'[[services]]\nid = "db"\nname = "Ledger"\nprobe = "tcp://127.0.0.1:{service.port}"\nimpact = "critical"\n'
    return "\n".join(["[notify]", 'group_wait = "50ms"', f'resolve_delay = "{resolve_delay}"', *notify, FAST, probe])


def hook(port: int) -> str:
    return f'webhook = {{ url = "http://127.0.0.1:{port}/hooks/{KEY}", headers = {{ X-Token = "${{TOKEN}}" }} }}'


@contextmanager
def node(folder: Path, text: str) -> Iterator[Agent]:
    """Ready when its service is Up. No line of its log may contain the key."""
    with Agent(folder, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        yield agent
        agent.process.kill()
        agent.wait_for_exit()
        assert KEY not in "\n".join(agent.lines)


def queued_messages(agent: Agent) -> int:
    (line,) = (
        line
        for line in agent.request("/metrics").body.decode().splitlines()
        if line.startswith("svcnode_notifications_queue_length ")
    )
    return int(float(line.split()[1]))


# ---- webhooks


def test_a_service_that_goes_down_and_recovers_is_two_messages(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, hook(receiver.port))) as agent:
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 1)
        assert agent.health() == 503
        service.start()
        agent.wait_until(lambda: len(receiver.requests) == 2)
        assert agent.health() == 200
        assert agent.stop() == 0
        down, up = receiver.documents
        assert down["services"][0]["code"] == "connection_refused"
        assert str(service.port) in down["text"]
        assert (down["node"]["health"], up["node"]["health"]) == (503, 200)
        assert receiver.changes == [("worse", "Down", "Up"), ("recovered", "Up", "Down")]
        assert (down["node"]["change"], up["node"]["change"]) == ("worse", "recovered")
        assert 0 < up["services"][0]["duration_s"] < DEADLINE_S
        assert down["services"][0]["since"] < up["services"][0]["since"]
        request = receiver.requests[0]
        assert (request.method, request.target) == ("POST", f"/hooks/{KEY}")
        assert request.headers["x-token"] == KEY
        assert request.headers["content-type"] == "application/json"


def test_neither_start_nor_stop_of_a_node_is_notified(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver:
        for _ in range(2):
            with node(tmp_path, config(service, hook(receiver.port))) as agent:
                assert agent.stop() == 0
        assert receiver.requests == []


def test_a_service_that_was_never_up_is_notified(service: Service, tmp_path: Path) -> None:
    service.stop()
    with (
        Receiver() as receiver,
        Agent(tmp_path, *FLAGS, config=config(service, hook(receiver.port)), environ={"TOKEN": KEY}) as agent,
    ):
        agent.wait_until(lambda: bool(receiver.requests))
        assert receiver.changes == [("worse", "Down", None)]


def test_a_service_that_never_becomes_up_is_notified_after_the_start_limit(tmp_path: Path) -> None:
    with (
        Backend(unresponsive) as backend,
        Receiver() as receiver,
        Agent(
            tmp_path,
            *FLAGS,
            config=f"""
                [notify]
                webhook = "http://127.0.0.1:{receiver.port}/"
                group_wait = "50ms"
                start_limit = "100ms"
                [[services]]
                id = "db"
                probe = "http://127.0.0.1:{backend.port}/"
                start_period = "0s"
            """,
        ) as agent,
    ):
        agent.wait_until(lambda: bool(receiver.requests))
        assert receiver.changes == [("worse", "Initializing", None)]
        (document,) = receiver.documents
        assert (document["node"]["change"], document["node"]["health"]) == ("worse", 206)


def flap_and_go_down(target: NotificationTarget, is_notified: Callable[[], bool]) -> None:
    """A critical service changes often and then stays Down. Its node is in this process; its time runs faster."""

    async def scenario() -> None:
        node = Node("validator-7", version="v1.4.2", clock=lambda: 100 * time.monotonic())
        db = node.register("db", name="Ledger", impact="critical")
        db.up()
        settings = NotifySettings(targets=(target,), policy=AlertPolicy(group_wait_s=0.05, resolve_delay_s=0.0))
        async with Notifier(node, settings, NotifyStatus()), asyncio.timeout(DEADLINE_S):
            for _ in range(FLAP_THRESHOLD):
                db.down("refused")
                await asyncio.sleep(0.1)
                db.up()
                await asyncio.sleep(0.1)
            db.down("refused")
            while not await asyncio.to_thread(is_notified):  # noqa: ASYNC110  targets set no event
                await asyncio.sleep(0.1)

    asyncio.run(scenario())


def test_a_service_that_is_down_after_flapping_is_notified_as_down() -> None:
    with Receiver() as receiver:
        target = webhook_from(f"http://127.0.0.1:{receiver.port}/", {})
        flap_and_go_down(target, lambda: receiver.changes[-1][:2] == ("worse", "Down"))
        assert receiver.documents[-1]["node"]["health"] == 503


def saved_incidents(folder: Path) -> list[tuple[str | None, bool]]:
    """The open incidents in the saved state: the service id, and whether the incident is confirmed."""
    path = folder / ".local" / "state" / "svcnode" / "nodes" / "validator-7" / "history.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT text FROM saved_state WHERE name = 'notify'").fetchone()
    rows = json.loads(found[0])["incidents"] if found else []
    return [(service_id, is_confirmed) for service_id, *_, is_confirmed, _ in rows]


def notify_down(service: Service, folder: Path, receiver: Receiver, *, is_killed: bool) -> None:
    """A node that notifies that its service is Down, and ends."""
    with node(folder, config(service, hook(receiver.port))) as agent:
        service.stop()
        agent.wait_until(lambda: saved_incidents(folder) == [(None, True), ("db", True)])
        if not is_killed:
            assert agent.stop() == 0
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_recovery_during_a_restart_is_notified(service: Service, tmp_path: Path, is_killed: bool) -> None:
    with Receiver() as receiver:
        notify_down(service, tmp_path, receiver, is_killed=is_killed)
        service.start()
        with node(tmp_path, config(service, hook(receiver.port))) as agent:
            agent.wait_until(lambda: len(receiver.requests) == 2)
            agent.wait_until(lambda: saved_incidents(tmp_path) == [])
            assert agent.stop() == 0
        up = receiver.documents[-1]
        assert [one["change"] for one in (up["node"], *up["services"])] == ["recovered"] * 2
        assert up["services"][0]["duration_is_upper_bound"]
        assert 0 < up["services"][0]["duration_s"] < 2 * DEADLINE_S
        with node(tmp_path, config(service, hook(receiver.port))) as agent:
            assert agent.stop() == 0
        assert len(receiver.requests) == 2


def test_the_incidents_and_the_history_of_one_node_are_not_those_of_another(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver:
        notify_down(service, tmp_path, receiver, is_killed=False)
        service.start()
        flags = (*FLAGS[:-1], "validator-8")
        text = config(service, hook(receiver.port))
        with Agent(tmp_path, *flags, config=text, environ={"TOKEN": KEY}) as agent:
            agent.wait_until(lambda: agent.health() == 200)
            document = agent.request("/history?id=db&resolution=minutes&transitions=50").json
            assert {one["after"] for one in document["transitions"]["db"]} == {"Up"}
            assert sum(down_s for _, _, _, down_s, *_ in document["services"]["db"]) == 0
            service.stop()
            agent.wait_until(lambda: len(receiver.requests) > 1)
            assert agent.stop() == 0
        assert receiver.changes == [("worse", "Down", "Up")] * 2
        assert [one["node"]["name"] for one in receiver.documents] == ["validator-7", "validator-8"]


def test_an_incident_of_a_renamed_node_is_resolved_after_a_restart(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver:
        text = config(service, hook(receiver.port))
        flags = FLAGS[:-2]
        with Agent(tmp_path, *flags, config=f'[node]\nname = "old"\n{text}', environ={"TOKEN": KEY}) as agent:
            agent.wait_until(lambda: agent.health() == 200)
            service.stop()
            agent.wait_until(lambda: len(receiver.requests) == 1)
            agent.reload(f'[node]\nname = "validator-7"\n{text}')
            agent.wait_until((tmp_path / ".local/state/svcnode/nodes/validator-7/history.db").exists)
            assert agent.stop() == 0
        service.start()
        with node(tmp_path, text) as agent:
            agent.wait_until(lambda: len(receiver.requests) == 2)
        assert receiver.changes[-1] == ("recovered", "Up", "Down")


def test_an_unchanged_incident_is_not_notified_again_after_a_restart(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver:
        notify_down(service, tmp_path, receiver, is_killed=True)
        text = config(service, hook(receiver.port))
        with Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent:
            agent.wait_until(lambda: agent.health() == 503)
            assert agent.stop() == 0, "stopping sends pending changes"
        assert len(receiver.requests) == 1
        with Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent:
            agent.wait_until(lambda: agent.health() == 503)
            service.start()
            agent.wait_until(lambda: len(receiver.requests) == 2)
        assert not receiver.documents[-1]["services"][0]["duration_is_upper_bound"], "the recovery was observed"


def test_an_undelivered_incident_is_notified_after_a_restart(service: Service, tmp_path: Path) -> None:
    with closed_port() as port, node(tmp_path, config(service, hook(port))) as agent:
        service.stop()
        agent.wait_until(lambda: saved_incidents(tmp_path) == [(None, False), ("db", False)])
    text = config(service, hook(port))
    with (
        Receiver(port=port) as receiver,
        Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent,
    ):
        agent.wait_until(lambda: bool(receiver.requests))
        assert receiver.changes == [("ongoing", "Down", "Down")]
        assert receiver.documents[0]["lost"] == 1, "before the restart"


def test_an_undelivered_recovery_is_notified_after_a_restart_beside_a_failing_target(
    service: Service, tmp_path: Path
) -> None:
    responses = [OK]
    with closed_port() as closed, Receiver(lambda _: responses[-1]) as receiver:
        text = config(service, f'webhook = ["http://127.0.0.1:{closed}/", "http://127.0.0.1:{receiver.port}/"]')
        with node(tmp_path, text) as agent:
            service.stop()
            agent.wait_until(lambda: len(receiver.requests) == 1)
            responses.append(http_response(503, "later"))
            service.start()
            agent.wait_until(lambda: len(receiver.requests) > 1)
            assert agent.stop() == 0
        responses.append(OK)
        attempts = len(receiver.requests)
        with node(tmp_path, text) as agent:
            agent.wait_until(lambda: len(receiver.requests) > attempts)
            assert agent.stop() == 0
        assert receiver.changes[-1] == ("recovered", "Up", "Down")
        assert receiver.documents[-1]["services"][0]["duration_is_upper_bound"]
        assert receiver.documents[-1]["lost"] == 1


def test_undelivered_messages_are_logged_before_the_stop(service: Service, tmp_path: Path) -> None:
    with closed_port() as port, node(tmp_path, config(service, hook(port))) as agent:
        service.stop()
        agent.wait_for_event("notification_failed", target=f"http://127.0.0.1:{port}", code="connection_refused")
        assert agent.stop() == 0
        undelivered, stopped = agent.log_entries[-2:]
        assert (undelivered["event"], undelivered["count"]) == ("notifications_undelivered", 1)
        assert stopped["event"] == "stopped"


def test_without_history_an_incident_is_notified_again_after_a_restart(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver:
        text = "[history]\nkeep = false\n" + config(service, hook(receiver.port))
        with node(tmp_path, text) as agent:
            service.stop()
            agent.wait_until(lambda: len(receiver.requests) == 1)
        with Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent:
            agent.wait_until(lambda: len(receiver.requests) == 2)
        assert receiver.changes == [("worse", "Down", "Up"), ("worse", "Down", None)]


def test_messages_are_delivered_when_the_receiver_is_back(service: Service, tmp_path: Path) -> None:
    with closed_port() as port:
        text = config(service, hook(port))
    with node(tmp_path, text) as agent:
        service.stop()
        agent.wait_for_event("notification_failed", target=f"http://127.0.0.1:{port}", code="connection_refused")
        service.start()
        agent.wait_until(lambda: agent.health() == 200)
        agent.wait_until(lambda: queued_messages(agent) == 2)
        with Receiver(port=port) as receiver:
            agent.wait_until(lambda: len(receiver.requests) == 2)
            agent.wait_for_event("notification_recovered", target=f"http://127.0.0.1:{port}")
            assert [document["node"]["health"] for document in receiver.documents] == [503, 200]
            assert [document["lost"] for document in receiver.documents] == [0, 0]
            assert agent.stop() == 0


def test_a_hanging_receiver_delays_neither_responses_nor_checks(service: Service, tmp_path: Path) -> None:
    with Backend(unresponsive) as hanging, node(tmp_path, config(service, hook(hanging.port))) as agent:
        service.stop()
        agent.wait_until(lambda: hanging.connection_count == 1)
        slowest_s = 0.0
        for status, change in ((200, service.start), (503, service.stop), (200, service.start)):
            change()
            deadline_s = time.monotonic() + DEADLINE_S
            code = 0
            while code != status:
                assert time.monotonic() < deadline_s, "checks have stopped"
                started_s = time.monotonic()
                code = agent.health()
                slowest_s = max(slowest_s, time.monotonic() - started_s)
        assert slowest_s < RESPONSE_S
        assert hanging.connection_count == 1, "one attempt at a time"
        started_s = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - started_s < 2 + RESPONSE_S
        assert agent.wait_for_event("notifications_undelivered")["count"] in (3, 4)


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (http_response(500), "server_error"),
        (http_response(302, Location="http://127.0.0.1:1/"), "redirected"),
        (http_response(404), "not_found"),
        (b"no HTTP", "protocol_error"),
    ],
)
def test_any_response_but_2xx_is_retried(response: bytes, code: str, service: Service, tmp_path: Path) -> None:
    responses = iter([response])
    with (
        Receiver(lambda _: next(responses, http_response(204))) as receiver,
        node(tmp_path, config(service, hook(receiver.port))) as agent,
    ):
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 2)
        first, second = receiver.documents
        assert first == second, "the receiver knows it by its id"
        agent.wait_for_event("notification_failed", code=code)
        assert agent.stop() == 0
        assert len(receiver.requests) == 2


def test_a_hanging_receiver_does_not_delay_another(service: Service, tmp_path: Path) -> None:
    with Backend(unresponsive) as hanging, Receiver() as receiver:
        hooks = f'webhook = ["http://127.0.0.1:{hanging.port}/", "http://127.0.0.1:{receiver.port}/"]'
        with node(tmp_path, config(service, hooks)) as agent:
            service.stop()
            agent.wait_until(lambda: len(receiver.requests) == 1)
            agent.wait_until(lambda: hanging.connection_count == 1)


def test_a_recovery_that_waits_for_the_resolve_delay_is_sent_before_the_stop(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, hook(receiver.port), resolve_delay="1h")) as agent:
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 1)
        service.start()
        agent.wait_until(lambda: agent.health() == 200)
        assert len(receiver.requests) == 1
        assert agent.stop() == 0
        assert len(receiver.requests) == 2
        assert receiver.documents[1]["node"]["health"] == 200, "not the health of a draining node"


def test_the_certificate_of_a_receiver_is_verified(service: Service, tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with Receiver(tls=server_tls(made)) as receiver:
        trusting = f'webhook = {{ url = "https://localhost:{receiver.port}", ca = "{made.certificate}" }}'
        text = config(service, f'webhook = "https://localhost:{receiver.port}"')
        with node(tmp_path, text) as agent:
            service.stop()
            agent.wait_for_event("notification_failed", code="tls_untrusted")
            assert not receiver.requests
            agent.reload(config(service, trusting))
            agent.wait_until(lambda: len(receiver.requests) == 1)


# ---- many messages over real sockets


def test_a_queue_is_bounded_and_counts_the_lost_messages() -> None:
    with closed_port() as port:
        target = webhook_from(f"http://127.0.0.1:{port}/", {})
    identity = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1")
    stats = NotifyStatus()

    async def scenario() -> list[dict[str, Any]]:
        dispatcher = Dispatcher(stats)
        dispatcher.set_targets([target])
        for number in range(MAX_QUEUED + 20):
            dispatcher.dispatch(build_test_message(identity, str(number), 0.0), {})
        assert (stats.dropped, stats.queued) == (20, MAX_QUEUED)
        while not stats.failed:  # noqa: ASYNC110  it sets no event
            await asyncio.sleep(0.01)
        with Receiver(port=port) as receiver:
            await dispatcher.close()
            return receiver.documents

    documents = asyncio.run(scenario())
    assert [document["id"] for document in documents] == [str(number) for number in range(20, MAX_QUEUED + 20)]
    assert [document["lost"] for document in documents] == [20] + [0] * (MAX_QUEUED - 1)
    assert stats.sent == MAX_QUEUED


# ---- reload


def test_a_wrong_key_is_fixed_by_a_reload_and_nothing_is_lost(service: Service, tmp_path: Path) -> None:
    def respond(request: ReceivedRequest) -> bytes:
        return OK if request.headers.get("authorization") == "Bearer right" else http_response(401)

    def text(bearer: str, port: int) -> str:
        return config(service, f'webhook = {{ url = "http://127.0.0.1:{port}/", bearer = "{bearer}" }}')

    with Receiver(respond) as receiver, node(tmp_path, text("wrong", receiver.port)) as agent:
        service.stop()
        agent.wait_for_event("notification_failed", code="auth_failed")
        service.start()
        agent.wait_until(lambda: agent.health() == 200)
        agent.reload(text("right", receiver.port))
        agent.wait_for_event("notification_recovered")
        accepted = [document for request, document in zip(receiver.requests, receiver.documents, strict=True)
                 if request.headers["authorization"] == "Bearer right"]  # fmt: skip
        assert accepted[0]["node"]["health"] == 503
        agent.wait_until(lambda: receiver.documents[-1]["node"]["health"] == 200)


def test_notifications_can_be_enabled_and_disabled_by_a_reload(service: Service, tmp_path: Path) -> None:
    disabled = config(service).replace("[notify]", "[notify]\nwebhook = []")
    with Receiver() as receiver, node(tmp_path, disabled) as agent:
        service.stop()
        agent.wait_until(lambda: agent.health() == 503)
        agent.reload(config(service, hook(receiver.port)))
        agent.wait_until(lambda: len(receiver.requests) == 1)
        agent.reload(FAST + f'[[services]]\nid = "db"\nprobe = "tcp://127.0.0.1:{service.port}"\n')
        service.start()
        agent.wait_until(lambda: agent.health() == 200)
        assert agent.stop() == 0, "stopping sends pending changes"
        assert len(receiver.requests) == 1


def test_a_reload_with_an_invalid_target_changes_nothing(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, hook(receiver.port))) as agent:
        (tmp_path / "svcnode.toml").write_text(config(service, 'apprise = ["slak://a/b/c"]'))
        agent.signal(signal.SIGHUP)
        agent.wait_for_event("reload_failed")
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 1)


# ---- Apprise


def apprise(port: int) -> str:
    return f'apprise = ["json://reader:{KEY}@127.0.0.1:{port}/{KEY}?:X-Token={KEY}"]'


def test_messages_are_sent_through_apprise(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, apprise(receiver.port))) as agent:
        service.stop()
        agent.wait_until(lambda: len(receiver.requests) == 1)
        service.start()
        agent.wait_until(lambda: len(receiver.requests) == 2)
        assert agent.stop() == 0
        down, up = receiver.documents
        assert (down["type"], up["type"]) == ("failure", "success")
        assert all(part in down["title"] for part in ("validator-7", "503"))
        assert all(part in down["message"] for part in ("db", "Down", str(service.port)))
        assert all(part in up["title"] + up["message"] for part in ("200", "db", "Up"))


def test_a_failed_delivery_through_apprise_is_retried(service: Service, tmp_path: Path) -> None:
    responses = iter([http_response(500)])
    with (
        Receiver(lambda _: next(responses, OK)) as receiver,
        node(tmp_path, config(service, apprise(receiver.port))) as agent,
    ):
        service.stop()
        agent.wait_for_event("notification_failed", target="json://***", code="server_error")
        agent.wait_until(lambda: len(receiver.requests) == 2)
        agent.wait_for_event("notification_recovered")


def test_a_hanging_apprise_target_delays_neither_responses_nor_the_stop(service: Service, tmp_path: Path) -> None:
    with Backend(unresponsive) as hanging, node(tmp_path, config(service, apprise(hanging.port))) as agent:
        service.stop()
        agent.wait_until(lambda: hanging.connection_count == 1)
        for _ in range(20):
            started_s = time.monotonic()
            assert agent.health() == 503
            assert time.monotonic() - started_s < RESPONSE_S
        started_s = time.monotonic()
        assert agent.stop() == 0
        assert time.monotonic() - started_s < 2 + 2 * RESPONSE_S


def test_loading_apprise_at_a_reload_does_not_block_responses(service: Service, tmp_path: Path) -> None:
    with Receiver() as receiver, node(tmp_path, config(service, "webhook = []")) as agent:
        reloads = len(agent.events("reloaded"))
        (tmp_path / "svcnode.toml").write_text(config(service, apprise(receiver.port)))
        agent.signal(signal.SIGHUP)
        responses = 0
        while len(agent.events("reloaded")) == reloads:
            assert agent.health() == 200
            responses += 1
        assert responses > 10


def test_a_node_without_targets_loads_no_notification_code(tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text('[[services]]\nid = "db"\nstatus = "Up"\n')
    modules = {name for name in modules_after(SERVE, tmp_path) if name.startswith("svcnode.notify")}
    assert modules == {"svcnode.notify"}
    (tmp_path / "svcnode.toml").write_text('[notify]\nwebhook = "http://127.0.0.1:1/"\n')
    assert not modules_after(SERVE, tmp_path) & {"apprise", "requests", "httpx2"}


# ---- Alertmanager

LEDGER_DOWN, UNHEALTHY = ("SvcnodeCriticalServiceDown", "db"), ("SvcnodeNodeUnhealthy", "")


@pytest.fixture
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AlertmanagerServer]:
    with AlertmanagerServer(tmp_path_factory.mktemp("alertmanager")) as server:
        yield server


def test_alertmanager_receives_the_alerts_of_a_node_and_their_end(
    service: Service, alertmanager: AlertmanagerServer, tmp_path: Path
) -> None:
    with node(tmp_path, config(service, f'alertmanager = "{alertmanager.url}"')) as agent:
        service.stop()
        agent.wait_until(lambda: alertmanager.alerts().keys() == {LEDGER_DOWN, UNHEALTHY})
        alert = alertmanager.alerts()[LEDGER_DOWN]
        labels = {"severity": "critical", "instance": "validator-7", "service_id": "db", "impact": "critical"}
        assert labels.items() <= alert["labels"].items()
        assert "connection refused" in alert["annotations"]["description"]
        agent.wait_until(lambda: alertmanager.alerts()[UNHEALTHY]["status"]["inhibitedBy"] == [alert["fingerprint"]])
        service.start()
        agent.wait_until(lambda: alertmanager.alerts() == {})


def test_a_critical_alert_fires_in_alertmanager_while_its_service_is_down_after_flapping(
    alertmanager: AlertmanagerServer,
) -> None:
    target = alertmanager_from(alertmanager.url, {})
    flap_and_go_down(target, lambda: alertmanager.alerts().keys() == {LEDGER_DOWN, UNHEALTHY})


def test_alertmanager_receives_the_end_of_an_alert_from_before_a_restart(
    service: Service, alertmanager: AlertmanagerServer, tmp_path: Path
) -> None:
    text = config(service, f'alertmanager = "{alertmanager.url}"')
    with node(tmp_path, text) as agent:
        service.stop()
        agent.wait_until(lambda: saved_incidents(tmp_path) == [(None, True), ("db", True)])
    assert alertmanager.alerts().keys() == {LEDGER_DOWN, UNHEALTHY}
    alertmanager.restart()  # it has forgotten the alerts
    with Agent(tmp_path, *FLAGS, config=text) as agent:
        agent.wait_until(lambda: alertmanager.alerts().keys() == {LEDGER_DOWN, UNHEALTHY})
        agent.process.kill()
        agent.wait_for_exit()
    service.start()
    with node(tmp_path, text) as agent:
        agent.wait_until(lambda: alertmanager.alerts() == {})


def test_a_test_message_is_an_alert_of_its_own_for_alertmanager(
    alertmanager: AlertmanagerServer, tmp_path: Path
) -> None:
    assert notify_test(tmp_path, f'[notify]\nalertmanager = ["{alertmanager.url}"]').returncode == 0
    assert alertmanager.alerts().keys() == {("SvcnodeTest", "")}


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
        completed = notify_test(tmp_path, text)
        assert (completed.returncode, completed.stderr) == (0, "")
        assert [line.split()[:3] for line in completed.stdout.splitlines()] == [
            ["1", f"http://127.0.0.1:{first.port}", "sent"],
            ["2", "json://***", "sent"],
        ]
        (document,) = first.documents
        assert document["kind"] == "test"
        assert document["text"].startswith(second.documents[0]["title"])


def test_a_test_message_needs_no_valid_services(tmp_path: Path) -> None:
    with Receiver() as receiver:
        probe = "postgresql://me:${LEDGER_PASSWORD}@127.0.0.1/ledger"
        text = f'[notify]\n{hook(receiver.port)}\n[[services]]\nid = "ledger"\nprobe = "{probe}"\nimpact = "critcal"'
        completed = notify_test(tmp_path, text)
        assert (completed.returncode, completed.stderr, len(receiver.documents)) == (0, "", 1)
        completed = notify_test(tmp_path, text.replace("[notify]", '[notify]\nresolve_dely = "5m"'))
    assert all(part in completed.stderr for part in ("notify.resolve_dely", '"resolve_delay"', "svcnode.toml:2"))
    assert (completed.returncode, completed.stdout) == (2, "")


def test_a_test_message_can_go_to_one_target(tmp_path: Path) -> None:
    with Receiver() as first, Receiver() as second:
        text = f'[notify]\nwebhook = ["http://127.0.0.1:{first.port}", "http://127.0.0.1:{second.port}"]'
        completed = notify_test(tmp_path, text, "--to", "2")
        assert completed.returncode == 0
        assert completed.stdout.split()[:3] == ["2", f"http://127.0.0.1:{second.port}", "sent"]
        assert (len(first.requests), len(second.requests)) == (0, 1)
        completed = notify_test(tmp_path, text, "--to", "3")
        assert (completed.returncode, completed.stdout) == (2, "")
        assert "--to" in completed.stderr


def test_a_failed_test_message_has_a_reason_without_keys(tmp_path: Path) -> None:
    with Receiver(http_response(403)) as first, Receiver(http_response(401)) as second, closed_port() as port:
        completed = notify_test(
            tmp_path,
            f'[notify]\nwebhook = ["http://127.0.0.1:{first.port}/{KEY}", "http://127.0.0.1:{port}/{KEY}"]\n'
            f'apprise = ["json://127.0.0.1:{second.port}/{KEY}", "json://127.0.0.1:{port}/{KEY}"]',
        )
    assert (completed.returncode, completed.stderr) == (1, "")
    lines = completed.stdout.splitlines()
    assert len(lines) == 4
    assert ("403" in lines[0], "401" in lines[2]) == (True, True)
    assert KEY not in completed.stdout


@pytest.mark.parametrize("text", [None, '[[services]]\nid = "db"\nstatus = "Up"\n', "[notify]\nwebhook = []\n"])
def test_without_targets_notify_test_fails(text: str | None, tmp_path: Path) -> None:
    completed = notify_test(tmp_path, text)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert all(part in completed.stderr for part in ("[notify]", "webhook", "apprise"))


def test_a_target_can_come_from_the_environment(tmp_path: Path) -> None:
    with Receiver() as receiver:
        completed = notify_test(tmp_path, None, SVCNODE_NOTIFY_WEBHOOK=f"http://127.0.0.1:{receiver.port}/{KEY}")
        assert completed.returncode == 0, completed.stderr
        assert len(receiver.requests) == 1


# ---- maintenance


def test_during_maintenance_no_message_is_sent_and_after_it_what_is_wrong(tmp_path: Path, service: Service) -> None:
    control = f'[control]\nlisten = "unix:{tmp_path}/c.sock"\npath = "{tmp_path}/c.db"\n'
    with Receiver() as receiver:
        text = control + config(service, hook(receiver.port))
        with (
            Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent,
            Client(tmp_path / "c.sock") as client,
        ):
            agent.wait_until(lambda: agent.statuses() == {"db": "Up"})
            client.maintain("db", "1h", by="alice", reason="new disk")
            agent.wait_for_log("service db is in maintenance until ")
            service.stop()
            agent.wait_until(lambda: agent.statuses() == {"db": "Down"})
            assert agent.health() == 503
            agent.process.kill()
            agent.wait_for_exit()
        with (
            Agent(tmp_path, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent,
            Client(tmp_path / "c.sock") as client,
        ):
            agent.wait_until(lambda: agent.statuses() == {"db": "Down"})
            maintenance = client.service("db")["maintenance"]
            assert (maintenance["by"], maintenance["reason"]) == ("alice", "new disk")
            time.sleep(1.0)
            assert receiver.documents == []
            client.end_maintenance("db")
            agent.wait_until(lambda: receiver.changes == [("worse", "Down", None)])
            agent.wait_for_log("maintenance of service db has ended")
