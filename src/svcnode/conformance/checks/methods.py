"""GET is the method of this interface; HEAD asks the same, and all others ask for something that it does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.conformance.check import ROUNDS, SILENT, Level, NotJudgedError, check, comes_again
from svcnode.conformance.interface import OTHER_METHODS, WRITING_METHODS
from svcnode.conformance.reading import is_as_if_fine, told
from svcnode.conformance.wording import listed, shown

if TYPE_CHECKING:
    from svcnode.conformance.check import Findings
    from svcnode.conformance.interface import Place
    from svcnode.conformance.subject import Exchanged, Subject

# ---- HEAD


@check(
    "head-code",
    Level.SHOULD,
    SILENT,
    demands="HEAD answers with the code of GET, or refuses (4xx or 501).",
    mend="Answer HEAD as GET, without the body; a HEAD with 200 beside a GET with 503 is a false green light.",
)
async def head_code(node: Subject) -> Findings:
    for place in await node.usable_places():
        if (wrong := await _disagreement(node, place)) is not None:
            head, code = wrong
            yield head.finding(f"{code}, as GET answers", str(head.answer.code))


async def _disagreement(node: Subject, place: Place) -> tuple[Exchanged, int] | None:
    """One that comes again, with the code that GET answers before and after. A code that GET has too is none."""
    wrong = []
    codes_of_get = set()
    for _ in range(ROUNDS):
        before = await node.get(place.path)
        head = await node.ask(node.request(place.path, method="HEAD"))
        after = await node.get(place.path)
        if head.answer.code == before.answer.code or _is_refusal(head):
            return None
        codes_of_get |= {before.answer.code, after.answer.code}
        if before.answer.code == after.answer.code:
            wrong.append((head, after.answer.code))
    wrong = [(head, code) for head, code in wrong if head.answer.code not in codes_of_get]
    return wrong[-1] if comes_again(len(wrong)) else None


def _is_refusal(exchanged: Exchanged) -> bool:
    return 400 <= exchanged.answer.code < 500 or exchanged.answer.code == 501


@check(
    "head-no-body",
    Level.SHOULD,
    SILENT,
    demands="No body follows the head of an answer to HEAD.",
    mend="Send the headers of GET alone: a client reads a body there as the beginning of the next answer.",
    needs=("head-code",),
)
async def head_no_body(node: Subject) -> Findings:
    for exchanged in await _heads(node):
        if exchanged.answer.excess:
            yield exchanged.finding("no body", f"{exchanged.answer.code} and {shown(exchanged.answer.excess)}")


@check(
    "head-answered",
    Level.ADVICE,
    SILENT,
    demands="HEAD is answered on every endpoint, and not refused.",
    mend="Answer HEAD as GET, without the body: load balancers and uptime monitors ask with it.",
    needs=("head-code",),
)
async def head_answered(node: Subject) -> Findings:
    for exchanged in await _heads(node):
        if _is_refusal(exchanged):
            yield exchanged.finding("the code that GET answers", str(exchanged.answer.code))


async def _heads(node: Subject) -> list[Exchanged]:
    return await node.ask_all(node.request(place.path, method="HEAD") for place in await node.usable_places())


# ---- all others


@check(
    "methods-refused",
    Level.SHOULD,
    "4",
    demands="POST, PUT, PATCH and DELETE are not answered as GET is, nor as if they had been carried out.",
    mend="Answer 405 for every method but GET and HEAD: the interface is read-only.",
    uses_other_methods=True,
)
async def methods_refused(node: Subject) -> Findings:
    for exchanged in await _not_refused(node, *WRITING_METHODS):
        yield exchanged.finding("405")


@check(
    "options-refused",
    Level.SHOULD,
    SILENT,
    demands="OPTIONS is not answered as if it were fine.",
    mend="Answer 405 to a bare OPTIONS: HAProxy's plain `option httpchk` sends it, and takes 200 or 204 for healthy.",
    uses_other_methods=True,
)
async def options_refused(node: Subject) -> Findings:
    for exchanged in await _not_refused(node, "OPTIONS"):
        yield exchanged.finding("405")


@check(
    "methods-405",
    Level.ADVICE,
    SILENT,
    demands="Every method but GET and HEAD is answered 405, with an Allow header that names GET.",
    mend="Answer 405 with the header Allow: GET, HEAD.",
    uses_other_methods=True,
)
async def methods_405(node: Subject) -> Findings:
    good = [exchanged for _, exchanged in await _asked(node, *OTHER_METHODS) if _is_refusal(exchanged)]
    if not good:
        raise NotJudgedError("no other method is refused at all")
    alike: dict[tuple[str, str], list[Exchanged]] = {}
    for exchanged in good:
        if fault := _fault_of_refusal(exchanged):
            alike.setdefault(fault, []).append(exchanged)
    for (expected, came), (first, *others) in alike.items():
        also = f"; the same for {listed([str(other.request) for other in others], 3)}" if others else ""
        yield first.finding(expected, f"{came}{also}")


def _fault_of_refusal(exchanged: Exchanged) -> tuple[str, str] | None:
    """What was expected, and what came."""
    allowed = exchanged.answer.tokens("allow")
    if exchanged.answer.code != 405:
        return "405", told(exchanged.answer)
    return None if "get" in allowed else ("Allow: GET, HEAD", f"405 with {'another' if allowed else 'no'} Allow")


async def _not_refused(node: Subject, *methods: str) -> list[Exchanged]:
    """Those with a code that says yes, or with a code that GET may have: 503 is a health, and no refusal."""
    return [
        exchanged
        for place, exchanged in await _asked(node, *methods)
        if is_as_if_fine(exchanged.answer.code) or exchanged.answer.code in place.codes
    ]


async def _asked(node: Subject, *methods: str) -> list[tuple[Place, Exchanged]]:
    pairs = [(place, method) for place in await node.usable_places() for method in methods]
    asked = await node.ask_all(node.request(place.path, method=method) for place, method in pairs)
    return [(place, exchanged) for (place, _), exchanged in zip(pairs, asked, strict=True)]
