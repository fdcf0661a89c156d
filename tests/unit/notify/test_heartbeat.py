"""Heartbeats to a dead man's switch: when they are sent, and when there is silence, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Maintenance
from svcnode.node.checks import Checks
from svcnode.notify import NotifyStatus
from svcnode.notify.heartbeat import Heartbeat
from svcnode.notify.notifier import Notifier, NotifySettings
from svcnode.notify.routes import AlertPolicy, Route, RouteSettings
from svcnode.notify.targets import DeliveryError
from tests.support.nodes import make_node
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from svcnode.notify.targets import Message

REFUSED = DeliveryError("connection refused", ReasonCode.CONNECTION_REFUSED)
INTERVAL_S = 60.0


class Switch(Heartbeat):
    """A dead man's switch that a test controls."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), INTERVAL_S)
        self.received_s: list[float] = []
        self.error: DeliveryError | None = None
        self.is_hanging = False

    __slots__ = ("error", "is_hanging", "received_s")
    __setattr__ = object.__setattr__
    __eq__ = object.__eq__
    __hash__ = object.__hash__
    name = "https://hc.example.com"

    async def send(self) -> DeliveryError | None:
        self.received_s.append(asyncio.get_running_loop().time())
        if self.is_hanging:
            await asyncio.sleep(1e9)
        return self.error


class Receiver:
    name = "receiver"
    fingerprint = "0"
    resend_interval_s: ClassVar[float | None] = None
    error: DeliveryError | None = None

    async def deliver(self, _message: Message) -> DeliveryError | None:
        return self.error


class Running:
    """A node with checks and a notifier."""

    def __init__(self) -> None:
        self.node = make_node("validator-7", version="v1", clock=asyncio.get_running_loop().time)
        self.db = self.node.register("db", name="Ledger", description="", impact="critical")
        self.db.up()
        self.checks = Checks(self.node)
        self.switch, self.receiver, self.status = Switch(), Receiver(), NotifyStatus()
        routes = (RouteSettings(target=self.receiver),)
        self.settings = NotifySettings(routes=routes, policy=AlertPolicy(), heartbeat=self.switch)
        self.notifier = Notifier(self.node, self.settings, self.status, ping_scheduler=self.checks.ping)

    async def beats_within(self, intervals: float) -> int:
        """How many heartbeats arrive within this time."""
        before = len(self.switch.received_s)
        await asyncio.sleep(intervals * INTERVAL_S)
        return len(self.switch.received_s) - before

    @property
    def shown(self) -> tuple[str | None, str]:
        assert self.status.heartbeat is not None
        result = self.status.heartbeat.result
        return None if result is None else result.value, self.status.heartbeat.reason


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    node = Running()
    async with node.checks.running(), node.notifier:
        yield node


@in_virtual_time
async def test_one_is_sent_at_each_interval_after_the_first_also_while_the_node_is_down_or_in_maintenance() -> None:
    async with running() as node:
        node.db.down("refused")
        await asyncio.sleep(3.5 * INTERVAL_S)
        assert node.node.health == 503
        assert node.switch.received_s == pytest.approx([60.0, 120.0, 180.0], abs=0.1)
        assert node.status.heartbeats == {"sent": 3, "failed": 0, "withheld": 0}
        assert node.shown == ("sent", "")
        for service_id in ("db", None):
            node.node.maintenance.set(Maintenance("control", math.inf), service_id)
            assert await node.beats_within(2) == 2


@in_virtual_time
async def test_a_switch_that_hangs_or_fails_is_asked_once_per_interval_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "svcnode.notify")
    async with running() as node:
        node.switch.is_hanging = True
        assert await node.beats_within(3.5) == 3
        assert node.shown[0] == "failed"
        node.switch.is_hanging, node.switch.error = False, REFUSED
        assert await node.beats_within(2) == 2
        assert node.shown == ("failed", REFUSED.reason)
        node.switch.error = None
        assert await node.beats_within(2) == 2
        assert node.status.heartbeats == {"sent": 2, "failed": 5, "withheld": 0}
    events = [(record.levelname, vars(record)["event"]) for record in caplog.records]
    heartbeats = [event for event in events if event[1].startswith("heartbeat")]
    assert heartbeats == [("WARNING", "heartbeat_failed"), ("INFO", "heartbeat_sent")]


@in_virtual_time
async def test_without_a_scheduler_that_runs_there_is_silence() -> None:
    node = Running()
    async with node.notifier:
        assert await node.beats_within(2.5) == 0, "no checks run"
        async with node.checks.running():
            assert await node.beats_within(2) == 2
            scheduler = cast("Any", node.checks)._scheduler
            scheduler._timers._set_timer = lambda _: None  # the timer queue never runs again
            await asyncio.sleep(1.0)
            assert await node.beats_within(4) == 0
            assert node.shown[0] == "withheld"
        assert await node.beats_within(2) == 0


@in_virtual_time
async def test_while_a_target_fails_for_minutes_there_is_silence_until_messages_arrive_again() -> None:
    async with running() as node:
        await asyncio.sleep(INTERVAL_S / 2)
        node.receiver.error = REFUSED
        node.db.down("refused")
        assert await node.beats_within(5) == 5, "a target may fail for some minutes"
        await node.beats_within(1)
        assert await node.beats_within(10) == 0
        assert node.shown[0] == "withheld"
        assert node.receiver.name in node.shown[1]
        node.receiver.error = None
        await asyncio.sleep(300)  # the longest time until the next attempt
        assert await node.beats_within(3) == 3


def _fail(*_: object) -> NoReturn:
    raise RuntimeError("bug")


def _break_routes(_: Notifier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Route, "report", _fail)
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # the bug is logged


def _end_delivery(notifier: Notifier, _: pytest.MonkeyPatch) -> None:
    cast("Any", notifier)._senders[0].task.cancel()


@pytest.mark.parametrize("fault", [_break_routes, _end_delivery])
def test_a_fault_in_our_own_delivery_leads_to_silence(
    fault: Callable[[Notifier, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    @in_virtual_time
    async def scenario() -> None:
        async with running() as node:
            fault(node.notifier, monkeypatch)
            node.db.down("refused")
            await node.beats_within(6)
            assert await node.beats_within(5) == 0
            monkeypatch.undo()

    scenario()


@in_virtual_time
async def test_settings_change_the_switch_and_a_planned_stop_ends_the_heartbeats() -> None:
    async with running() as node:
        other = Switch()
        node.notifier.apply(node.settings)  # unchanged: the interval does not begin again
        await asyncio.sleep(1.5 * INTERVAL_S)
        node.notifier.apply(NotifySettings(routes=(), policy=AlertPolicy(), heartbeat=other))
        assert await node.beats_within(2.5) == 0
        assert len(other.received_s) == 2, "also without targets"
        node.notifier.apply(None)
        assert node.status.heartbeat is None
        node.notifier.apply(node.settings)
        assert await node.beats_within(1.5) == 1
        node.notifier.flush()
        assert await node.beats_within(3) == 0
    assert len(other.received_s) == 2
