"""The timeline: outages, health of the node and events from transitions; and the same from a file, in pages."""

from __future__ import annotations

import itertools
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.model import ChangeKind, Verdict
from svcnode.history import History
from svcnode.history import __name__ as history_module
from svcnode.history.records import Transition
from svcnode.history.timeline import Opening, PageOfTransitions, Period, TimelineItem, make_items
from tests.support.nodes import make_node, record
from tests.support.real_time import in_real_time
from tests.unit.history.test_history import NOON, Harness, eventually, fail_three_times, harness, probed

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["harness"]  # the fixture


class Recorder:
    """Transitions with the ids and times of a clock in minutes after noon."""

    def __init__(self) -> None:
        self.transitions: list[Transition] = []
        self._numbers = count()
        self._health = 200

    def at(
        self, minute: float, kind: str, service_id: str | None = None, after: str | None = None, **fields: Any
    ) -> Recorder:
        health = fields.pop("health", self._health)
        since = fields.pop("since", minute)
        values = {"before": None, "reason": "", "code": None} | fields
        one = Transition(
            id=int((NOON + 60 * minute) * 1e6) + next(self._numbers),
            at_s=NOON + 60.0 * since,
            kind=kind,
            service_id=service_id,
            after=after,
            health_before=self._health,
            health=health,
            **values,
        )
        self._health = health
        self.transitions.append(one)
        return self

    def items(self, opening: Opening = Opening(), *, from_minute: float = 0.0) -> list[TimelineItem]:  # noqa: B008
        return make_items(NOON + 60 * from_minute, PageOfTransitions(opening, self.transitions, is_last=True))


def minutes(item: TimelineItem) -> tuple[float, float | None]:
    return tuple(None if at_s is None else (at_s - NOON) / 60 for at_s in (item.from_s, item.until_s))  # type: ignore[return-value]


def of_type(items: list[TimelineItem], name: str) -> Iterator[TimelineItem]:
    return (item for item in items if item.type == name)


def outages(items: list[TimelineItem]) -> list[tuple[Any, ...]]:
    return [(item.service_id, item.status, *minutes(item), item.is_open) for item in of_type(items, "outage")]


def health(items: list[TimelineItem]) -> list[tuple[Any, ...]]:
    return [(item.health, *minutes(item), item.is_open) for item in of_type(items, "health")]


def test_an_outage_lasts_from_the_status_until_the_next_one() -> None:
    items = (
        Recorder()
        .at(1, "status", "db", "Down", reason="refused", code="connection_refused", health=503)
        .at(2, "status", "api", "Initializing", reason="syncing")
        .at(5, "status", "db", "Initializing", health=206)
        .at(6, "status", "db", "Up")
        .items()
    )
    assert outages(items) == [
        ("db", "Down", 1.0, 5.0, False),
        ("api", "Initializing", 2.0, None, True),
        ("db", "Initializing", 5.0, 6.0, False),
    ]
    assert (items[0].reason, items[0].code) == ("refused", "connection_refused")
    assert health(items) == [(503, 1.0, 5.0, False), (206, 5.0, None, True)]


def test_a_health_that_became_better_is_explained_by_what_remains() -> None:
    items = (
        Recorder()
        .at(1, "status", "uncounted", "Down")
        .at(2, "status", "cache", "Initializing", health=206)
        .at(3, "status", "secretsvc", "Down")
        .at(4, "status", "api", "Down", health=503)
        .at(5, "status", "api", "Up", health=206)
        .at(6, "status", "secretsvc", "Up")
        .at(7, "node", health=503, reason="an issue")
        .at(8, "node", health=206, reason="no issue")
        .at(9, "status", "cache", "Up", health=200)
        .items()
    )
    found = [(item.health, item.service_id, item.status) for item in of_type(items, "health")]
    assert found == [
        (206, "cache", "Initializing"),
        (503, "api", "Down"),
        (206, "secretsvc", "Down"),
        (503, None, None),
        (206, "cache", "Initializing"),
    ]


def test_an_outage_ends_with_the_registration_of_its_service() -> None:
    items = Recorder().at(1, "status", "db", "Down").at(2, "deregistered", "db", before="Down").items()
    assert outages(items) == [("db", "Down", 1.0, 2.0, False)]
    assert [(item.kind, item.service_id) for item in of_type(items, "event")] == [("deregistered", "db")]


@pytest.mark.parametrize(("after", "until"), [("Down", None), ("Initializing", 2.0)])
def test_an_outage_of_a_service_that_is_replaced_lasts_if_it_keeps_its_state(after: str, until: float | None) -> None:
    items = Recorder().at(1, "status", "db", "Down").at(2, "replaced", "db", after, before="Down").items()
    assert outages(items) == [("db", "Down", 1.0, until, until is None)]
    assert [*of_type(items, "event")] == [], "the reload is one, which counts them"


