"""`/history`, as JSON: the timeline of a period; or, of single services, availability and latency by minute, hour or
day, and the latest transitions.
"""

from __future__ import annotations

import time
from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes, urlencode

from svcnode.api.spec import error_response, make_response, parse_known_query
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import ChangeKind
from svcnode.core.strict_json import compact_json
from svcnode.core.text import encodable
from svcnode.core.units import iso_time
from svcnode.history.records import MINUTES, RESOLUTIONS
from svcnode.history.timeline import CLOCK_SET, NEW_FILE, STARTED, STOOD_STILL, STOPPED, Period
from svcnode.net.threads import call_in_pool
from svcnode.operator.event_hub import transition_document
from svcnode.operator.query import parse_moment_s, parse_single

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcnode.api.spec import Request, Response
    from svcnode.history import Bucket, Resolution, Transition
    from svcnode.history.timeline import TimelineItem, TimelinePage
    from svcnode.operator.context import OperatorContext

MAX_IDS = 100
MAX_TRANSITIONS = 100


BUCKET_PARAMETERS = ("id", "resolution", "transitions")
TIMELINE_PARAMETERS = ("id", "from", "to", "after")
PARAMETERS = tuple(dict.fromkeys(TIMELINE_PARAMETERS + BUCKET_PARAMETERS))
DEFAULT_PERIOD_S = 86_400.0
# What concerns every service, in the timeline of one.
EVENTS_OF_THE_NODE = (
    *(STARTED, STOPPED, CLOCK_SET, STOOD_STILL, NEW_FILE),
    *(ChangeKind.RELOADED.value, ChangeKind.NOTE.value),
)


class TimelineParams(NamedTuple):
    service_ids: tuple[str, ...]  # empty: everything
    period: Period


class HistoryParams(NamedTuple):
    service_ids: tuple[str, ...]
    resolution: Resolution
    transitions: int  # how many of the latest


async def history(context: OperatorContext, request: Request, name: str) -> Response:
    try:
        _check_utf8(request.query)
        query = parse_known_query(request.query, PARAMETERS)
        if is_timeline(query):
            timeline = parse_timeline_query(query, time.time())
            return await context.history_single_flight.get_async(
                request.query, lambda: _timeline_response(context, timeline), version=context.history.last_id
            )
        params = parse_history_query(query)
    except InvalidValueError as exc:
        return error_response(400, str(exc))
    # Many open pages request the same services at the end of a minute. A client that received a transition must find it
    # here, so a response is not shared beyond the next transition.
    return await context.history_single_flight.get_async(
        request.query, lambda: _make_response(context, params), version=context.history.last_id
    )


def _check_utf8(query: bytes) -> None:
    """Invalid bytes would be decoded to a different id."""
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        raise InvalidValueError("the query is not UTF-8: percent-encode the UTF-8 bytes of each id") from None


def parse_history_query(query: Mapping[str, Sequence[str]]) -> HistoryParams:
    ids = tuple(dict.fromkeys(query.get("id", ())))
    if not 1 <= len(ids) <= MAX_IDS:
        raise InvalidValueError(f"invalid number of id parameters: {len(ids)}; give 1 to {MAX_IDS} service ids")
    return HistoryParams(
        ids, _parse_resolution(query.get("resolution", [MINUTES.name])), _parse_count(query.get("transitions", ["0"]))
    )


def _parse_resolution(values: Sequence[str]) -> Resolution:
    known = {resolution.name: resolution for resolution in RESOLUTIONS}
    if len(values) != 1 or values[0] not in known:
        raise InvalidValueError(f"invalid resolution: must be one of {', '.join(known)}")
    return known[values[0]]


def _parse_count(values: Sequence[str]) -> int:
    text = values[0]
    if len(values) != 1 or not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MAX_TRANSITIONS):
        raise InvalidValueError(f"invalid transitions: must be a number from 0 to {MAX_TRANSITIONS}")
    return int(text)


# ---- the timeline


def is_timeline(query: Mapping[str, Sequence[str]]) -> bool:
    """Without ids, or with a period."""
    return "id" not in query or not set(query).isdisjoint(("from", "to", "after"))


def parse_timeline_query(query: Mapping[str, Sequence[str]], now_s: float) -> TimelineParams:
    if other := [name for name in query if name not in TIMELINE_PARAMETERS]:
        raise InvalidValueError(f"{other[0]} needs the ids of services, and cannot be combined with from, to or after")
    ids = tuple(dict.fromkeys(query.get("id", ())))
    if len(ids) > MAX_IDS:
        raise InvalidValueError(f"invalid number of id parameters: {len(ids)}; give at most {MAX_IDS} service ids")
    begin, end, after = (parse_single(query, name) for name in ("from", "to", "after"))
    to_s = now_s if end is None else parse_moment_s("to", end, now_s)
    from_s = to_s - DEFAULT_PERIOD_S if begin is None else parse_moment_s("from", begin, now_s)
    if from_s >= to_s:
        raise InvalidValueError("from must be earlier than to")
    if after is not None and not (after.isascii() and after.isdigit() and len(after) < 19):
        raise InvalidValueError("after must be the number in the field next of an earlier answer")
    return TimelineParams(ids, Period(from_s, to_s, int(after or 0)))


