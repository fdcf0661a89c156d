"""A target that several replicas can send to, in virtual time. Who has the turn is tested in tests/unit/sharing."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.notify import NotifyStatus
from svcnode.notify.notifier import Notifier
from svcnode.notify.routes import AlertPolicy
from tests.support.virtual_time import in_virtual_time
from tests.unit.notify.test_notifier import Alertmanager, Receiver, node_and_db, settings_for

if TYPE_CHECKING:
    from svcnode.notify.turns import Rows, SharedTarget

POLICY = AlertPolicy(group_wait_s=5.0, resolve_delay_s=60.0, repeat_interval_s=1000.0)


class FakeTurn:
    sender: str | None = "host-2"

    def __init__(self, name: str, listener: SharedTarget) -> None:
        self.name, self.listener = name, listener
        self.may_send = False
        self.is_wanted, self.has_left, self.is_dropped = True, False, False
        self.saved: list[Rows] = []
        self.passed_on_until_s: list[float] = []

    def give(self) -> None:
        self.may_send = True
        self.listener.on_turn()

    def tell(self, *rows: dict[str, Any]) -> None:
        """As another replica."""
        self.listener.on_told([*rows])

    def save(self, told: Rows) -> None:
        self.saved.append(json.loads(json.dumps(told)))

    def pass_on(self, until_s: float) -> None:
        self.passed_on_until_s.append(until_s)

    def set_wanted(self, is_wanted: bool) -> None:
        self.is_wanted = is_wanted

    async def leave(self) -> None:
        self.has_left = True

    def drop(self) -> None:
        self.is_dropped = True


class FakeTurns:
    def __init__(self, *told: dict[str, Any]) -> None:
        self._told = told
        self.turns: list[FakeTurn] = []

    def join(self, name: str, listener: SharedTarget) -> FakeTurn:
        self.turns.append(FakeTurn(name, listener))
        if self._told:
            listener.on_told([*self._told])
        return self.turns[-1]


def row(name: str, told: int, *, at: float, **fields: Any) -> dict[str, Any]:
    """The wall clock of the node shows the start of 2026 at the virtual time 0."""
    at_s = 1_767_225_600.0 + at
    service = {"service_name": name, "impact": "critical"} if name else {}
    times = {"at": at_s, "over_at": at_s if told == 200 else None, "opened_at": at_s if told != 200 else None}
    return {
        "type": "service" if name else "node",
        "name": name,
        "told": told,
        "changes": 1,
        **times,
        **service,
        **fields,
    }


def rows(told: int, *, at: float) -> list[dict[str, Any]]:
    return [row("", told, at=at), row("db", told, at=at)]


@in_virtual_time
async def test_nothing_is_sent_without_the_turn_and_everything_that_is_due_with_it() -> None:
    node, db = node_and_db()
    receiver, turns, status = Receiver(), FakeTurns(), NotifyStatus()
    async with Notifier(node, settings_for(receiver, policy=POLICY), status, turns=turns):
        (turn,) = turns.turns
        db.down("refused")
        await asyncio.sleep(100)
        assert not receiver.attempts_s
        turn.give()
        await asyncio.sleep(1)
        assert receiver.changes == [("worse", 503)]
        assert [(one["name"], one["told"]) for one in turn.saved[-1]] == [("", 503), ("db", 503)]
    assert turn.has_left
    assert turn.is_dropped


@in_virtual_time
async def test_what_another_replica_has_told_is_not_told_again_and_its_end_is_told() -> None:
    node, db = node_and_db()
    receiver, turns = Receiver(), FakeTurns()
    async with Notifier(node, settings_for(receiver, policy=POLICY), NotifyStatus(), turns=turns):
        (turn,) = turns.turns
        db.down("refused")
        await asyncio.sleep(6)
        turn.tell(*rows(503, at=5.0))
        turn.give()
        await asyncio.sleep(500)
        assert not receiver.documents
        db.up()
        await asyncio.sleep(100)
        assert receiver.changes == [("recovered", 200)]
        (service,) = receiver.documents[0]["services"]
        assert (service["duration_s"], service["duration_is_upper_bound"]) == (501.0, False)


@in_virtual_time
async def test_what_got_worse_after_another_replica_has_told_is_told() -> None:
    node, db = node_and_db()
    receiver, turns = Receiver(), FakeTurns()
    async with Notifier(node, settings_for(receiver, policy=POLICY), NotifyStatus(), turns=turns):
        (turn,) = turns.turns
        db.initializing("loading")
        await asyncio.sleep(3)
        db.down("refused")
        turn.tell(*rows(206, at=2.0))
        turn.give()
        await asyncio.sleep(10)
    assert receiver.attempts_s == [8.0]
    assert receiver.documents[0]["services"][0]["status_before"] == "Initializing"


@in_virtual_time
async def test_what_the_registry_has_counts_more_than_what_was_saved_here() -> None:
    class Storage:
        def __init__(self) -> None:
            self.texts = [json.dumps({"targets": [{"target": "receiver#0", "told": rows(503, at=-100.0)}]})]

        def save_state(self, text: str) -> None:
            self.texts.append(text)

        async def load_state(self) -> str | None:
            return self.texts[0]

    for told, expected in ((rows(200, at=-50.0), []), ([], [("recovered", 200)])):
        node, _ = node_and_db()
        receiver, turns, storage = Receiver(), FakeTurns(*told), Storage()
        async with Notifier(node, settings_for(receiver, policy=POLICY), NotifyStatus(), storage=storage, turns=turns):
            await asyncio.sleep(1)
            turns.turns[0].give()
            assert bool(turns.turns[0].saved) is not bool(told), "what only this replica knows is saved for the others"
            await asyncio.sleep(100)
        assert receiver.changes == expected


@pytest.mark.parametrize("told", [200, 206, 503])
def test_what_two_replicas_have_told_at_once_is_merged(told: int) -> None:
    """Nobody knows which message came last, so the problem is open until its end is told."""

    @in_virtual_time
    async def scenario() -> None:
        node, db = node_and_db()
        receiver, turns = Receiver(), FakeTurns()
        async with Notifier(node, settings_for(receiver, policy=POLICY), NotifyStatus(), turns=turns):
            (turn,) = turns.turns
            turn.give()
            db.down("refused")
            await asyncio.sleep(10)
            turn.tell(*rows(told, at=3.0))  # instead of what this replica has told
            assert {one["told"] for one in turn.saved[-1]} == {503}
            turn.listener.on_saved()
            count = len(turn.saved)
            db.up()
            await asyncio.sleep(100)
            turn.listener.on_saved()
            assert len(turn.saved) == count + 1
            turn.tell(*rows(503, at=50.0))  # another one has told it later
            await asyncio.sleep(100)
        assert [change for change, _ in receiver.changes] == ["worse", "recovered", "recovered"]

    scenario()


@in_virtual_time
async def test_a_sender_that_was_cut_off_does_not_open_again_what_another_one_has_ended() -> None:
    node, db = node_and_db()
    receiver, turns = Receiver(), FakeTurns()
    async with Notifier(node, settings_for(receiver, policy=POLICY), NotifyStatus(), turns=turns):
        (turn,) = turns.turns
        turn.give()
        db.down("refused")
        await asyncio.sleep(10)
        turn.listener.on_saved()
        turn.may_send = False
        turn.listener.on_turn()
        turn.give()  # its lease has ended, and it goes on by itself
        count = len(turn.saved)
        db.up()
        await asyncio.sleep(30)
        turn.tell(*rows(200, at=35.0))  # it is back
        await asyncio.sleep(100)
        assert len(turn.saved) == count
    assert receiver.changes == [("worse", 503)]


@in_virtual_time
async def test_a_problem_that_is_no_longer_in_the_registry_is_over() -> None:
    node, _ = node_and_db()
    receiver, turns = Receiver(), FakeTurns(*rows(503, at=-10.0))
    async with Notifier(node, settings_for(receiver, policy=POLICY), NotifyStatus(), turns=turns):
        turns.turns[0].tell()
        turns.turns[0].give()
        await asyncio.sleep(500)
    assert not receiver.documents


@in_virtual_time
async def test_a_reminder_counts_from_the_last_message_of_any_replica() -> None:
    node, db = node_and_db()
    receiver, turns = Receiver(), FakeTurns()
    async with Notifier(node, settings_for(receiver, policy=POLICY), NotifyStatus(), turns=turns):
        db.down("refused")
        await asyncio.sleep(600)
        turns.turns[0].tell(*rows(503, at=500.0))
        turns.turns[0].give()
        await asyncio.sleep(1000)
    assert receiver.attempts_s == [1500.0]


@in_virtual_time
async def test_a_replica_that_cannot_deliver_passes_its_turn_on_until_its_next_attempt() -> None:
    node, db = node_and_db()
    receiver, turns, status = Receiver(is_failing=True), FakeTurns(), NotifyStatus()
    async with Notifier(node, settings_for(receiver, policy=POLICY), status, turns=turns) as notifier:
        (turn,) = turns.turns
        turn.give()
        db.down("refused")
        await asyncio.sleep(30)
        assert receiver.attempts_s == [5.0, 6.0, 8.0, 12.0, 20.0]
        assert turn.passed_on_until_s == [36.0]
        turn.may_send = False
        await asyncio.sleep(400)
        assert "has been due" in notifier.problem, "nobody delivers it"
        turn.tell(*rows(503, at=420.0))
        assert notifier.problem == ""
        assert status.deliveries[0].failing_since_s is None


@in_virtual_time
async def test_alertmanager_is_not_shared_and_targets_with_the_same_name_are_distinguished() -> None:
    node, _ = node_and_db()
    targets = (Receiver("a"), Alertmanager("m"), Receiver("a", fingerprint="1"), Receiver("b" * 300))
    turns = FakeTurns()
    async with Notifier(node, settings_for(*targets), NotifyStatus(), turns=turns) as notifier:
        assert [turn.name for turn in turns.turns] == ["a#0", "a#1", "b" * 238 + "#0"]
        notifier.apply(settings_for(targets[2]))
        assert [turn.is_dropped for turn in turns.turns] == [True, False, True]
        notifier.apply(None)
        assert turns.turns[1].is_dropped


@in_virtual_time
async def test_a_drained_node_lets_others_send() -> None:
    node, _ = node_and_db()
    turns = FakeTurns()
    async with Notifier(node, settings_for(Receiver()), NotifyStatus(), turns=turns):
        node.overrides.drain("by hand")
        await asyncio.sleep(1)
        assert not turns.turns[0].is_wanted
        node.overrides.undrain()
        await asyncio.sleep(1)
        assert turns.turns[0].is_wanted


@pytest.mark.parametrize(
    "invalid", [{"type": "node"}, {**row("", 503, at=0.0), "told": 7}, {**row("", 503, at=0.0), "name": []}]
)
def test_rows_that_are_not_valid_are_ignored(invalid: dict[str, Any]) -> None:
    @in_virtual_time
    async def scenario() -> None:
        node, db = node_and_db()
        receiver, turns = Receiver(), FakeTurns(invalid)
        async with Notifier(node, settings_for(receiver), NotifyStatus(), turns=turns):
            turns.turns[0].give()
            db.down("refused")
            await asyncio.sleep(10)
        assert receiver.changes == [("worse", 503)]

    scenario()
