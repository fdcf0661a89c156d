"""What to mend: nothing, where nothing is amiss; and how to see for oneself."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from svcnode.core.model import Outcome, Status
from svcnode.core.redaction import HIDDEN
from svcnode.terminal.explain.remedies import REMEDIES
from svcnode.terminal.explain.runs import shown_reason
from svcnode.terminal.explain.spoken import for_s, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.terminal.explain.facts import Facts

_DEFAULT_TIMEOUT_S = 3.0  # of `svcnode probe`


def hints_told(facts: Facts) -> Iterator[str]:
    if facts.is_fixed or (facts.status is Status.UP and not _has_trouble(facts)):
        return
    if not facts.is_looked_at:
        yield _of_reports(facts)
        return
    if facts.last_outcome is Outcome.READY:
        yield _of_silence(facts) if facts.is_stale else "Nothing, as it seems: it answers again."
        return
    yield from _of_looks(facts)
    if facts.probe is not None:
        yield f"To look by hand, on the node's machine: {_by_hand(facts.probe, facts.timeout_s)}"


def _has_trouble(facts: Facts) -> bool:
    return facts.last_outcome not in (None, Outcome.READY)


def _of_silence(facts: Facts) -> str:
    return (
        f"A look is due every {seconds(facts.interval_s or 0)}, and none has come to an end for longer than that: is "
        "the node's machine overloaded, or was it asleep? The log of the node may say more."
    )


def _of_reports(facts: Facts) -> str:
    if facts.is_silent or facts.has_no_evidence:
        return f'Does the program run that reports for it, under the id "{facts.id}"?'
    return "The program that reports for it says so: its own log may say more."


def _of_looks(facts: Facts) -> Iterator[str]:
    if not facts.attempts:
        yield "Nothing yet: wait for the first look."
        return
    reasons = [facts.attempts[0].reason]
    if facts.last_outcome is Outcome.UNKNOWN and facts.status is Status.DOWN:
        reasons.append(facts.reason)  # what keeps us from looking, and what was seen before that
    if hints := dict.fromkeys(filter(None, (hint_for(reason, facts) for reason in reasons))):
        yield from hints
    else:
        yield f"Its own log may say more, from {for_s(facts.since_s)} ago on."


def hint_for(reason: str, facts: Facts) -> str | None:
    reason = shown_reason(reason, facts.probe)
    for remedy in REMEDIES:
        if re.search(remedy.pattern, reason, re.IGNORECASE):
            place = _place(reason, facts.probe)
            host = re.sub(r"(:\d+|, at the usual port .*)$", "", place)
            return remedy.words.format(place=place, host=host, timeout=seconds(facts.timeout_s or 0))
    return None


def _place(reason: str, probe: str | None) -> str:
    """host:port, as far as it is known: where a reason names one, it comes last."""
    told = re.search(r": (\S+:\d+)$", reason)
    if told and "//" not in told[1]:
        return told[1]
    if probe is None:
        return "that place"
    try:
        parts = urlsplit(probe)
    except ValueError:
        return probe
    place = parts.netloc.rpartition("@")[2]
    if not place:
        return probe
    has_port = re.search(r":\d+$", place)
    return place if has_port else f"{place}, at the usual port of {parts.scheme}"


def _by_hand(probe: str, timeout_s: float | None) -> str:
    words = ["svcnode", "probe", shlex.quote(probe)]
    if probe.startswith("exec:"):
        words.append("--allow-exec")
    if timeout_s is not None and timeout_s != _DEFAULT_TIMEOUT_S:
        words.append(f"--timeout {seconds(timeout_s).replace(' ', '')}")
    hidden = f"what {HIDDEN} stands for, and " if HIDDEN in probe else ""
    return f"{' '.join(words)} (add {hidden}the probe's options, if any, as --option KEY=VALUE)"
