"""`/history`: bars for charts and the newest changes, as JSON; what was asked wrongly is told how to ask."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import pytest

from svcnode.api.app import OperatorRequest
from svcnode.core.address import Address
from svcnode.history.records import DAYS, HOURS, MINUTES, Bucket, Resolution, Transition
from svcnode.operator import OperatorApp, single_flight
from svcnode.operator.auth import OperatorAuth
from svcnode.operator.history_api import history
from svcnode.operator.single_flight import MAX_IN_FLIGHT, SingleFlight

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.api.spec import Response

NOON = 1_767_268_800


class FakeHistory:
    """Every service has had the same three bars and as many changes as are asked for; it remembers one that is gone."""

    def __init__(self) -> None:
        self.last_id = 0
        self.queries: list[tuple[tuple[str, ...], str]] = []
        self.may_read = asyncio.Event()
        self.may_read.set()

    async def buckets(self, service_ids: Sequence[str], span: Resolution) -> dict[str, list[Bucket]]:
        self.queries.append((tuple(service_ids), span.name))
        await asyncio.sleep(0)
        await self.may_read.wait()
        shown = [
            Bucket(NOON),
            Bucket(NOON + span.length_s, 59.25, 0.5, 0.25, 6, 1, 0.03, 0.0123456789),
            Bucket(NOON + 2 * span.length_s, up_s=12.0),
        ]
        return dict.fromkeys(service_ids, shown)

    async def known(self, service_ids: Sequence[str]) -> set[str]:
        return {"gone"} & set(service_ids)

    async def latest(self, service_id: str | None = None, limit: int = 20) -> list[Transition]:
        return [
            Transition(number, NOON + number / 1000, "status", service_id, "Up", "Down", f"{service_id}: no", "timeout", 200, 503)
            for number in range(limit, 0, -1)
        ]


class FakeNode:
    """Whatever it is called, it is registered; but for a few."""

    def find(self, service_id: str) -> object | None:
        return None if service_id in ("gone", "zzz", "\N{REPLACEMENT CHARACTER}") else object()


class FakeDesk:
    def __init__(self) -> None:
        self.history = FakeHistory()
        self.node = FakeNode()
        self.history_single_flight = SingleFlight()


async def ask(query: str, desk: FakeDesk | None = None) -> Response:
    return await history(cast("Desk", desk or FakeDesk()), OperatorRequest("GET", b"/history", query.encode()), "")


def asked(query: str) -> Any:
    answer = asyncio.run(ask(query))
    assert answer.code == 200, answer.body
    return json.loads(answer.body)


def refused(query: str) -> str:
    answer = asyncio.run(ask(query))
    assert answer.code == 400, answer.body
    return str(json.loads(answer.body)["message"])


def test_bars_are_told_with_their_latency_in_milliseconds() -> None:
    assert asked("id=db&resolution=minutes") == {
        "resolution": "minutes",
        "length_s": 60,
        "services": {
            "db": [
                [NOON, 0, 0, 0, 0, 0, None, None],
                [NOON + 60, 59.25, 0.5, 0.25, 6, 1, 5, 12.3457],
                [NOON + 120, 12, 0, 0, 0, 0, None, None],
            ]
        },
        "unknown": [],
    }


@pytest.mark.parametrize("span", [MINUTES, HOURS, DAYS], ids=lambda span: span.name)
def test_every_span_can_be_asked_for(span: Resolution) -> None:
    document = asked(f"id=db&resolution={span.name}")
    assert (document["resolution"], document["length_s"]) == (span.name, span.length_s)


def test_minutes_are_told_to_whoever_does_not_say() -> None:
    assert asked("id=db")["resolution"] == "minutes"


def test_services_are_told_in_the_order_they_were_asked_for_and_each_once() -> None:
    assert list(asked("id=b&id=a&id=b")["services"]) == ["b", "a"]


@pytest.mark.parametrize(
    "service_id", ["<script>", "a b", "ünï", 'say "no"', "a&b=c", "100%", "../..", "a/b", "\u2028"]
)
def test_an_id_may_hold_any_character(service_id: str) -> None:
    document = asked(f"id={quote(service_id, safe='')}&transitions=1")
    assert list(document["services"]) == [service_id]
    assert document["transitions"][service_id][0]["reason"] == f"{service_id}: no"


def test_what_is_neither_registered_nor_remembered_is_told_to_be_unknown_and_has_no_bars() -> None:
    document = asked("id=zzz&id=gone&id=db&transitions=1")
    assert document["unknown"] == ["zzz"]
    assert list(document["services"]) == list(document["transitions"]) == ["gone", "db"]


def test_nothing_is_told_of_none_but_unknown_ids() -> None:
    assert asked("id=zzz&transitions=1") == {
        "resolution": "minutes",
        "length_s": 60,
        "services": {},
        "transitions": {},
        "unknown": ["zzz"],
    }


@pytest.mark.parametrize("query", ["id=%ff", "id=db&id=caf%e9", "id=%ED%A0%80", "id=db&resolution=%80"])
def test_what_is_no_text_is_refused_and_not_taken_for_another_id(query: str) -> None:
    assert refused(query) == "the query is not UTF-8; write each byte of an id's UTF-8 as %XX"


def test_the_newest_changes_are_added_as_they_stand_in_events() -> None:
    document = asked("id=db&transitions=2")
    assert document["transitions"] == {
        "db": [
            {
                "id": number,
                "at": f"2026-01-01T12:00:00.00{number}Z",
                "kind": "status",
                "service_id": "db",
                "before": "Up",
                "after": "Down",
                "reason": "db: no",
                "health_before": 200,
                "health": 503,
            }
            for number in (2, 1)
        ]
    }


def test_changes_are_told_only_to_whoever_wants_them() -> None:
    assert "transitions" not in asked("id=db")
    assert "transitions" not in asked("id=db&transitions=0")


def test_a_hundred_services_may_be_asked_for_at_once_and_no_more() -> None:
    ids = "&".join(f"id=s{number}" for number in range(100))
    assert len(asked(ids)["services"]) == 100
    assert refused(ids + "&id=one-more") == "id names a service, and may be given 1 to 100 times, not 101 times"


@pytest.mark.parametrize("query", ["", "resolution=hours", "ID=db"])
def test_at_least_one_service_is_asked_for(query: str) -> None:
    assert refused(query) == "id names a service, and may be given 1 to 100 times, not 0 times"


@pytest.mark.parametrize("span", ["weeks", "", "Minutes", "minutes&resolution=hours"])
def test_a_span_is_one_of_three(span: str) -> None:
    assert refused(f"id=db&resolution={span}") == "resolution is one of minutes, hours, days"


@pytest.mark.parametrize("count", ["-1", "101", "many", "", "1.5", "1&transitions=2", "²", "9" * 5000])
def test_a_count_of_changes_is_a_number_within_bounds(count: str) -> None:
    assert refused(f"id=db&transitions={count}") == "transitions is how many of the newest to tell, 0 to 100"


# ---- shared


def asked_at_once(*queries: str, desk: FakeDesk) -> list[Response]:
    async def story() -> list[Response]:
        return await asyncio.gather(*(ask(query, desk) for query in queries))

    return asyncio.run(story())


def asked_one_by_one(*queries: str, desk: FakeDesk, is_changing: bool = False) -> None:
    async def story() -> None:
        for query in queries:
            assert (await ask(query, desk)).code == 200
            desk.history.last_id += is_changing

    asyncio.run(story())


def test_all_who_ask_the_same_at_once_share_one_answer() -> None:
    desk = FakeDesk()
    answers = asked_at_once(*["id=db"] * 50, context=desk)
    assert len({answer.body for answer in answers}) == 1
    assert len(desk.history.queries) == 1


def test_an_answer_is_shared_for_a_moment_and_then_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = FakeDesk()
    asked_one_by_one("id=db", "id=db", context=desk)
    assert len(desk.history.queries) == 1
    monkeypatch.setattr(single_flight, "KEPT_S", 0.0)
    asked_one_by_one("id=db", "id=db", context=desk)
    assert len(desk.history.queries) == 3


def test_who_has_heard_of_a_change_is_told_no_older_answer() -> None:
    desk = FakeDesk()
    asked_one_by_one("id=db", "id=db", context=desk, is_changing=True)
    assert len(desk.history.queries) == 2


def test_who_asks_something_else_or_another_node_gets_another_answer() -> None:
    desk, other = FakeDesk(), FakeDesk()
    asked_at_once("id=db", "id=cache", context=desk)
    asked_at_once("id=db", context=other)
    assert (len(desk.history.queries), len(other.history.queries)) == (2, 1)


def test_one_who_leaves_takes_nothing_from_the_others() -> None:
    async def story() -> Response:
        desk = FakeDesk()
        leaving, staying = (asyncio.create_task(ask("id=db", desk)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(story()).code == 200


def test_while_the_disk_hangs_one_too_many_is_told_to_come_again_later() -> None:
    async def story() -> None:
        desk = FakeDesk()
        desk.history.may_read.clear()
        surface = OperatorApp(
            cast("Desk", desk), OperatorAuth(Address(scheme="http", host="127.0.0.1", port=8420), None)
        )
        await surface.handle(OperatorRequest("GET", b"/history", b"id=db&resolution=none"))  # loads the handler
        for number in range(MAX_IN_FLIGHT):
            visitor = asyncio.create_task(ask(f"id=s{number}", desk))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            visitor.cancel()  # as one does who is told after 30 s that there is no answer
        one_more = asyncio.ensure_future(surface.handle(OperatorRequest("GET", b"/history", b"id=one-more")))
        await asyncio.sleep(0)
        assert one_more.done(), "and does not wait as well"
        answer = cast("Answer", one_more.result())
        assert (answer.code, dict(answer.headers)["Retry-After"]) == (503, "10")
        assert json.loads(answer.body) == {"message": "Too many wait for an answer already; try again later"}
        assert len(desk.history.queries) == MAX_IN_FLIGHT
        desk.history.may_read.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert (await ask("id=one-more", desk)).code == 200

    asyncio.run(story())
