"""`/history` returns buckets and the latest transitions, and rejects invalid queries."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import pytest

from svcnode.api.spec import Request
from svcnode.core.address import Address
from svcnode.history.records import DAYS, HOURS, MINUTES, Bucket, Resolution, Transition
from svcnode.history.timeline import Period, TimelineItem, TimelinePage
from svcnode.operator import OperatorApp, single_flight
from svcnode.operator.auth import OperatorAuth
from svcnode.operator.event_hub import transition_document
from svcnode.operator.history_api import PARAMETERS, history
from svcnode.operator.single_flight import MAX_IN_FLIGHT, SingleFlight
from tests.support.real_time import in_real_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.api.spec import Response
    from svcnode.operator.context import OperatorContext

NOON = 1_767_268_800


ITEMS = [
    TimelineItem(
        f"{kind[0]}{number}",
        kind,
        "status",
        service_id,
        status,
        health,
        NOON + number,
        until_s,
        is_open,
        "no",
        "timeout",
    )
    for number, (kind, service_id, status, health, until_s, is_open) in enumerate(
        [
            ("outage", "db", "Down", None, NOON + 60.5, False),
            ("outage", "api", "Down", None, None, True),
            ("health", "db", None, 503, None, True),
        ]
    )
]
ITEMS.append(ITEMS[0]._replace(id="e9", type="event", kind="note", service_id=None, status=None, until_s=None))
ITEMS.append(ITEMS[0]._replace(id="e10", type="event", kind="message_sent", service_id=None, until_s=None))


class FakeHistory:
    """Every service has the same three buckets and as many transitions as requested; `gone` is known."""

    def __init__(self) -> None:
        self.last_id = 0
        self.queries: list[tuple[tuple[str, ...], str]] = []
        self.periods: list[Period] = []
        self.is_readable = asyncio.Event()
        self.is_readable.set()

    async def buckets(self, service_ids: Sequence[str], resolution: Resolution) -> dict[str, list[Bucket]]:
        self.queries.append((tuple(service_ids), resolution.name))
        await asyncio.sleep(0)
        await self.is_readable.wait()
        buckets = [
            Bucket(NOON),
            Bucket(NOON + resolution.length_s, 59.25, 0.5, 0.25, 6, 1, 0.03, 0.0123456789),
            Bucket(NOON + 2 * resolution.length_s, up_s=12.0, maintenance_s=30.0),
        ]
        return dict.fromkeys(service_ids, buckets)

    async def timeline(self, period: Period) -> TimelinePage:
        self.periods.append(period)
        if not period.after_id:
            return TimelinePage(ITEMS, 7)
        return TimelinePage([], None)

    async def known_ids(self, service_ids: Sequence[str]) -> set[str]:
        return {"gone"} & set(service_ids)

    async def latest(self, service_id: str | None = None, limit: int = 20) -> list[Transition]:
        reason = f"{service_id}: no"
        return [
            Transition(number, NOON + number / 1000, "status", service_id, "Up", "Down", reason, "timeout", 200, 503)
            for number in range(limit, 0, -1)
        ]


class FakeNode:
    """Every id is registered but three."""

    def find(self, service_id: str) -> object | None:
        return None if service_id in ("gone", "zzz", "\N{REPLACEMENT CHARACTER}") else object()


class FakeContext:
    def __init__(self) -> None:
        self.history = FakeHistory()
        self.node = FakeNode()
        self.history_single_flight = SingleFlight()


async def get(query: str, context: FakeContext | None = None) -> Response:
    return await history(
        cast("OperatorContext", context or FakeContext()), Request("GET", b"/history", query.encode()), ""
    )


def document(query: str) -> Any:
    response = asyncio.run(get(query))
    assert response.code == 200, response.body
    return json.loads(response.body)


def rejected_parameter(query: str) -> str:
    """The parameter that the error message names."""
    response = asyncio.run(get(query))
    assert response.code == 400, response.body
    message = json.loads(response.body)["message"]
    return next(
        name
        for name in ("UTF-8", "id", "resolution", "transitions", "from", "to", "after")
        if re.search(rf"\b{name}\b", message)
    )


@pytest.mark.parametrize("resolution", [MINUTES, HOURS, DAYS], ids=lambda resolution: resolution.name)
def test_buckets_of_every_resolution_have_latencies_in_milliseconds(resolution: Resolution) -> None:
    length_s = resolution.length_s
    assert document(f"id=db&resolution={resolution.name}") == {
        "resolution": resolution.name,
        "length_s": length_s,
        "services": {
            "db": [
                [NOON, 0, 0, 0, 0, 0, None, None, 0],
                [NOON + length_s, 59.25, 0.5, 0.25, 6, 1, 5, 12.3457, 0],
                [NOON + 2 * length_s, 12, 0, 0, 0, 0, None, None, 30],
            ]
        },
        "unknown": [],
    }


@pytest.mark.parametrize("service_id", ["<script>", "ünï", 'say "no"', "a&b=c d", "100%", "a/b"])
def test_an_id_may_hold_any_character(service_id: str) -> None:
    result = document(f"id={quote(service_id, safe='')}&transitions=1")
    assert list(result["services"]) == [service_id]
    assert result["transitions"][service_id][0]["reason"] == f"{service_id}: no"


def test_an_id_that_is_neither_registered_nor_in_history_is_listed_as_unknown() -> None:
    result = document("id=zzz&id=gone&id=db&id=gone&transitions=1")
    assert result["unknown"] == ["zzz"]
    assert list(result["services"]) == list(result["transitions"]) == ["gone", "db"]
    empty = {"resolution": "minutes", "length_s": 60, "services": {}, "unknown": ["zzz"]}
    assert document("id=zzz&transitions=0") == empty


def test_transitions_have_the_form_of_events() -> None:
    expected = [transition_document(one) for one in asyncio.run(FakeHistory().latest("db", 2))]
    assert document("id=db&transitions=2")["transitions"] == {"db": expected}
    assert [one["id"] for one in expected] == [2, 1]


def test_a_query_has_at_most_a_hundred_services() -> None:
    ids = "&".join(f"id=s{number}" for number in range(100))
    assert len(document(ids)["services"]) == 100
    assert rejected_parameter(ids + "&id=one-more") == "id"


@pytest.mark.parametrize(
    ("query", "named"),
    [
        *((query, "resolution") for query in ("resolution=hours", "id=db&resolution=hours&from=12h")),
        *((f"from={text}", "from") for text in ("", "yesterday", "2026-01-01T12:00:00", "1h&from=2h", "1h&to=2h")),
        *((f"to={text}", "to") for text in ("tomorrow", "-1h", "1h&to=2h")),
        *((f"after={text}", "after") for text in ("x", "-1", "9" * 19, "²")),
        *((f"id=db&resolution={name}", "resolution") for name in ("weeks", "", "minutes&resolution=hours")),
        *((f"id=db&transitions={count}", "transitions") for count in ("-1", "101", "", "1.5", "1&transitions=2", "²")),
        (f"id=db&transitions={'9' * 5000}", "transitions"),
        *((query, "UTF-8") for query in ("id=db&id=caf%e9", "id=%ED%A0%80", "id=db&resolution=%80")),
    ],
)
def test_an_invalid_query_is_rejected_with_the_name_of_its_parameter(query: str, named: str) -> None:
    assert rejected_parameter(query) == named


@pytest.mark.parametrize("query", ["ID=db", "since=12h", "id=db&form=hours"])
def test_an_unknown_parameter_is_rejected_with_those_that_exist(query: str) -> None:
    response = asyncio.run(get(query))
    assert response.code == 400
    assert ", ".join(PARAMETERS) in json.loads(response.body)["message"]


def test_the_time_line_of_a_period_has_every_item_with_its_duration() -> None:
    result = document("from=2026-01-01T12:00:00Z&to=2026-01-01T14:00:00%2B01:00")
    assert (result["from"], result["to"]) == ("2026-01-01T12:00:00.000Z", "2026-01-01T13:00:00.000Z")
    assert [item["id"] for item in result["items"]] == ["o0", "o1", "h2", "e9", "e10"]
    assert result["items"][0] == {
        "id": "o0",
        "type": "outage",
        "kind": "status",
        "service": "db",
        "status": "Down",
        "health": None,
        "from": "2026-01-01T12:00:00.000Z",
        "until": "2026-01-01T12:01:00.500Z",
        "duration_s": 60.5,
        "open": False,
        "reason": "no",
        "code": "timeout",
    }
    lasting = result["items"][1]
    assert (lasting["until"], lasting["open"], lasting["duration_s"]) == (None, True, 3599.0), "until the period ends"


def test_the_next_page_of_a_time_line_is_a_path_that_can_be_requested() -> None:
    path, _, query = document("from=2026-01-01T12:00:00Z&to=2026-01-01T13:00:00Z&id=db&id=a%26b")["next"].partition("?")
    assert path == "/history"
    context = FakeContext()
    response = asyncio.run(get(query, context))
    assert (response.code, json.loads(response.body)["next"]) == (200, None)
    assert context.history.periods == [Period(NOON, NOON + 3600.0, 7)]


def test_the_time_line_of_a_service_has_what_concerns_every_service_too() -> None:
    result = document("from=2026-01-01T12:00:00Z&to=2026-01-01T13:00:00Z&id=db")
    assert [item["id"] for item in result["items"]] == ["o0", "e9"]


def test_the_time_line_says_which_ids_nobody_knows() -> None:
    """Otherwise a misspelled id looks like a service with which nothing has happened."""
    period = "from=2026-01-01T12:00:00Z&to=2026-01-01T13:00:00Z"
    assert document(f"{period}&id=zzz&id=gone&id=db")["unknown"] == ["zzz"]
    assert document(period)["unknown"] == []


@pytest.mark.parametrize(("query", "length_s"), [("", 86_400), ("from=12h", 12 * 3600), ("from=2d&to=1d", 86_400)])
def test_a_period_may_be_relative_to_now(query: str, length_s: float) -> None:
    context = FakeContext()
    asyncio.run(get(query, context))
    (period,) = context.history.periods
    assert period.to_s - period.from_s == length_s
    assert 0 <= time.time() - period.to_s - 86_400 * ("to=" in query) < 60


def get_all_at_once(*queries: str, context: FakeContext) -> list[Response]:
    async def scenario() -> list[Response]:
        return await asyncio.gather(*(get(query, context) for query in queries))

    return asyncio.run(scenario())


def get_one_by_one(*queries: str, context: FakeContext) -> None:
    async def scenario() -> None:
        for query in queries:
            assert (await get(query, context)).code == 200

    asyncio.run(scenario())


def test_a_response_is_shared_for_its_ttl_and_not_beyond_the_next_transition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_flight, "RESULT_TTL_S", 3600.0)
    context, other = FakeContext(), FakeContext()
    responses = get_all_at_once(*["id=db"] * 50, context=context)
    assert len({response.body for response in responses}) == 1
    get_one_by_one("id=db", context=context)
    assert len(context.history.queries) == 1
    get_one_by_one("id=db", "id=cache", context=other)
    assert len(other.history.queries) == 2
    context.history.last_id += 1
    get_one_by_one("id=db", "id=db", context=context)
    assert len(context.history.queries) == 2
    monkeypatch.setattr(single_flight, "RESULT_TTL_S", 0.0)
    get_one_by_one("id=db", "id=db", context=context)
    assert len(context.history.queries) == 4


@in_real_time
async def test_at_the_limit_a_request_is_rejected_at_once() -> None:
    context = FakeContext()
    context.history.is_readable.clear()
    app = OperatorApp(
        cast("OperatorContext", context),
        OperatorAuth(Address(scheme="http", host="127.0.0.1", port=8420), None, trusts_loopback=True),
    )
    await app.handle(Request("GET", b"/history", b"id=db&resolution=none"))  # loads the handler
    for number in range(MAX_IN_FLIGHT):
        caller = asyncio.create_task(get(f"id=s{number}", context))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()  # as the server does after 30 s
    one_more = asyncio.ensure_future(app.handle(Request("GET", b"/history", b"id=one-more")))
    await asyncio.sleep(0)
    assert one_more.done()
    response = cast("Response", one_more.result())
    assert (response.code, dict(response.headers)["Retry-After"]) == (503, "10")
    assert len(context.history.queries) == MAX_IN_FLIGHT
    context.history.is_readable.set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
    assert (await get("id=one-more", context)).code == 200
