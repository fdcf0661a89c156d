"""How the answers come: on one connection after another, many at once, and through caches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import Level, NotJudgedError, check
from svcnode.conformance.subject import IDENTITY, SERVICES, items_of, parsed, told

if TYPE_CHECKING:
    from svcnode.conformance.check import Finding, Findings
    from svcnode.conformance.subject import Exchanged, Place, Subject

IN_TURN = 12
IN_PARALLEL = 50
FRESH = {"no-store", "no-cache", "max-age=0"}


@check(
    "keep-alive-in-step",
    Level.SHOULD,
    "silent",
    demands="Requests that follow each other on one connection each get their own answer, until the node says that it "
    "closes it.",
    mend="Send a Content-Length that is right, and Connection: close with the last answer before closing.",
)
async def keep_alive_in_step(node: Subject) -> Findings:
    places = _around(await _places(node), IN_TURN)
    asked = await node.ask_in_turn([node.request(place.path) for place in places])
    for place, exchanged in zip(places, asked, strict=False):
        if fault := await _mix_up(node, place, exchanged):
            yield fault


@check(
    "keep-alive-kept",
    Level.ADVICE,
    "silent",
    demands=f"{IN_TURN} requests can follow each other on one connection.",
    mend="Speak HTTP/1.1 and leave the connection open: asked every second, a new one each time costs far more than "
    "the answer.",
    needs=("keep-alive-in-step",),
)
async def keep_alive_kept(node: Subject) -> Findings:
    places = _around(await _places(node), IN_TURN)
    asked = await node.ask_in_turn([node.request(place.path) for place in places])
    if len(asked) < IN_TURN:
        yield asked[-1].finding(f"{IN_TURN} answers on one connection", f"{len(asked)}, and then its end")


@check(
    "parallel-requests",
    Level.SHOULD,
    "silent",
    demands=f"{IN_PARALLEL} requests at once are each answered as one alone is.",
    mend="Guard what the answers are made from against threads that read and write it at once, and let more than one "
    "connection wait.",
)
async def parallel_requests(node: Subject) -> Findings:
    places = _around(await _places(node), IN_PARALLEL)
    asked = await node.ask_at_once([node.request(place.path) for place in places])
    for place, exchanged in zip(places, asked, strict=True):
        if fault := await _mix_up(node, place, exchanged):
            yield fault


async def _places(node: Subject) -> list[Place]:
    if places := await node.places():
        return places
    raise NotJudgedError("no endpoint answers as it must")


def _around(places: list[Place], count: int) -> list[Place]:
    return [places[turn % len(places)] for turn in range(count)]


async def _mix_up(node: Subject, place: Place, exchanged: Exchanged) -> Finding | None:
    """Statuses may change at any time, but an answer stays one to its own request."""
    answer = exchanged.answer
    if answer.code not in place.codes:
        return exchanged.finding(place.expected)
    first = (await node.first(place.endpoint)).answer if place.endpoint in (IDENTITY, SERVICES) else answer
    if place.endpoint == IDENTITY and parsed(answer) != parsed(first):
        return exchanged.finding(f"the identity, as before: {told(first)}")
    if place.endpoint == SERVICES and items_of(first) is not None and items_of(answer) is None:
        return exchanged.finding("the list of services")
    return None


@check(
    "not-cached",
    Level.ADVICE,
    "silent",
    demands="No cache may keep an answer: each has the header Cache-Control: no-store.",
    mend="Send Cache-Control: no-store, or a proxy may go on telling a health that has passed.",
)
async def not_cached(node: Subject) -> Findings:
    for exchanged in await node.ask_all(node.request(place.path) for place in await _places(node)):
        if not exchanged.answer.tokens("cache-control") & FRESH:
            yield exchanged.finding("Cache-Control: no-store", _cache_control(exchanged))


def _cache_control(exchanged: Exchanged) -> str:
    found = exchanged.answer.values("cache-control")
    return f"Cache-Control: {', '.join(found)}" if found else "no Cache-Control"


@check(
    "query-unknown-ignored",
    Level.ADVICE,
    "silent",
    demands="A query parameter that the interface does not have changes nothing.",
    mend="Ignore parameters that are not known: monitors add some, to get past caches.",
)
async def query_unknown_ignored(node: Subject) -> Findings:
    places = await _places(node)
    asked = await node.ask_all(node.request(place.path, f"{node.unknown_id}=1") for place in places)
    for place, exchanged in zip(places, asked, strict=True):
        if exchanged.answer.code not in place.codes:
            yield exchanged.finding(place.expected)
