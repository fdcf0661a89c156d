"""Notifications of a real node, with receivers that respond, hang, fail or are not there.

When a message is due, and what a restart continues, is tested in virtual time in tests/unit/notify.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.control import ControlClient
from svcnode.core.model import Identity
from svcnode.notify.message import build_test_message
from svcnode.notify.targets import apprise_from, webhook_from
from tests.support import commands
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
from tests.support.servers.alertmanager import AlertmanagerServer
from tests.support.tcp_service import TcpService

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from svcnode.notify.targets import DeliveryError, Message, NotificationTarget

OK = http_response(200, "ok")
FLAGS = ("--listen", "127.0.0.1:0", "--drain", "0s", "--log-level", "debug", "--name", "validator-7")
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


@pytest.fixture
def service() -> Iterator[TcpService]:
    with TcpService() as service:
        yield service


def config(service: TcpService, *notify: str) -> str:
    """A node that notices a change soon and sends the message at once."""
    probe = f'[[services]]\nid = "db"\nname = "Ledger"\nprobe = "tcp://127.0.0.1:{service.port}"\nimpact = "critical"\n'
    return "\n".join(["[notify]", 'group_wait = "50ms"', 'resolve_delay = "0s"', *notify, FAST, probe])


def hook(port: int) -> str:
    return f'webhook = {{ url = "http://127.0.0.1:{port}/hooks/{KEY}", headers = {{ X-Token = "${{TOKEN}}" }} }}'


def apprise_url(port: int) -> str:
    return f"json://reader:{KEY}@127.0.0.1:{port}/{KEY}?:X-Token={KEY}"


@contextmanager
def node(folder: Path, text: str, *, health: int = 200) -> Iterator[Agent]:
    """Ready when it has this health. No line of its log may contain the key."""
    with Agent(folder, *FLAGS, config=text, environ={"TOKEN": KEY}) as agent:
        agent.wait_until(lambda: agent.health() == health)
        yield agent
        agent.process.kill()
        agent.wait_for_exit()
        assert KEY not in "\n".join(agent.lines)


def told(folder: Path, target: int = 0) -> list[tuple[str, int]]:
    """What a target has been told, as it is saved."""
    path = folder / ".local" / "state" / "svcnode" / "nodes" / "validator-7" / "history.db"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        found = database.execute("SELECT text FROM saved_state WHERE name = 'notify'").fetchone()
    targets = json.loads(found[0])["targets"] if found else []
    return [(row["name"], row["told"]) for row in targets[target]["told"]] if len(targets) > target else []


DOWN_TOLD = [("", 503), ("db", 503)]


# ---- a real node


def test_what_goes_down_and_recovers_arrives_also_over_kills_and_nothing_arrives_twice(
    service: TcpService, tmp_path: Path
) -> None:
    """A webhook and Apprise. The second node is killed, the third one finds the recovery."""
    with Receiver() as receiver, Receiver() as through_apprise:
        targets = (hook(receiver.port), f'apprise = ["{apprise_url(through_apprise.port)}"]')
        text = config(service, *targets)
        with node(tmp_path, text) as agent:
            service.stop()
            agent.wait_until(lambda: len(receiver.requests) == len(through_apprise.requests) == 1)
            assert agent.health() == 503
            service.start()
            agent.wait_until(lambda: len(receiver.requests) == len(through_apprise.requests) == 2)
            assert agent.stop() == 0
        assert told(tmp_path) == []
        with node(tmp_path, text) as agent:
            service.stop()
            agent.wait_until(lambda: told(tmp_path, 0) == told(tmp_path, 1) == DOWN_TOLD)
        with node(tmp_path, text, health=503) as agent:
            assert agent.stop() == 0, "stopping sends pending changes"
        assert len(receiver.requests) == 3
        assert [one["services"][0]["outages"]["count"] for one in receiver.documents] == [1, 1, 2]
        service.start()
        with node(tmp_path, text) as agent:
            agent.wait_until(lambda: len(receiver.requests) == len(through_apprise.requests) == 4)
        down_up = [("worse", "Down", "Up"), ("recovered", "Up", "Down")]
        assert receiver.changes == down_up * 2
        down, up, _, up_again = receiver.documents
        assert down["services"][0]["code"] == "connection_refused"
        assert str(service.port) in down["text"]
        assert (down["node"]["health"], up["node"]["health"]) == (503, 200)
        assert (down["node"]["change"], up["node"]["change"]) == ("worse", "recovered")
        assert down["services"][0]["since"] < up["services"][0]["since"]
        assert not up["services"][0]["duration_is_upper_bound"]
        assert up_again["services"][0]["duration_is_upper_bound"]
        request = receiver.requests[0]
        assert (request.method, request.target) == ("POST", f"/hooks/{KEY}")
        assert request.headers["x-token"] == KEY
        assert request.headers["content-type"] == "application/json"
        down, up, *_ = through_apprise.documents
        assert (down["type"], up["type"]) == ("failure", "success")
        assert all(part in down["title"] for part in ("validator-7", "503"))
        assert all(part in down["message"] for part in ("db", "Down", str(service.port)))


def test_a_failed_delivery_is_fixed_by_a_reload_and_a_hanging_receiver_delays_nothing(
    service: TcpService, tmp_path: Path
) -> None:
    def respond(request: ReceivedRequest) -> bytes:
        return OK if request.headers.get("authorization") == "Bearer right" else http_response(401)

    made = make_certificate(tmp_path)

    def text(port: int, hanging: int, more: str) -> str:
        target = f'{{ url = "https://localhost:{port}", {more} }}'
        return config(service, f'webhook = [{target}, "http://127.0.0.1:{hanging}/"]')

    with Receiver(respond, tls=server_tls(made)) as receiver, Backend(unresponsive) as hanging:
        trusting = f'ca = "{made.certificate}"'
        with node(tmp_path, text(receiver.port, hanging.port, 'bearer = "wrong"')) as agent:
            service.stop()
            agent.wait_for_event("notification_failed", code="tls_untrusted")
            assert not receiver.requests
            agent.reload(text(receiver.port, hanging.port, f'bearer = "wrong", {trusting}'))
            agent.wait_until(lambda: bool(receiver.requests))
            service.start()
            agent.wait_until(lambda: agent.health() == 200)
            agent.reload(config(service, 'apprise = ["slak://a/b/c"]'))
            agent.wait_for_event("reload_failed")
            agent.reload(text(receiver.port, hanging.port, f'bearer = "right", {trusting}'))
            agent.wait_for_event("notification_recovered")
            agent.wait_until(lambda: receiver.documents[-1]["node"]["health"] == 200)
            accepted = [document for request, document in zip(receiver.requests, receiver.documents, strict=True)
                        if request.headers["authorization"] == "Bearer right"]  # fmt: skip
            assert [one["node"]["change"] for one in accepted] == ["transient"], "it is over, and it is told"
            assert hanging.connection_count > 0
            assert agent.stop() == 0
            undelivered, stopped = agent.log_entries[-2:]
            assert undelivered["event"] == "notifications_undelivered"
            assert stopped["event"] == "stopped"


def test_an_undelivered_incident_is_notified_after_a_restart(service: TcpService, tmp_path: Path) -> None:
    with closed_port() as port, node(tmp_path, config(service, hook(port))) as agent:
        service.stop()
        agent.wait_until(lambda: told(tmp_path) == [("", 200), ("db", 200)])
    with Receiver(port=port) as receiver, node(tmp_path, config(service, hook(port)), health=503) as agent:
        agent.wait_until(lambda: bool(receiver.requests))
        assert [change for change, *_ in receiver.changes] == ["worse"]


def test_targets_can_be_enabled_and_disabled_by_a_reload_and_maintenance_holds_messages_over_a_kill(
    service: TcpService, tmp_path: Path
) -> None:
    control = f'[control]\nlisten = "unix:{tmp_path}/c.sock"\npath = "{tmp_path}/c.db"\n'
    with Receiver() as receiver:
        enabled = control + config(service, hook(receiver.port))
        with (
            node(tmp_path, control + config(service, "webhook = []")) as agent,
            ControlClient(tmp_path / "c.sock") as client,
        ):
            agent.reload(enabled)
            client.maintain("db", "1h", by="alice", reason="new disk")
            agent.wait_for_log("service db is in maintenance until ")
            service.stop()
            agent.wait_until(lambda: agent.statuses() == {"db": "Down"})
        with node(tmp_path, enabled, health=503) as agent, ControlClient(tmp_path / "c.sock") as client:
            maintenance = client.service("db")["maintenance"]
            assert maintenance is not None
            assert maintenance["by"].startswith("alice")
            assert maintenance["reason"] == "new disk"
            assert receiver.documents == []
            client.end_maintenance("db")
            agent.wait_until(lambda: receiver.changes == [("worse", "Down", None)])
            agent.wait_for_log("maintenance of service db has ended")
            agent.reload(control + FAST + f'[[services]]\nid = "db"\nprobe = "tcp://127.0.0.1:{service.port}"\n')
            service.start()
            agent.wait_until(lambda: agent.health() == 200)
            assert agent.stop() == 0
        assert len(receiver.requests) == 1


LEDGER_DOWN, UNHEALTHY = ("SvcnodeCriticalServiceDown", "db"), ("SvcnodeNodeUnhealthy", "")


def test_alertmanager_receives_alerts_and_their_end_also_after_restarts(service: TcpService, tmp_path: Path) -> None:
    (tmp_path / "alertmanager").mkdir()
    with AlertmanagerServer(tmp_path / "alertmanager") as alertmanager:
        text = config(service, f'alertmanager = "{alertmanager.url}"')
        text += 'runbook = "https://wiki.example.com/db"\n[operator]\nurl = "https://node.example.com:8420"\n'
        with node(tmp_path, text) as agent:
            service.stop()
            agent.wait_until(lambda: told(tmp_path) == DOWN_TOLD)
            alert = alertmanager.alerts()[LEDGER_DOWN]
            labels = {"severity": "critical", "instance": "validator-7", "service_id": "db", "impact": "critical"}
            assert labels.items() <= alert["labels"].items()
            annotations = alert["annotations"]
            assert "connection refused" in annotations["description"]
            assert f"127.0.0.1:{service.port}" in annotations["advice"]
            assert "503" in annotations["node_health"]
            assert annotations["runbook_url"] == "https://wiki.example.com/db"
            assert alert["generatorURL"] == "https://node.example.com:8420/#q=db"
            agent.wait_until(
                lambda: alertmanager.alerts()[UNHEALTHY]["status"]["inhibitedBy"] == [alert["fingerprint"]]
            )
        alertmanager.restart()  # it has forgotten the alerts
        with node(tmp_path, text, health=503) as agent:
            agent.wait_until(lambda: alertmanager.alerts().keys() == {LEDGER_DOWN, UNHEALTHY})
            service.start()
            agent.wait_until(lambda: alertmanager.alerts() == {})
        assert notify_test(tmp_path, f'[notify]\nalertmanager = ["{alertmanager.url}"]').returncode == 0
        assert alertmanager.alerts().keys() == {("SvcnodeTest", "")}


def test_alertmanager_shows_the_present_through_several_faults(service: TcpService, tmp_path: Path) -> None:
    """What is Down now is critical, and what is better stays open only for the resolve delay."""
    (tmp_path / "alertmanager").mkdir()
    with AlertmanagerServer(tmp_path / "alertmanager") as alertmanager, TcpService() as cache:
        notify = ('services = "all"', f'alertmanager = "{alertmanager.url}"')
        text = config(service, *notify) + f'[[services]]\nid = "cache"\nprobe = "tcp://127.0.0.1:{cache.port}"\n'
        partial, cache_down = ("SvcnodeNodePartial", ""), ("SvcnodeServiceDown", "cache")
        with node(tmp_path, text.replace('resolve_delay = "0s"', 'resolve_delay = "500ms"')) as agent:

            def wait_for(*alerts: tuple[str, str]) -> dict[tuple[str, str], dict[str, Any]]:
                agent.wait_until(lambda: alertmanager.alerts().keys() == set(alerts))
                return alertmanager.alerts()

            for _ in range(2):
                cache.stop()
                found = wait_for(partial, cache_down)
                assert "cache" in found[partial]["annotations"]["description"]
                service.stop()
                found = wait_for(UNHEALTHY, LEDGER_DOWN, cache_down)
                assert "db" in found[UNHEALTHY]["annotations"]["description"]
                assert {one["labels"]["severity"] for one in found.values()} == {"critical", "warning"}
                service.start()
                wait_for(partial, cache_down)
                cache.start()
                wait_for()


# ---- targets over real sockets, in this process

IDENTITY = Identity(node_name="validator-7", spec_version="v0.0.1", node_version="v1")


def numbered_message(number: int) -> Message:
    return build_test_message(IDENTITY, str(number), 0.0)


def delivered(target: NotificationTarget) -> DeliveryError | None:
    async def deliver() -> DeliveryError | None:
        async with asyncio.timeout(DEADLINE_S):
            return await target.deliver(numbered_message(0))

    return asyncio.run(deliver())


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (http_response(299), None),
        (http_response(300, Location="http://127.0.0.1:1/"), "redirected"),
        (http_response(404), "not_found"),
        (b"no HTTP", "protocol_error"),
    ],
)
def test_any_response_but_2xx_is_a_failure(response: bytes, code: str | None) -> None:
    with Receiver(response) as receiver:
        error = delivered(webhook_from(f"http://127.0.0.1:{receiver.port}/", {}))
    assert (None if error is None else error.code) == code


def test_an_error_of_apprise_has_its_code_and_a_hanging_call_is_not_repeated() -> None:
    with Receiver(http_response(500)) as receiver, closed_port() as port:
        for url, code in ((apprise_url(receiver.port), "server_error"), (apprise_url(port), "connection_refused")):
            error = delivered(apprise_from(url, {}))
            assert error is not None
            assert error.code == code

    async def deliver_twice(target: NotificationTarget) -> DeliveryError | None:
        first = asyncio.ensure_future(target.deliver(numbered_message(0)))
        await asyncio.sleep(0)
        first.cancel()
        return await target.deliver(numbered_message(1))

    with Backend(unresponsive) as hanging:
        error = asyncio.run(deliver_twice(apprise_from(apprise_url(hanging.port), {})))
    assert error is not None
    assert error.code == "still_running"


# ---- svcnode notify-test


def notify_test(folder: Path, text: str | None, *arguments: str, **environ: Any) -> subprocess.CompletedProcess[str]:
    if text is not None:
        (folder / "svcnode.toml").write_text(text)
    return commands.svcnode("notify-test", *arguments, folder=folder, TOKEN=KEY, **environ)


def test_a_test_message_goes_to_every_target_and_to_the_heartbeat_or_to_one(tmp_path: Path) -> None:
    with Receiver() as first, Receiver() as second, Receiver() as switch:
        text = f'[node]\nname = "validator-7"\n[notify]\n{hook(first.port)}\napprise = ["{apprise_url(second.port)}"]'
        text += f'\nheartbeat = "http://127.0.0.1:{switch.port}/{KEY}"'
        completed = notify_test(tmp_path, text)
        assert (completed.returncode, completed.stderr) == (0, "")
        assert [line.split()[:3] for line in completed.stdout.splitlines()] == [
            ["1", f"http://127.0.0.1:{first.port}", "sent"],
            ["2", "json://***", "sent"],
            ["3", f"http://127.0.0.1:{switch.port}", "heartbeat"],
        ]
        assert [(request.method, request.target) for request in switch.requests] == [("GET", f"/{KEY}")]
        (document,) = first.documents
        assert document["kind"] == "test"
        assert document["text"].startswith(second.documents[0]["title"])
        completed = notify_test(tmp_path, text, "--to", "2")
        assert (completed.returncode, completed.stdout.split()[:3]) == (0, ["2", "json://***", "sent"])
        assert (len(first.requests), len(second.requests), len(switch.requests)) == (1, 2, 1)
        completed = notify_test(tmp_path, text, "--to", "4")
        assert (completed.returncode, completed.stdout) == (2, "")
        assert "--to" in completed.stderr


def test_a_test_message_needs_no_valid_services(tmp_path: Path) -> None:
    with Receiver() as receiver:
        probe = "postgresql://me:${LEDGER_PASSWORD}@127.0.0.1/ledger"
        text = f'[notify]\n{hook(receiver.port)}\n[[services]]\nid = "ledger"\nprobe = "{probe}"\nimpact = "critcal"'
        completed = notify_test(tmp_path, text)
        assert (completed.returncode, completed.stderr, len(receiver.documents)) == (0, "", 1)
        completed = notify_test(tmp_path, text.replace("[notify]", '[notify]\nresolve_dely = "5m"'))
    assert all(part in completed.stderr for part in ("notify.resolve_dely", '"resolve_delay"', "svcnode.toml:2"))
    assert (completed.returncode, completed.stdout) == (2, "")


def test_a_failed_test_message_has_a_reason_without_keys(tmp_path: Path) -> None:
    with Receiver(http_response(403)) as first, Receiver(http_response(401)) as second, closed_port() as port:
        completed = notify_test(
            tmp_path,
            f'[notify]\nwebhook = ["http://127.0.0.1:{first.port}/{KEY}", "http://127.0.0.1:{port}/{KEY}"]\n'
            f'apprise = ["json://127.0.0.1:{second.port}/{KEY}"]',
        )
    assert (completed.returncode, completed.stderr) == (1, "")
    lines = completed.stdout.splitlines()
    assert len(lines) == 3
    assert ("403" in lines[0], "401" in lines[2]) == (True, True)
    assert KEY not in completed.stdout


def test_without_targets_notify_test_fails_and_a_target_can_come_from_the_environment(tmp_path: Path) -> None:
    for text in (None, "[notify]\nwebhook = []\n"):
        completed = notify_test(tmp_path, text)
        assert (completed.returncode, completed.stdout) == (2, "")
        assert all(part in completed.stderr for part in ("[notify]", "webhook", "apprise"))
    (tmp_path / "svcnode.toml").unlink()
    with Receiver() as receiver:
        completed = notify_test(tmp_path, None, SVCNODE_NOTIFY_WEBHOOK=f"http://127.0.0.1:{receiver.port}/{KEY}")
        assert (completed.returncode, len(receiver.requests)) == (0, 1)
