"""What to mend: nothing, where nothing is amiss; and how to see for oneself."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from svcnode.core.model import Outcome, Status
from svcnode.core.redaction import HIDDEN
from svcnode.terminal.explain.remedies import OF_THE_LOOK, REMEDIES
from svcnode.terminal.explain.runs import shown_reason
from svcnode.terminal.explain.spoken import for_s, seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.terminal.explain.facts import Facts

_DEFAULT_TIMEOUT_S = 3.0  # of `svcnode probe`
_MORE_WORDS = " …"
# Kinds whose reasons are the words of somebody's program: any word may stand there, and means nothing to us.
_IN_OWN_WORDS = {
    "exec": "The program of the probe says so: run it by hand on the node's machine to see more.",
    "function": "The function that looks at it says so: see what it does, and the log of its program.",
}


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
        return (
            f'Does the program run that reports for it, under the id "{facts.id}"? Only the program that the node is a '
            "part of can do so: svcnode serve cannot hear a beat, so there it needs a probe that looks."
        )
    return "The program that reports for it says so: its own log may say more."


def _of_looks(facts: Facts) -> Iterator[str]:
    if not facts.attempts:
        yield "Nothing yet: wait for the first look."
        return
    newest = facts.attempts[0]
    seen = [(newest.reason, newest.outcome)]
    if newest.outcome is Outcome.UNKNOWN and facts.status is Status.DOWN:
        seen.append((facts.reason, Outcome.FAILED))  # what keeps us from looking, and what was seen before that
    if hints := dict.fromkeys(filter(None, (hint_for(*one, facts) for one in seen))):
        yield from hints
    else:
        yield f"Its own log may say more, from {for_s(facts.since_s)} ago on."


def hint_for(reason: str, outcome: Outcome, facts: Facts) -> str | None:
    in_own_words = _IN_OWN_WORDS.get(facts.kind)
    said = _without_path(shown_reason(reason, facts.probe), facts.probe)
    for remedy in OF_THE_LOOK if in_own_words else REMEDIES:
        if remedy.only_for in (None, outcome) and re.search(remedy.pattern, said, re.IGNORECASE):
            place = _place(said, facts.probe)
            host = re.sub(r"(:\d+|, at the usual port .*)$", "", place)
            return remedy.words.format(place=place, host=host, timeout=seconds(facts.timeout_s or 0))
    return in_own_words


def _without_path(reason: str, probe: str | None) -> str:
    """What a file is called is no part of what is wrong with it."""
    path = (probe or "").partition(":")[2]
    return reason.removesuffix(f": {path}") if path.startswith("/") else reason


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
        if probe.endswith(_MORE_WORDS):  # of argv, and a node shows none of them
            program = json.dumps(probe.removeprefix("exec:").removesuffix(_MORE_WORDS), ensure_ascii=False)
            words[2:] = ["exec:", "--allow-exec", "--option", shlex.quote(f"argv=[{program}, …]")]
    if timeout_s is not None and timeout_s != _DEFAULT_TIMEOUT_S:
        words.append(f"--timeout {seconds(timeout_s).replace(' ', '')}")
    hidden = f"what {HIDDEN} stands for, and " if HIDDEN in probe else ""
    return f"{' '.join(words)} (add {hidden}the probe's options, if any, as --option KEY=VALUE)"
