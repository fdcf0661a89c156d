"""`/history`: how services fared in the last minutes, hours or days, and what changed of late, as JSON."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

from svcnode.api.spec import error_response, make_response, parse_query
from svcnode.core.errors import InvalidValueError
from svcnode.core.strict_json import compact_json
from svcnode.history.records import MINUTES, RESOLUTIONS
from svcnode.operator.responses import transition_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcnode.api.app import OperatorRequest
    from svcnode.api.spec import Response
    from svcnode.history import Bucket, Resolution, Transition
    from svcnode.operator.context import OperatorContext

MAX_IDS = 100
MAX_TRANSITIONS = 100


class HistoryParams(NamedTuple):
    service_ids: tuple[str, ...]
    resolution: Resolution
    transitions: int  # how many of the newest


async def history(context: OperatorContext, request: OperatorRequest, name: str) -> Response:
    try:
        _check_utf8(request.query)
        asked = parse_history_query(parse_query(request.query))
    except InvalidValueError as exc:
        return error_response(400, str(exc))
    # Many pages show the same services, and all ask when a minute is over. But who has heard of a change, and asks for
    # more, must find it: so nothing is shared over a change.
    return await context.history_single_flight.get_async(
        request.query, lambda: _make_response(context, asked), version=context.history.last_id
    )


def _check_utf8(query: bytes) -> None:
    """What is no text would be read as some other id."""
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        raise InvalidValueError("the query is not UTF-8; write each byte of an id's UTF-8 as %XX") from None


def parse_history_query(query: Mapping[str, Sequence[str]]) -> HistoryParams:
    ids = tuple(dict.fromkeys(query.get("id", ())))
    if not 1 <= len(ids) <= MAX_IDS:
        raise InvalidValueError(f"id names a service, and may be given 1 to {MAX_IDS} times, not {len(ids)} times")
    return HistoryParams(
        ids, _parse_resolution(query.get("span", [MINUTES.name])), _parse_count(query.get("transitions", ["0"]))
    )


def _parse_resolution(values: Sequence[str]) -> Resolution:
    known = {span.name: span for span in RESOLUTIONS}
    if len(values) != 1 or values[0] not in known:
        raise InvalidValueError(f"resolution is one of {', '.join(known)}")
    return known[values[0]]


def _parse_count(values: Sequence[str]) -> int:
    text = values[0]
    if len(values) != 1 or not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MAX_TRANSITIONS):
        raise InvalidValueError(f"transitions is how many of the newest to tell, 0 to {MAX_TRANSITIONS}")
    return int(text)


async def _make_response(context: OperatorContext, query: HistoryParams) -> Response:
    history = context.history
    unknown = await _unknown_ids(context, query.service_ids)
    query = query._replace(service_ids=tuple(one for one in query.service_ids if one not in unknown))
    found = await history.buckets(query.service_ids, query.resolution)
    transitions = {
        service_id: await history.latest(service_id, query.transitions)
        for service_id in query.service_ids
        if query.transitions
    }
    return await asyncio.to_thread(lambda: make_response(200, encode_history(query, found, transitions, unknown)))


async def _unknown_ids(context: OperatorContext, service_ids: Sequence[str]) -> list[str]:
    """Of which there is nothing to tell: neither registered now nor kept from before."""
    strangers = [service_id for service_id in service_ids if context.node.find(service_id) is None]
    known = await context.history.known_ids(strangers) if strangers else ()
    return [service_id for service_id in strangers if service_id not in known]


def encode_history(
    query: HistoryParams,
    buckets: Mapping[str, Sequence[Bucket]],
    transitions: Mapping[str, Sequence[Transition]],
    unknown: Sequence[str],
) -> bytes:
    """Service by service: while a text is made in one go, the event loop waits for it."""
    parts = [_json_member("span", query.resolution.name), _json_member("length_s", query.resolution.length_s)]
    shown = [
        f"{compact_json(service_id)}:[{','.join(map(encode_bucket, of_it))}]" for service_id, of_it in buckets.items()
    ]
    parts.append(f'"services":{{{",".join(shown)}}}')
    if query.transitions:
        told = [
            _json_member(service_id, [transition_document(one) for one in of_it])
            for service_id, of_it in transitions.items()
        ]
        parts.append(f'"transitions":{{{",".join(told)}}}')
    parts.append(_json_member("unknown", unknown))
    return f"{{{','.join(parts)}}}".encode()


def _json_member(name: str, value: Any) -> str:  # noqa: ANN401  whatever JSON can hold
    return f"{compact_json(name)}:{compact_json(value)}"


def encode_bucket(bucket: Bucket) -> str:
    """As short as it can be told, and made as fast: there may be thousands."""
    begin_s, up_s, initializing_s, down_s, checks, failures, latency_sum_s, latency_max_s = bucket
    latency = f"{1000 * latency_sum_s / checks:.6g},{1000 * latency_max_s:.6g}" if checks else "null,null"
    return f"[{begin_s},{up_s:.8g},{initializing_s:.8g},{down_s:.8g},{checks},{failures},{latency}]"
