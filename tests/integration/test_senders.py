"""Notifications of three replicas on real etcd, to a real webhook. When who sends what is in tests/unit/sharing."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.test_notify import Receiver
from tests.support.replicas import Backends, Replica, Replicas
from tests.support.servers.base import wait_until
from tests.support.servers.etcd import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP_WAIT_S, LEASE_S = 2.0, 4.0
SETTINGS = """lease = "{lease:g}s"
[notify]
webhook = "http://127.0.0.1:{port}/hook"
group_wait = "{group_wait:g}s"
resolve_delay = "2s"
[defaults]
interval = "1s"
transition_interval = "100ms"
stale_after = "{stale_after}"
start_period = "0s"
"""
SILENCE_S = 5.0  # in which a message that comes twice would have come


class Shared:
    def __init__(self, etcd: EtcdServer, backends: Backends, replicas: Replicas, receiver: Receiver) -> None:
        self.etcd, self.backends, self.replicas, self.receiver = etcd, backends, replicas, receiver

    def sender(self) -> Replica:
        """All live replicas agree on it."""
        live = [replica for replica in self.replicas if replica.process.poll() is None]
        wait_until(lambda: {sender_of(replica) for replica in live} in [{replica.name} for replica in live], "it", 60)
        return next(replica for replica in live if replica.name == sender_of(replica))

    def wait_for_changes(self, *changes: tuple[str, str, str | None]) -> None:
        """All messages so far are about these changes of `db`, one after another, and no other comes."""
        wait_until(lambda: len(self.receiver.changes) >= len(changes), "a message", 60)
        time.sleep(SILENCE_S)
        assert self.receiver.changes == [*changes]


DOWN, UP = ("worse", "Down", "Up"), ("recovered", "Up", "Down")


@contextmanager
def three_replicas(
    tmp_path_factory: pytest.TempPathFactory, *, stale_after: str = "30s", group_wait_s: float = GROUP_WAIT_S
) -> Iterator[Shared]:
    folder = tmp_path_factory.mktemp("r")  # the path of a socket is short
    with Receiver() as receiver, Backends() as backends, EtcdServer(folder / "etcd") as etcd:
        settings = SETTINGS.format(lease=LEASE_S, port=receiver.port, group_wait=group_wait_s, stale_after=stale_after)
        services: dict[str, dict[str, Any]] = {
            name: {"probe": backends.url(name), "impact": "critical"} for name in ("db", "web", "cache")
        }
        with Replicas(folder, etcd.url, [services] * 3, settings) as replicas:
            replicas.wait_for(dict.fromkeys(services, "Up"))
            yield Shared(etcd, backends, replicas, receiver)


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    with three_replicas(tmp_path_factory) as shared:
        yield shared


def sender_of(replica: Replica) -> str | None:
    (notifications,) = replica.ask("/details").json["node"]["notifications"]
    sender: str | None = notifications["sender"]
    return sender


def test_one_replica_sends_and_when_it_is_killed_another_one_continues(shared: Shared) -> None:
    first = shared.sender()
    first.wait_for_event("notification_sender", replica=first.name)
    shared.backends.failing.add("db")
    shared.wait_for_changes(DOWN)
    first.process.kill()
    first.process.wait()
    shared.backends.failing.clear()
    shared.wait_for_changes(DOWN, UP)
    assert shared.sender() is not first


@pytest.mark.wide
def test_a_problem_that_the_killed_sender_had_not_told_is_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    with three_replicas(tmp_path_factory, group_wait_s=10.0) as shared:
        first = shared.sender()
        other = next(replica for replica in shared.replicas if replica is not first)
        shared.backends.failing.add("db")
        other.wait_until(lambda: other.statuses()["db"] == "Down")
        first.process.kill()
        first.process.wait()
        shared.wait_for_changes(DOWN)


@pytest.mark.wide
def test_a_planned_stop_hands_over(shared: Shared) -> None:
    first = shared.sender()
    shared.backends.failing.add("db")
    shared.wait_for_changes(DOWN)
    assert first.stop() == 0
    shared.sender()
    shared.backends.failing.clear()
    shared.wait_for_changes(DOWN, UP)


@pytest.mark.wide
def test_a_sender_that_was_stopped_by_a_signal_sends_nothing_old(shared: Shared) -> None:
    first = shared.sender()
    first.signal(signal.SIGSTOP)
    shared.backends.failing.add("db")
    shared.wait_for_changes(DOWN)
    first.signal(signal.SIGCONT)
    shared.wait_for_changes(DOWN)
    assert shared.sender() is not first
    shared.backends.failing.clear()
    shared.wait_for_changes(DOWN, UP)


@pytest.mark.wide
def test_no_message_says_that_something_was_lost_for_a_moment(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Evidence is valid for about as long as etcd is away, so that some of it ends when etcd returns."""
    with three_replicas(tmp_path_factory, stale_after="4s") as shared:
        for away_s in (2.5, 3.0, 3.5, 6.0):
            shared.sender()
            shared.etcd.kill()
            time.sleep(away_s)
            shared.etcd.start()
            shared.replicas.wait_for(dict.fromkeys(("db", "web", "cache"), "Up"))
            time.sleep(SILENCE_S)
        services = [service for document in shared.receiver.documents for service in document["services"]]
        assert {service["change"] for service in services} <= {"worse", "recovered"}
        assert all(service["duration_s"] is None or service["duration_s"] >= 1.0 for service in services)
