"""One service: what it is, why, what would change it, and what to mend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.core.model import Impact
from svcnode.core.wording import one_line
from svcnode.terminal.explain.explanation import Explanation, Section
from svcnode.terminal.explain.facts import Facts, facts_from
from svcnode.terminal.explain.hints import hints_told
from svcnode.terminal.explain.runs import attempts_told
from svcnode.terminal.explain.spoken import clock, for_s, seconds
from svcnode.terminal.explain.story import outlook_told, rules_told

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import tzinfo

_IMPACTS = {
    Impact.CRITICAL: "while it is Down, the node is unhealthy (503)",
    Impact.PARTIAL: "while it is not Up, the node is at best partially healthy (206)",
    Impact.NONE: "the health of the node does not depend on it",
}


def service_explained(details: Mapping[str, Any], zone: tzinfo | None = None) -> Explanation:
    """From `/details/{id}`; times are told in this zone, or in that of this machine."""
    facts = facts_from(details)
    sections = [
        Section(title, tuple(map(one_line, sentences)))
        for title, sentences in (
            ("Why", [*attempts_told(facts, zone), *rules_told(facts)]),
            ("What would change it", outlook_told(facts)),
            ("What to mend", hints_told(facts)),
        )
    ]
    since = clock(facts.since, facts.now, zone)
    return Explanation(
        finding=facts.status,
        head=one_line(f"{facts.id} is {facts.status.value}, since {since} ({for_s(facts.since_s)})"),
        about=tuple(map(one_line, _about(facts))),
        sections=tuple(section for section in sections if section.sentences),
    )


def _about(facts: Facts) -> Iterator[str]:
    if named := [text for text in (facts.name, facts.description) if text and text != facts.id]:
        yield ": ".join(named)
    if facts.interval_s is not None and facts.timeout_s is not None:
        how = facts.probe or "a function of the program"
        yield f"probe   {how}, every {seconds(facts.interval_s)}, for at most {seconds(facts.timeout_s)}"
    yield f"impact  {facts.impact.value}: {_IMPACTS[facts.impact]}"
