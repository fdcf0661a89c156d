"""How the answers come: on one connection after another, many at once, and through caches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from svcnode.conformance.check import SILENT, Finding, Level, check
from svcnode.conformance.exchange import NoAnswerError
from svcnode.conformance.interface import IDENTITY, OTHER_METHODS, SERVICES, UNSUPPORTED
from svcnode.conformance.reading import items_of, parsed, told
from svcnode.conformance.subject import Exchanged, no_answer
from svcnode.conformance.wording import shown

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.interface import Place
    from svcnode.conformance.subject import Subject

IN_TURN = 12
IN_PARALLEL = 50
_ROOM_TO_WAIT = (
    "Let more connections wait until they are accepted: a listen backlog of 128 or more, such as "
    "request_queue_size = 128 for the servers of Python's standard library."
)
_SIDE_BY_SIDE = f"Serve connections side by side, or one after another so fast that {IN_PARALLEL} are done in seconds."
FRESH = {"no-store", "no-cache", "max-age=0"}


@check(
    "keep-alive-in-step",
    Level.SHOULD,
    SILENT,
    demands="Requests that follow each other on one connection each get their own answer, until the node says that it "
    "closes it.",
    mend="Send a Content-Length that is right, and Connection: close with the last answer before closing.",
)
async def keep_alive_in_step(node: Subject) -> Findings:
    places = _around(await node.usable_places(), IN_TURN)
    asked = await node.ask_in_turn([node.request(place.path) for place in places])
    for place, exchanged in zip(places, asked, strict=False):
        if fault := await _mix_up(node, place, exchanged):
            yield fault


@check(
    "keep-alive-kept",
    Level.ADVICE,
    SILENT,
    demands=f"{IN_TURN} requests can follow each other on one connection.",
    mend="Speak HTTP/1.1 and leave the connection open: asked every second, a new one each time costs far more than "
    "the answer.",
    needs=("keep-alive-in-step",),
)
async def keep_alive_kept(node: Subject) -> Findings:
    places = _around(await node.usable_places(), IN_TURN)
    asked = await node.ask_in_turn([node.request(place.path) for place in places])
    if len(asked) < IN_TURN:
        yield asked[-1].finding(f"{IN_TURN} answers on one connection", f"{len(asked)}, and then its end")


@check(
    "refusals-framed",
    Level.SHOULD,
    SILENT,
    demands="A refusal too says where it ends, or ends the connection: that of another method, path, id or version.",
    mend="Send Content-Length with every answer, 0 where it has no body: a client that keeps its connections waits for "
    "the end of the answer in vain.",
)
async def refusals_framed(node: Subject) -> Findings:
    places = await node.usable_places()
    requests = [
        node.request(f"/{node.unknown_id}"),
        node.request(places[0].path, f"version={UNSUPPORTED}"),
        node.health_request(node.unknown_id),
    ]
    if node.other_methods:
        requests += [node.request(place.path, method=method) for place in places for method in OTHER_METHODS]
    for outcome in await node.ask_each(requests, is_kept=True):
        if isinstance(outcome, NoAnswerError) and outcome.is_unended:
            yield no_answer(outcome)


@check(
    "parallel-requests",
    Level.SHOULD,
    SILENT,
    demands=f"{IN_PARALLEL} requests at once are each answered as one alone is.",
    mend="Guard what the answers are made from against threads that read and write it at once.",
)
async def parallel_requests(node: Subject) -> Findings:
    places = _around(await node.usable_places(), IN_PARALLEL)
    asked = await node.ask_at_once([node.request(place.path) for place in places])
    lost = [outcome for outcome in asked if isinstance(outcome, NoAnswerError)]
    refused = [exc for exc in lost if not exc.is_accepted]
    broken = [exc for exc in lost if exc.is_accepted]
    if refused:
        came = f"{len(refused)} of them not accepted: {refused[0]}"
        yield Finding(refused[0].request, f"{IN_PARALLEL} connections at once", came, _ROOM_TO_WAIT)
    if broken:
        came = f"{len(broken)} of them without one: {broken[0]}"
        yield Finding(broken[0].request, f"{IN_PARALLEL} whole answers", came, _SIDE_BY_SIDE)
    pairs = [(place, outcome) for place, outcome in zip(places, asked, strict=True) if isinstance(outcome, Exchanged)]
    wrong = [fault for place, exchanged in pairs if (fault := await _mix_up(node, place, exchanged))]
    if wrong:
        yield replace(wrong[0], came=f"{len(wrong)} of {IN_PARALLEL} wrong, the first {wrong[0].came}")


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
    SILENT,
    demands="No cache may keep an answer: each has the header Cache-Control: no-store.",
    mend="Send Cache-Control: no-store, or a proxy may go on telling a health that has passed.",
)
async def not_cached(node: Subject) -> Findings:
    for exchanged in await node.ask_all(node.request(place.path) for place in await node.usable_places()):
        if not exchanged.answer.tokens("cache-control") & FRESH:
            yield exchanged.finding("Cache-Control: no-store", _cache_control(exchanged))


def _cache_control(exchanged: Exchanged) -> str:
    found = exchanged.answer.values("cache-control")
    return f"Cache-Control: {shown(', '.join(found))}" if found else "no Cache-Control"


@check(
    "query-unknown-ignored",
    Level.ADVICE,
    SILENT,
    demands="A query parameter that the interface does not have changes nothing.",
    mend="Ignore parameters that are not known: monitors add some, to get past caches.",
)
async def query_unknown_ignored(node: Subject) -> Findings:
    places = await node.usable_places()
    asked = await node.ask_all(node.request(place.path, f"{node.unknown_id}=1") for place in places)
    for place, exchanged in zip(places, asked, strict=True):
        if exchanged.answer.code not in place.codes:
            yield exchanged.finding(place.expected)
