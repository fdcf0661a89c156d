"""GET is the method of this interface; HEAD asks the same, and all others ask for something that it does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import ROUNDS, UNSPECIFIED, Level, Skip, check, is_persistent
from svcnode.conformance.interface import OTHER_METHODS, WRITING_METHODS
from svcnode.conformance.parse import format_response, is_success_code
from svcnode.conformance.text import join_words, safe_text

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.interface import Endpoint
    from svcnode.conformance.node_under_test import Exchange, NodeUnderTest

# ---- HEAD


@check(
    "head-code",
    Level.SHOULD,
    UNSPECIFIED,
    requirement="HEAD answers with the code of GET, or refuses (4xx or 501).",
    fix="Answer HEAD as GET, without the body; a HEAD with 200 beside a GET with 503 is a false green light.",
)
async def head_code(node: NodeUnderTest) -> Findings:
    for place in await node.require_endpoints():
        if (wrong := await _code_mismatch(node, place)) is not None:
            head, code = wrong
            yield head.finding(f"{code}, as GET answers", str(head.response.code))


async def _code_mismatch(node: NodeUnderTest, place: Endpoint) -> tuple[Exchange, int] | None:
    """One that comes again, with the code that GET answers before and after. A code that GET has too is none."""
    wrong = []
    codes_of_get = set()
    for _ in range(ROUNDS):
        before = await node.get(place.path)
        head = await node.send(node.request(place.path, method="HEAD"))
        after = await node.get(place.path)
        if head.response.code == before.response.code or _is_refusal(head):
            return None
        codes_of_get |= {before.response.code, after.response.code}
        if before.response.code == after.response.code:
            wrong.append((head, after.response.code))
    wrong = [(head, code) for head, code in wrong if head.response.code not in codes_of_get]
    return wrong[-1] if is_persistent(len(wrong)) else None


def _is_refusal(exchanged: Exchange) -> bool:
    return 400 <= exchanged.response.code < 500 or exchanged.response.code == 501


@check(
    "head-no-body",
    Level.SHOULD,
    UNSPECIFIED,
    requirement="No body follows the head of an answer to HEAD.",
    fix="Send the headers of GET alone: a client reads a body there as the beginning of the next answer.",
    needs=("head-code",),
)
async def head_no_body(node: NodeUnderTest) -> Findings:
    for exchanged in await _head_exchanges(node):
        if exchanged.response.excess:
            yield exchanged.finding("no body", f"{exchanged.response.code} and {safe_text(exchanged.response.excess)}")


@check(
    "head-answered",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="HEAD is answered on every endpoint, and not refused.",
    fix="Answer HEAD as GET, without the body: load balancers and uptime monitors ask with it.",
    needs=("head-code",),
)
async def head_answered(node: NodeUnderTest) -> Findings:
    for exchanged in await _head_exchanges(node):
        if _is_refusal(exchanged):
            yield exchanged.finding("the code that GET answers", str(exchanged.response.code))


async def _head_exchanges(node: NodeUnderTest) -> list[Exchange]:
    return await node.send_all(node.request(place.path, method="HEAD") for place in await node.require_endpoints())


# ---- all others


@check(
    "methods-refused",
    Level.SHOULD,
    "4",
    requirement="POST, PUT, PATCH and DELETE are not answered as GET is, nor as if they had been carried out.",
    fix="Answer 405 for every method but GET and HEAD: the interface is read-only.",
    uses_other_methods=True,
)
async def methods_refused(node: NodeUnderTest) -> Findings:
    for exchanged in await _not_refused(node, *WRITING_METHODS):
        yield exchanged.finding("405")


@check(
    "options-refused",
    Level.SHOULD,
    UNSPECIFIED,
    requirement="OPTIONS is not answered as if it were fine.",
    fix="Answer 405 to a bare OPTIONS: HAProxy's plain `option httpchk` sends it, and takes 200 or 204 for healthy.",
    uses_other_methods=True,
)
async def options_refused(node: NodeUnderTest) -> Findings:
    for exchanged in await _not_refused(node, "OPTIONS"):
        yield exchanged.finding("405")


@check(
    "methods-405",
    Level.ADVICE,
    UNSPECIFIED,
    requirement="Every method but GET and HEAD is answered 405, with an Allow header that names GET.",
    fix="Answer 405 with the header Allow: GET, HEAD.",
    uses_other_methods=True,
)
async def methods_405(node: NodeUnderTest) -> Findings:
    good = [exchanged for _, exchanged in await _method_exchanges(node, *OTHER_METHODS) if _is_refusal(exchanged)]
    if not good:
        raise Skip("no other method is refused at all")
    alike: dict[tuple[str, str], list[Exchange]] = {}
    for exchanged in good:
        if fault := _refusal_problem(exchanged):
            alike.setdefault(fault, []).append(exchanged)
    for (expected, came), (first, *others) in alike.items():
        also = f"; the same for {join_words([str(other.request) for other in others], 3)}" if others else ""
        yield first.finding(expected, f"{came}{also}")


def _refusal_problem(exchanged: Exchange) -> tuple[str, str] | None:
    """What was expected, and what came."""
    allowed = exchanged.response.tokens("allow")
    if exchanged.response.code != 405:
        return "405", format_response(exchanged.response)
    return None if "get" in allowed else ("Allow: GET, HEAD", f"405 with {'another' if allowed else 'no'} Allow")


async def _not_refused(node: NodeUnderTest, *methods: str) -> list[Exchange]:
    """Those with a code that says yes, or with a code that GET may have: 503 is a health, and no refusal."""
    return [
        exchanged
        for place, exchanged in await _method_exchanges(node, *methods)
        if is_success_code(exchanged.response.code) or exchanged.response.code in place.expected_codes
    ]


async def _method_exchanges(node: NodeUnderTest, *methods: str) -> list[tuple[Endpoint, Exchange]]:
    pairs = [(place, method) for place in await node.require_endpoints() for method in methods]
    asked = await node.send_all(node.request(place.path, method=method) for place, method in pairs)
    return [(place, exchanged) for (place, _), exchanged in zip(pairs, asked, strict=True)]
