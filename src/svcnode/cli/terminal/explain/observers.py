"""A service of a node on several machines: which replicas check it, what each of them observes, and how they decide."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Status
from svcnode.core.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from svcnode.cli.terminal.explain.details import ObservedStatus, ParsedDetails

_LOST = (ReasonCode.REGISTRY_LOST, ReasonCode.STALE)


def observation_texts(details: ParsedDetails) -> Iterator[str]:
    """Who checks the service, and what each of them observes; nothing about a node on one machine."""
    if details.checked_by is None or details.is_fixed:
        return
    yield _observers_text(details, details.checked_by)
    if details.is_probed and not details.is_decided_by_replicas:
        return  # only this replica checks it: its checks are shown
    for observation in details.observed:
        yield _observation_text(observation, details)


def _observers_text(details: ParsedDetails, names: Sequence[str]) -> str:
    listed = listed_names(names)
    is_reported = details.kind == "reported"
    match len(names):
        case 0:
            return "Its reports come through the registry." if is_reported else "No live replica can check it."
        case 1:
            return f"Replica {listed} receives its reports." if is_reported else f"Replica {listed} checks it."
        case _:
            return f"Replicas {listed} receive its reports." if is_reported else f"Replicas {listed} check it."


def _is_current(observation: ObservedStatus, details: ParsedDetails) -> bool:
    return details.kind == "reported" or observation.observer in (details.checked_by or ())


def _observation_text(observation: ObservedStatus, details: ParsedDetails) -> str:
    age_s = observation.age_s
    when = "at an unknown time, which does not count" if age_s is None else f"{format_duration(age_s)} ago"
    code = "" if observation.code in (ReasonCode.OK, ReasonCode.REPORTED) else f" ({observation.code})"
    reason = f": {observation.reason.rstrip('.')}" if observation.reason else ""
    verb = "reported" if details.kind == "reported" else "observed"
    note = "" if _is_current(observation, details) else " It does not check it any more."
    return f"{observation.observer} {verb} {observation.status.value} {when}{reason}{code}.{note}"


def listed_names(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


# ---- the rule, and what changes the status


def decision_texts(details: ParsedDetails) -> Iterator[str]:
    """The rule by which the status follows from what the replicas observe."""
    needed, count = _majority(details), len(details.checked_by or ())
    if details.code in _LOST:
        yield (
            f"What a replica observed is valid for {details.stale_after_s or 0:g} s, and nothing newer arrived through "
            "the registry. Without valid evidence, a service that was Up is Initializing, and one that was Down stays "
            "Down."
        )
    elif details.code == ReasonCode.OBSERVERS_DISAGREE:
        votes = Counter(each.status.value for each in details.observed if _is_current(each, details))
        results = ", ".join(f"{number} of {count} observed {status}" for status, number in votes.items())
        outcome = "it stays Down" if details.status is Status.DOWN else "it is Initializing"
        yield f"At least {needed} of {count} must observe the same status, and {results}. So {outcome}."
    elif details.code == ReasonCode.UNCONFIRMED:
        yield (
            "The registry is unreachable, so this replica cannot know what the other observers see. It judges by its "
            "own checks, and the health of the node is 206 at best."
        )
    elif count > 1 and details.kind != "reported":
        yield f"The status that at least {needed} of {count} observe is the status of the service."


def decision_outlook_texts(details: ParsedDetails) -> Iterator[str]:
    needed, count = _majority(details), len(details.checked_by or ())
    if details.code in _LOST and count:
        yield "Newer evidence of the replicas."
    elif details.kind == "reported":
        yield "A report of another status."
    elif not count:
        yield "A live replica that can check it."
    elif count > 1:
        yield f"The same other status, observed by at least {needed} of {count} replicas."
    else:
        yield "Another status that the replica observes."
    if details.expires_in_s is not None and details.status is Status.UP:
        yield f"Without newer evidence, the status changes to Initializing in {format_duration(details.expires_in_s)}."


def _majority(details: ParsedDetails) -> int:
    return len(details.checked_by or ()) // 2 + 1