async def _timeline_response(context: OperatorContext, params: TimelineParams) -> Response:
    page = await context.history.timeline(params.period)
    unknown = await _unknown_ids(context, params.service_ids)
    return await call_in_pool(lambda: make_response(200, encode_timeline(params, page, unknown, time.time())))


def encode_timeline(params: TimelineParams, page: TimelinePage, unknown: Sequence[str], now_s: float) -> bytes:
    period, ids = params.period, params.service_ids
    times = {"from": iso_time(period.from_s), "to": iso_time(period.to_s)}
    following = None
    if page.next_after_id is not None:
        values = [("id", service_id) for service_id in ids] + [*times.items(), ("after", str(page.next_after_id))]
        following = f"/history?{urlencode(values)}"
    until_s = min(period.to_s, now_s)
    items = [compact_json(item_document(item, until_s)) for item in page.items if not ids or is_about(item, ids)]
    head = compact_json({**times, "next": following, "unknown": unknown})
    return f'{head[:-1]},"items":[{",".join(items)}]}}'.encode()


def is_about(item: TimelineItem, ids: Sequence[str]) -> bool:
    """Whether an item belongs into the timeline of these services."""
    if item.service_id is not None:
        return item.type != "health" and item.service_id in ids
    return item.type == "event" and item.kind in EVENTS_OF_THE_NODE


def item_document(item: TimelineItem, open_until_s: float) -> dict[str, Any]:
    """What is open lasts until `open_until_s` at least."""
    end_s = open_until_s if item.is_open else item.until_s
    return {
        "id": item.id,
        "type": item.type,
        "kind": item.kind,
        "service": item.service_id,
        "status": item.status,
        "health": item.health,
        "from": iso_time(item.from_s),
        "until": None if item.until_s is None else iso_time(item.until_s),
        "duration_s": None if end_s is None else round(max(0.0, end_s - item.from_s), 3),
        "open": item.is_open,
        "reason": encodable(item.reason),
        "code": item.code,
    }


# ---- single services


async def _make_response(context: OperatorContext, params: HistoryParams) -> Response:
    history = context.history
    unknown = await _unknown_ids(context, params.service_ids)
    params = params._replace(
        service_ids=tuple(service_id for service_id in params.service_ids if service_id not in unknown)
    )
    buckets = await history.buckets(params.service_ids, params.resolution)
    transitions = {
        service_id: await history.latest(service_id, params.transitions)
        for service_id in params.service_ids
        if params.transitions
    }
    return await call_in_pool(lambda: make_response(200, encode_history(params, buckets, transitions, unknown)))


async def _unknown_ids(context: OperatorContext, service_ids: Sequence[str]) -> list[str]:
    """The ids that are neither registered nor in history."""
    unregistered = [service_id for service_id in service_ids if context.node.find(service_id) is None]
    known = await context.history.known_ids(unregistered) if unregistered else ()
    return [service_id for service_id in unregistered if service_id not in known]


def encode_history(
    params: HistoryParams,
    buckets: Mapping[str, Sequence[Bucket]],
    transitions: Mapping[str, Sequence[Transition]],
    unknown: Sequence[str],
) -> bytes:
    """Service by service: encoding everything in one call would keep the event loop's thread from running."""
    members = [
        _json_member("resolution", params.resolution.name),
        _json_member("length_s", params.resolution.length_s),
        f'"services":{{{",".join(starmap(_buckets_member, buckets.items()))}}}',
    ]
    if params.transitions:
        lists = [
            _json_member(service_id, list(map(transition_document, latest)))
            for service_id, latest in transitions.items()
        ]
        members.append(f'"transitions":{{{",".join(lists)}}}')
    members.append(_json_member("unknown", unknown))
    return f"{{{','.join(members)}}}".encode()


def _buckets_member(service_id: str, buckets: Sequence[Bucket]) -> str:
    return f"{compact_json(service_id)}:[{','.join(map(encode_bucket, buckets))}]"


def _json_member(name: str, value: Any) -> str:  # noqa: ANN401  any JSON value
    return f"{compact_json(name)}:{compact_json(value)}"


def encode_bucket(bucket: Bucket) -> str:
    """An array instead of an object: shorter and faster, as there may be thousands."""
    begin_s, up_s, initializing_s, down_s, checks, failures, latency_sum_s, latency_max_s, maintenance_s = bucket
    latency = f"{1000 * latency_sum_s / checks:.6g},{1000 * latency_max_s:.6g}" if checks else "null,null"
    times = f"{up_s:.8g},{initializing_s:.8g},{down_s:.8g}"
    return f"[{begin_s},{times},{checks},{failures},{latency},{maintenance_s:.8g}]"