def test_while_the_process_does_not_run_nothing_is_known() -> None:
    stopped = Recorder().at(1, "status", "db", "Down", health=503).at(3, "stopped").at(5, "started", health=206)
    items = stopped.at(6, "status", "db", "Up", health=200).items()
    assert outages(items) == [("db", "Down", 1.0, 3.0, False)], "it may have ended at any time since then"
    assert health(items) == [(503, 1.0, 3.0, False), (None, 3.0, 5.0, False), (206, 5.0, 6.0, False)]
    assert [item.kind for item in of_type(items, "event")] == ["stopped", "started"]


def test_an_outage_that_is_confirmed_after_a_restart_is_one_with_the_same_id() -> None:
    recorder = Recorder().at(1, "status", "db", "Down", health=503)
    (before,) = of_type(recorder.items(), "outage")
    recorder.at(3, "stopped").at(5, "started", health=206).at(6, "status", "db", "Down", since=1, health=503)
    items = recorder.at(9, "status", "db", "Up", health=200).items()
    assert outages(items) == [("db", "Down", 1.0, 9.0, False)]
    (outage,) = of_type(items, "outage")
    assert outage.id == before.id
    assert health(items)[-1] == (503, 5.0, 9.0, False), "the node itself was not 503 while it did not run"


def test_changes_of_the_node_without_a_text_are_no_events() -> None:
    items = Recorder().at(1, "node").at(2, "node", reason="draining", health=503).at(3, "note", reason="v1").items()
    assert [(item.kind, item.reason) for item in of_type(items, "event")] == [("node", "draining"), ("note", "v1")]
    assert len({item.id for item in items}) == len(items)


def test_what_lasted_before_the_period_is_part_of_it() -> None:
    before = Recorder().at(-9, "started").at(-5, "status", "db", "Down", health=503)
    down, started = before.transitions[1], before.transitions[0]
    opening = Opening([down], [down], [started])
    items = Recorder().at(2, "status", "db", "Up", health=200).items(opening)
    assert outages(items) == [("db", "Down", -5.0, 2.0, False)]
    assert health(Recorder().items(opening)) == [(503, -5.0, None, True)]
    stopped = Recorder().at(-2, "stopped").transitions
    assert outages(Recorder().items(Opening([down], [down], stopped))) == [], "it ended before the period"


# ---- from a file or from memory


async def all_items(history: History, period: Period) -> tuple[list[TimelineItem], int]:
    """Of all pages, and their number."""
    items: list[TimelineItem] = []
    for pages in count(1):
        page = await history.timeline(period)
        items += page.items
        if page.next_after_id is None:
            return sorted(items, key=lambda item: (item.from_s, item.id)), pages
        period = period._replace(after_id=page.next_after_id)
    raise AssertionError


async def busy_hour(harness: Harness, history: History) -> None:
    """Three services fail and recover; somebody writes notes."""
    node = harness.node
    handles = [node.register(f"s{number}") for number in range(3)]
    for handle in handles:
        handle.up()
    for number in range(12):
        handle = handles[number % 3]
        harness.wait(60, history)
        (handle.up if number % 2 else handle.down)(f"change {number}")
        node.announce(ChangeKind.NOTE, f"note {number}")


@pytest.mark.parametrize("has_file", [True, False])
@in_real_time
async def test_pages_have_each_item_once_whatever_their_size(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, has_file: bool
) -> None:
    async with harness.history(has_file=has_file) as (history, follower):
        await busy_hour(harness, history)
        await follower.until(lambda: [one.reason for one in follower.received].count("note 11") == 1)
        for first_s, last_s in ((NOON - 60, NOON + 3600), (NOON + 150, NOON + 530), (NOON + 3600, NOON + 7200)):
            period = Period(float(first_s), float(last_s))
            whole, pages = await all_items(history, period)
            assert pages == 1
            for size in (1, 2, 7):
                monkeypatch.setattr(f"{history_module}.TRANSITIONS_PER_PAGE", size)
                paged, pages = await all_items(history, period)
                assert paged == whole
                assert len({item.id for item in paged}) == len(paged)
            monkeypatch.undo()


def test_a_period_ends_at_the_microsecond_of_the_file() -> None:
    for number in range(200):
        moment_s = NOON + number / 7
        at_s = round(moment_s * 1e6) / 1e6  # as it is read from the file
        one = Recorder().at(0, "status", "db", "Down").transitions[0]._replace(at_s=at_s)
        assert Period(moment_s, moment_s + 1).is_before_end(one)
        assert not Period(moment_s - 1, moment_s).is_before_end(one)


def test_after_a_start_the_first_service_that_is_down_is_why_the_node_is_partially_healthy() -> None:
    recorder = Recorder().at(0, "started", health=206).at(0.5, "status", "a", "Up").at(1, "status", "b", "Down")
    items = (
        recorder.at(2, "status", "c", "Down").at(3, "status", "b", "Up").at(4, "status", "c", "Up", health=200).items()
    )
    assert health(items) == [(206, 0.0, 1.0, False), (206, 1.0, 4.0, False)]
    assert [(item.kind, item.service_id) for item in of_type(items, "health")] == [("started", None), ("status", "b")]


