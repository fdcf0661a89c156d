"""What to mend: nothing, where nothing is amiss; and how to see for oneself."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from svcnode.core.model import Outcome, Status
from svcnode.core.redaction import MASK
from svcnode.terminal.explain.attempts import short_reason
from svcnode.terminal.explain.durations import format_duration, format_seconds
from svcnode.terminal.explain.remedies import CHECK_REMEDIES, REMEDIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.terminal.explain.details import ParsedDetails

_DEFAULT_TIMEOUT_S = 3.0  # of `svcnode probe`
_MORE_ARGS = " …"
# Kinds whose reasons are the words of somebody's program: any word may stand there, and means nothing to us.
_CUSTOM_CHECK_HINTS = {
    "exec": "The program of the probe says so: run it by hand on the node's machine to see more.",
    "function": "The function that looks at it says so: see what it does, and the log of its program.",
}


def hint_texts(facts: ParsedDetails) -> Iterator[str]:
    if facts.is_fixed or (facts.status is Status.UP and not _has_failure(facts)):
        return
    if not facts.is_probed:
        yield _report_hint(facts)
        return
    if facts.last_outcome is Outcome.READY:
        yield _stale_hint(facts) if facts.is_stale else "Nothing, as it seems: it answers again."
        return
    yield from _check_hints(facts)
    if facts.probe is not None:
        yield f"To look by hand, on the node's machine: {_probe_command(facts.probe, facts.timeout_s)}"


def _has_failure(facts: ParsedDetails) -> bool:
    return facts.last_outcome not in (None, Outcome.READY)


def _stale_hint(facts: ParsedDetails) -> str:
    return (
        f"A look is due every {format_seconds(facts.interval_s or 0)}, and none has come to an end for longer than that: is "
        "the node's machine overloaded, or was it asleep? The log of the node may say more."
    )


def _report_hint(facts: ParsedDetails) -> str:
    if facts.is_expired or facts.has_no_evidence:
        return (
            f'Does the program run that reports for it, under the id "{facts.id}"? Only the program that the node is a '
            "part of can do so: svcnode serve cannot hear a beat, so there it needs a probe that looks."
        )
    return "The program that reports for it says so: its own log may say more."


def _check_hints(facts: ParsedDetails) -> Iterator[str]:
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
        yield f"Its own log may say more, from {format_duration(facts.since_s)} ago on."


def hint_for(reason: str, outcome: Outcome, facts: ParsedDetails) -> str | None:
    in_own_words = _CUSTOM_CHECK_HINTS.get(facts.kind)
    said = _without_path(short_reason(reason, facts.probe), facts.probe)
    for remedy in CHECK_REMEDIES if in_own_words else REMEDIES:
        if remedy.only_for in (None, outcome) and re.search(remedy.pattern, said, re.IGNORECASE):
            address = _host_port(said, facts.probe)
            host = re.sub(r"(:\d+|, at the usual port .*)$", "", address)
            return remedy.text.format(address=address, host=host, timeout=format_seconds(facts.timeout_s or 0))
    return in_own_words


def _without_path(reason: str, probe: str | None) -> str:
    """What a file is called is no part of what is wrong with it."""
    path = (probe or "").partition(":")[2]
    return reason.removesuffix(f": {path}") if path.startswith("/") else reason


def _host_port(reason: str, probe: str | None) -> str:
    """host:port, as far as it is known: where a reason names one, it comes last."""
    told = re.search(r": (\S+:\d+)$", reason)
    if told and "//" not in told[1]:
        return told[1]
    if probe is None:
        return "that address"
    try:
        parts = urlsplit(probe)
    except ValueError:
        return probe
    address = parts.netloc.rpartition("@")[2]
    if not address:
        return probe
    has_port = re.search(r":\d+$", address)
    return address if has_port else f"{address}, at the usual port of {parts.scheme}"


def _probe_command(probe: str, timeout_s: float | None) -> str:
    words = ["svcnode", "probe", shlex.quote(probe)]
    if probe.startswith("exec:"):
        words.append("--allow-exec")
        if probe.endswith(_MORE_ARGS):  # of argv, and a node shows none of them
            program = json.dumps(probe.removeprefix("exec:").removesuffix(_MORE_ARGS), ensure_ascii=False)
            words[2:] = ["exec:", "--allow-exec", "--option", shlex.quote(f"argv=[{program}, …]")]
    if timeout_s is not None and timeout_s != _DEFAULT_TIMEOUT_S:
        words.append(f"--timeout {format_seconds(timeout_s).replace(' ', '')}")
    hidden = f"what {MASK} stands for, and " if MASK in probe else ""
    return f"{' '.join(words)} (add {hidden}the probe's options, if any, as --option KEY=VALUE)"
