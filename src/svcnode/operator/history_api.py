"""`/history`: availability and latency of services by minute, hour or day, and their latest transitions, as JSON."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

from svcnode.api.spec import error_response, make_response, parse_query
from svcnode.core.errors import InvalidValueError
from svcnode.core.strict_json import compact_json
from svcnode.history.records import MINUTES, RESOLUTIONS
from svcnode.net.threads import call_in_pool
from svcnode.operator.event_hub import transition_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcnode.api.spec import Request, Response
    from svcnode.history import Bucket, Resolution, Transition
    from svcnode.operator.context import OperatorContext

MAX_IDS = 100
MAX_TRANSITIONS = 100


class HistoryParams(NamedTuple):
    service_ids: tuple[str, ...]
    resolution: Resolution
    transitions: int  # how many of the latest


async def history(context: OperatorContext, request: Request, name: str) -> Response:
    try:
        _check_utf8(request.query)
        params = parse_history_query(parse_query(request.query))
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
        raise InvalidValueError("the query is not UTF-8: percent-encode each byte of the UTF-8 form of an id") from None


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