@pytest.mark.parametrize("has_file", [True, False])
@in_real_time
async def test_the_node_and_its_services_are_the_same_in_every_period(harness: Harness, has_file: bool) -> None:
    """Whatever its begin and end are: an outage lasts over a restart, and the node is 503 again."""
    recorder = Recorder().at(1, "status", "db", "Down", health=503, reason="refused", before="Up")
    recorder.at(3, "stopped").at(5, "started", health=206)
    recorder.at(6, "status", "db", "Down", since=1, health=503, reason="timeout", before="Initializing")
    recorder.at(6.5, "note", reason="looking").at(9, "status", "db", "Up", health=200, before="Down")
    recorder.at(12, "stopped").at(13, "started", health=206).at(14, "status", "api", "Down", before="Initializing")
    recorder.at(15, "status", "web", "Down", before="Initializing")
    whole = [(item.id, item) for item in recorder.items()]
    async with harness.history(has_file=has_file) as (history, _):
        for one in recorder.transitions:
            history._record(one)
        await eventually(lambda: history.last_id >= recorder.transitions[-1].id)
        for first, last in itertools.combinations((0.5, 2, 4, 5.5, 6.2, 7, 10, 13.5, 14.5, 16, 17), 2):
            page = await history.timeline(Period(NOON + 60.0 * first, NOON + 60.0 * last))
            expected = {
                key: item._replace(until_s=None, is_open=True) if is_cut else item
                for key, item in whole
                for until_s in (NOON + 6000 if item.is_open else item.until_s or item.from_s,)
                for is_cut in (until_s >= NOON + 60 * last,)
                if item.from_s < NOON + 60 * last and until_s >= NOON + 60 * first
            }
            assert {item.id: item for item in page.items} == expected, (first, last)


@pytest.mark.parametrize("ran_s", [130, 10])
@in_real_time
async def test_after_a_kill_nothing_is_known_until_the_next_start(harness: Harness, ran_s: int) -> None:
    """What is known last: a minute that was written, or a change."""
    recorder = Recorder().at(10, "started", health=206, code="unclean_shutdown")
    recorder.at(10.5, "status", "db", "Up", before="Initializing", health=200)
    async with harness.history() as (history, follower):
        node = harness.node
        node.register("db", impact="critical").up()
        harness.wait(5, history)
        node.register("api").down("refused")
        harness.wait(ran_s - 5, history)
        known_s = 120.0 if ran_s > 60 else 5.0
        await follower.until_received(5)
        await eventually(lambda: harness.rows("SELECT end_s FROM runs") == [(120.0 + NOON,)] or ran_s < 60)
        for one in recorder.transitions:
            history._record(one)
        await eventually(lambda: history.last_id >= recorder.transitions[-1].id)
        whole = (await history.timeline(Period(NOON - 1.0, NOON + 900.0))).items
        assert outages(whole)[-1] == ("api", "Down", 5 / 60, known_s / 60, False)
        assert [one for one in health(whole) if one[0] is None] == [(None, known_s / 60, 10.0, False)]
        assert len({item.id for item in whole}) == len(whole)
        for first_s in (100.0, 400.0, 610.0):
            part = (await history.timeline(Period(NOON + first_s, NOON + 900.0))).items
            touched = [item for item in whole if (item.until_s or item.from_s) >= NOON + first_s or item.is_open]
            assert part == touched


@in_real_time
async def test_a_long_outage_over_restarts_is_in_every_period_that_it_touches(harness: Harness) -> None:
    node = probed(harness)
    async with harness.history() as (history, follower):
        harness.wait(60, history)
        fail_three_times(node)
        await follower.until_received(2)
        harness.wait(600, history)
    harness.clock.advance(60)
    harness.wall.advance(60)
    node = probed(harness)
    async with harness.history() as (history, follower):
        record(node, "db", Verdict.failed("refused"))
        await follower.until_received(2)
        harness.wait(600, history)
        found = set()
        for first_s in range(0, 1320, 120):
            page = await history.timeline(Period(float(NOON + first_s), NOON + first_s + 120.0))
            found |= {(item.id, minutes(item)[0], item.is_open) for item in of_type(page.items, "outage")}
        assert len(found) == 1
        ((_, begin, is_open),) = found
        assert (begin, is_open) == (1.0, True)


@in_real_time
async def test_a_note_is_recorded_with_its_author_and_changes_nothing(harness: Harness) -> None:
    node = make_node("validator-7", clock=harness.clock)
    harness.node = node
    node.register("db").up()
    async with harness.history() as (history, follower):
        node.announce(ChangeKind.NOTE, "deployed v1.4.3", "db")
        await follower.until_received(2)
        page = await history.timeline(Period(NOON - 1.0, NOON + 1.0))
        note = page.items[-1]
        assert (note.type, note.kind, note.service_id, note.reason) == ("event", "note", "db", "deployed v1.4.3")
        assert outages(page.items) == []
