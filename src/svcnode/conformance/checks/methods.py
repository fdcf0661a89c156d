"""GET and HEAD are supported; all other methods are rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import ROUNDS, Level, check, is_persistent
from svcnode.conformance.interface import OTHER_METHODS, WRITING_METHODS
from svcnode.conformance.node_under_test import Skip
from svcnode.conformance.response import format_response, is_success_code, join_items, safe_text

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.interface import Endpoint
    from svcnode.conformance.node_under_test import Exchange, NodeUnderTest

# ---- HEAD


@check(
    "head-code",
    Level.SHOULD,
    "10.6",
    requirement="HEAD answers with the status code of GET, or is rejected (4xx or 501).",
    fix="Answer HEAD like GET without the body: monitors that use HEAD would read 200 while GET answers 503.",
)
async def head_code(node: NodeUnderTest) -> Findings:
    for endpoint in await node.require_endpoints():
        if (mismatch := await _code_mismatch(node, endpoint)) is not None:
            head, code = mismatch
            yield head.finding(f"{code}, as GET answers", str(head.response.code))


async def _code_mismatch(node: NodeUnderTest, endpoint: Endpoint) -> tuple[Exchange, int] | None:
    """A persistent mismatch with the code of GET before and after; codes that GET also returns do not count."""
    wrong = []
    codes_of_get = set()
    for _ in range(ROUNDS):
        before = await node.get(endpoint.path)
        head = await node.send(node.request(endpoint.path, method="HEAD"))
        after = await node.get(endpoint.path)
        if head.response.code == before.response.code or _is_refusal(head):
            return None
        codes_of_get |= {before.response.code, after.response.code}
        if before.response.code == after.response.code:
            wrong.append((head, after.response.code))
    wrong = [(head, code) for head, code in wrong if head.response.code not in codes_of_get]
    return wrong[-1] if is_persistent(len(wrong)) else None


def _is_refusal(exchange: Exchange) -> bool:
    return 400 <= exchange.response.code < 500 or exchange.response.code == 501


@check(
    "head-no-body",
    Level.SHOULD,
    "10.6",
    requirement="A response to HEAD has no body.",
    fix="Send the headers of GET only: a client reads a body as the start of the next response.",
    needs=("head-code",),
)
async def head_no_body(node: NodeUnderTest) -> Findings:
    for exchange in await _head_exchanges(node):
        if exchange.response.excess:
            yield exchange.finding("no body", f"{exchange.response.code} and {safe_text(exchange.response.excess)}")


@check(
    "head-answered",
    Level.ADVICE,
    "10.6",
    requirement="HEAD is supported on every endpoint.",
    fix="Answer HEAD like GET without the body: load balancers and uptime monitors use it.",
    needs=("head-code",),
)
async def head_answered(node: NodeUnderTest) -> Findings:
    for exchange in await _head_exchanges(node):
        if _is_refusal(exchange):
            yield exchange.finding("the code that GET answers", str(exchange.response.code))


async def _head_exchanges(node: NodeUnderTest) -> list[Exchange]:
    return await node.send_all(
        node.request(endpoint.path, method="HEAD") for endpoint in await node.require_endpoints()
    )


# ---- other methods


@check(
    "methods-refused",
    Level.SHOULD,
    "4.5",
    requirement="POST, PUT, PATCH and DELETE are not answered with success or with a health code.",
    fix="Answer 405 for every method except GET and HEAD: the interface is read-only.",
    uses_other_methods=True,
)
async def methods_refused(node: NodeUnderTest) -> Findings:
    for exchange in await _not_refused(node, *WRITING_METHODS):
        yield exchange.finding("405")


@check(
    "options-refused",
    Level.ADVICE,
    "10.7",
    requirement="OPTIONS is not answered with success.",
    fix="Answer 405 to OPTIONS, which many frameworks answer by themselves: HAProxy's plain `option httpchk` sends it "
    "and reads 200 or 204 as healthy.",
    uses_other_methods=True,
)
async def options_refused(node: NodeUnderTest) -> Findings:
    for exchange in await _not_refused(node, "OPTIONS"):
        yield exchange.finding("405")


@check(
    "methods-405",
    Level.ADVICE,
    "10.7",
    requirement="Every method except GET and HEAD is answered 405 with an Allow header that names GET.",
    fix="Answer 405 with the header Allow: GET, HEAD.",
    uses_other_methods=True,
)
async def methods_405(node: NodeUnderTest) -> Findings:
    refusals = [exchange for _, exchange in await _method_exchanges(node, *OTHER_METHODS) if _is_refusal(exchange)]
    if not refusals:
        raise Skip("no other method is rejected")
    by_problem: dict[tuple[str, str], list[Exchange]] = {}
    for exchange in refusals:
        if problem := _refusal_problem(exchange):
            by_problem.setdefault(problem, []).append(exchange)
    for (expected, actual), (first, *others) in by_problem.items():
        also = f"; the same for {join_items([str(other.request) for other in others], 3)}" if others else ""
        yield first.finding(expected, f"{actual}{also}")


def _refusal_problem(exchange: Exchange) -> tuple[str, str] | None:
    """The expected and the actual value."""
    allowed = exchange.response.tokens("allow")
    if exchange.response.code != 405:
        return "405", format_response(exchange.response)
    return None if "get" in allowed else ("Allow: GET, HEAD", f"405 with {'another' if allowed else 'no'} Allow")


async def _not_refused(node: NodeUnderTest, *methods: str) -> list[Exchange]:
    """Responses with success, or with a code that GET may return: 503 is a health code, not a rejection."""
    return [
        exchange
        for endpoint, exchange in await _method_exchanges(node, *methods)
        if is_success_code(exchange.response.code) or exchange.response.code in endpoint.expected_codes
    ]


async def _method_exchanges(node: NodeUnderTest, *methods: str) -> list[tuple[Endpoint, Exchange]]:
    pairs = [(endpoint, method) for endpoint in await node.require_endpoints() for method in methods]
    exchanges = await node.send_all(node.request(endpoint.path, method=method) for endpoint, method in pairs)
    return [(endpoint, exchange) for (endpoint, _), exchange in zip(pairs, exchanges, strict=True)]
