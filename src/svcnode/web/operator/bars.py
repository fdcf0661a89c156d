"""`/history`: how services fared in the last minutes, hours or days, and what changed of late, as JSON."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote_to_bytes

from svcnode.core.encoding import compact_json
from svcnode.core.errors import InvalidValueError
from svcnode.history.records import MINUTES, SPANS
from svcnode.spec import answer_with, error_answer, parse_query
from svcnode.web.operator.answering import transition_document

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcnode.history import Bar, Span, Transition
    from svcnode.spec import Answer
    from svcnode.web.operator.desk import Desk
    from svcnode.web.visits import Visit

MAX_IDS = 100
MAX_TRANSITIONS = 100


class Asked(NamedTuple):
    service_ids: tuple[str, ...]
    span: Span
    transitions: int  # how many of the newest


async def bars(desk: Desk, visit: Visit, name: str) -> Answer:
    try:
        _check_text(visit.query)
        asked = asked_in(parse_query(visit.query))
    except InvalidValueError as exc:
        return error_answer(400, str(exc))
    # Many pages show the same services, and all ask when a minute is over. But who has heard of a change, and asks for
    # more, must find it: so nothing is shared over a change.
    return await desk.shared_bars.get_awaited(visit.query, lambda: _answer(desk, asked), version=desk.history.last_id)


def _check_text(query: bytes) -> None:
    """What is no text would be read as some other id."""
    try:
        unquote_to_bytes(query).decode()
    except UnicodeDecodeError:
        raise InvalidValueError("the query is not UTF-8; write each byte of an id's UTF-8 as %XX") from None


def asked_in(query: Mapping[str, Sequence[str]]) -> Asked:
    ids = tuple(dict.fromkeys(query.get("id", ())))
    if not 1 <= len(ids) <= MAX_IDS:
        raise InvalidValueError(f"id names a service, and may be given 1 to {MAX_IDS} times, not {len(ids)} times")
    return Asked(ids, _span(query.get("span", [MINUTES.name])), _count(query.get("transitions", ["0"])))


def _span(values: Sequence[str]) -> Span:
    known = {span.name: span for span in SPANS}
    if len(values) != 1 or values[0] not in known:
        raise InvalidValueError(f"span is one of {', '.join(known)}")
    return known[values[0]]


def _count(values: Sequence[str]) -> int:
    text = values[0]
    if len(values) != 1 or not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= MAX_TRANSITIONS):
        raise InvalidValueError(f"transitions is how many of the newest to tell, 0 to {MAX_TRANSITIONS}")
    return int(text)


async def _answer(desk: Desk, asked: Asked) -> Answer:
    history = desk.history
    unknown = await _unknown(desk, asked.service_ids)
    asked = asked._replace(service_ids=tuple(one for one in asked.service_ids if one not in unknown))
    found = await history.bars(asked.service_ids, asked.span)
    transitions = {
        service_id: await history.latest(service_id, asked.transitions)
        for service_id in asked.service_ids
        if asked.transitions
    }
    return await asyncio.to_thread(lambda: answer_with(200, encoded(asked, found, transitions, unknown)))


async def _unknown(desk: Desk, service_ids: Sequence[str]) -> list[str]:
    """Of which there is nothing to tell: neither registered now nor kept from before."""
    strangers = [service_id for service_id in service_ids if desk.node.find(service_id) is None]
    known = await desk.history.known(strangers) if strangers else ()
    return [service_id for service_id in strangers if service_id not in known]


def encoded(
    asked: Asked,
    bars: Mapping[str, Sequence[Bar]],
    transitions: Mapping[str, Sequence[Transition]],
    unknown: Sequence[str],
) -> bytes:
    """Service by service: while a text is made in one go, the event loop waits for it."""
    parts = [_member("span", asked.span.name), _member("length_s", asked.span.length_s)]
    shown = [f"{compact_json(service_id)}:[{','.join(map(shown_bar, of_it))}]" for service_id, of_it in bars.items()]
    parts.append(f'"services":{{{",".join(shown)}}}')
    if asked.transitions:
        told = [
            _member(service_id, [transition_document(one) for one in of_it])
            for service_id, of_it in transitions.items()
        ]
        parts.append(f'"transitions":{{{",".join(told)}}}')
    parts.append(_member("unknown", unknown))
    return f"{{{','.join(parts)}}}".encode()


def _member(name: str, value: Any) -> str:  # noqa: ANN401  whatever JSON can hold
    return f"{compact_json(name)}:{compact_json(value)}"


def shown_bar(bar: Bar) -> str:
    """As short as it can be told, and made as fast: there may be thousands."""
    begin_s, up_s, initializing_s, down_s, looks, failures, latency_sum_s, latency_max_s = bar
    latency = f"{1000 * latency_sum_s / looks:.6g},{1000 * latency_max_s:.6g}" if looks else "null,null"
    return f"[{begin_s},{up_s:.8g},{initializing_s:.8g},{down_s:.8g},{looks},{failures},{latency}]"
