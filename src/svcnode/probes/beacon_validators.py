"""Validators of a beacon chain: how options name them, and what their statuses and their liveness mean.

A beacon node says for an epoch whether it has seen a validator. By the Beacon API it answers for the current and the
previous epoch, and most clients refuse earlier ones. So what it said of the epoch before that is remembered. It is one
node's view: a node that was not in sync has not seen what happened meanwhile, so epochs that it has missed say nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome
from svcnode.core.option_types import option_type
from svcnode.core.text import type_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_VALIDATORS = 1000  # the node describes each of them in about 500 bytes
MISSED_EPOCHS = 2  # in a row, without being seen
# The last attestations of an epoch are in the blocks of the next one, which may be late.
GRACE_SLOTS = 4
_NEVER = -100  # also long before the first epoch
_MAX_NAMED = 3
_KEY = "0x[0-9a-fA-F]{96}"
_KEY_SHOWN_CHARS = 12


# ---- options


@option_type(
    {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_VALIDATORS,
        "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{_KEY}$"}]},
    },
    show=lambda ids: [int(one) if one.isdigit() else one for one in ids],
)
def validator_ids(value: object) -> tuple[str, ...]:
    """As the Beacon API writes them: both are texts."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= MAX_VALIDATORS:
        raise InvalidValueError(f"must be a list of 1 to {MAX_VALIDATORS} indices or public keys of validators")
    ids = tuple(map(_validator_id, value))
    if twice := next((one for number, one in enumerate(ids) if one in ids[:number]), None):
        raise InvalidValueError(f"has {twice} twice")
    return ids


def _validator_id(value: object) -> str:
    if type(value) is int and 0 <= value < 2**64:
        return str(value)
    if isinstance(value, str) and re.fullmatch(_KEY, value):
        return value.lower()
    shown = f'"{value}"' if isinstance(value, str) else str(value) if type(value) is int else type_name(value)
    text = "an index such as 1234, or a public key, which is 0x and 96 hexadecimal digits"
    raise InvalidValueError(f"each validator is {text}, not {shown}")


ValidatorIds = Annotated[tuple[str, ...], validator_ids]


# ---- what is found


class Finding(NamedTuple):
    """Of one validator."""

    text: str
    outcome: Outcome
    code: ReasonCode


_STARTING = Finding("is not active yet", Outcome.NOT_READY, ReasonCode.STARTING)
_GONE = Finding("has left the chain", Outcome.FAILED, ReasonCode.WRONG_ROLE)
_SLASHED = Finding("is slashed", Outcome.FAILED, ReasonCode.SLASHED)
NOT_FOUND = Finding("is not known to the chain", Outcome.FAILED, ReasonCode.NOT_FOUND)
_MISSED_ONE = Finding("was not seen in the last finished epoch", Outcome.READY, ReasonCode.OK)
_MISSED_SEVERAL = Finding(
    f"was not seen in the last {MISSED_EPOCHS} finished epochs", Outcome.FAILED, ReasonCode.DUTIES_MISSED
)
_NOT_SEEN_YET = Finding(
    f"has not been seen yet, and counts as failed after {MISSED_EPOCHS} finished epochs",
    Outcome.NOT_READY,
    ReasonCode.DUTIES_MISSED,
)
# The statuses of the Beacon API. None: the validator has duties.
_STATUSES = {
    "pending_initialized": _STARTING,
    "pending_queued": _STARTING,
    "active_ongoing": None,
    "active_exiting": Finding("is about to leave the chain", Outcome.READY, ReasonCode.OK),
    "active_slashed": _SLASHED,
    "exited_unslashed": _GONE,
    "exited_slashed": _SLASHED,
    "withdrawal_possible": _GONE,
    "withdrawal_done": _GONE,
}


def status_finding(status: str, *, is_slashed: bool) -> Finding | None:
    if is_slashed:
        return _SLASHED
    unexpected = Finding(f"has the unknown status {status[:40]!r}", Outcome.FAILED, ReasonCode.UNEXPECTED_RESPONSE)
    return _STATUSES.get(status, unexpected)


def worst_finding(findings: Iterable[tuple[str, Finding]]) -> Finding | None:
    """With the validators that it is true of, by the names that the options give them."""
    found = [*findings]
    if not found:
        return None
    worst = min((one for _, one in found), key=_severity)
    names = [_short(name) for name, one in found if one.code is worst.code and one.outcome is worst.outcome]
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return worst._replace(text=f"validator {', '.join(names[:_MAX_NAMED])}{more} {worst.text}")


def _severity(finding: Finding) -> tuple[int, bool]:
    return [Outcome.FAILED, Outcome.NOT_READY, Outcome.READY].index(finding.outcome), finding is not _SLASHED


def _short(name: str) -> str:
    return name if name.isdigit() else f"{name[:_KEY_SHOWN_CHARS]}…"


# ---- liveness


@dataclass(slots=True)
class _Sightings:
    last_seen: int = _NEVER  # epoch
    last_missed: int = _NEVER
    misses: int = 0  # finished epochs since it was last seen


class EpochTime(NamedTuple):
    epoch: int  # that is running
    slot: int  # in it, from 0 on


class LivenessRecord:
    """What a beacon node has said of the liveness of validators, by their index."""

    def __init__(self) -> None:
        self._validators: dict[int, _Sightings] = {}
        self._watched_from = 0  # the first epoch that the node has seen as a whole
        self._is_in_sync = True

    def forget(self) -> None:
        """Another chain has begun."""
        self._validators.clear()
        self._watched_from = 0

    def begin_check(self) -> bool:
        """The check may find that the node is not in sync. Returns whether the last one found it in sync."""
        was_in_sync, self._is_in_sync = self._is_in_sync, False
        return was_in_sync

    def add(
        self, now: EpochTime, finished: Mapping[int, bool], running: Mapping[int, bool], *, was_in_sync: bool
    ) -> int:
        """What a node in sync says of the last finished epoch, and of the running one. Returns the epoch to judge."""
        self._is_in_sync = True
        if not was_in_sync:
            self._watched_from = now.epoch + 1
            for sightings in self._validators.values():
                sightings.misses = 0
        self._add_seen(now.epoch - 1, finished)
        self._add_seen(now.epoch, running)
        if now.slot < GRACE_SLOTS:
            return now.epoch - 2
        self._add_missed(now.epoch - 1, finished)
        return now.epoch - 1

    def _add_seen(self, epoch: int, answers: Mapping[int, bool]) -> None:
        for index, is_live in answers.items():
            sightings = self._validators.setdefault(index, _Sightings())
            if is_live and epoch > sightings.last_seen:
                sightings.last_seen, sightings.misses = epoch, 0

    def _add_missed(self, epoch: int, answers: Mapping[int, bool]) -> None:
        for index, is_live in answers.items():
            sightings = self._validators[index]
            is_new = epoch > max(sightings.last_missed, sightings.last_seen)
            if not is_live and is_new and epoch >= self._watched_from:
                sightings.last_missed = epoch
                sightings.misses += 1

    def finding(self, index: int, epoch: int) -> Finding | None:
        """At the end of this epoch."""
        sightings = self._validators.get(index, _Sightings())
        if sightings.last_seen >= epoch:
            return None
        if sightings.misses >= MISSED_EPOCHS:
            return _MISSED_SEVERAL
        return _MISSED_ONE if sightings.last_seen == epoch - 1 else _NOT_SEEN_YET
