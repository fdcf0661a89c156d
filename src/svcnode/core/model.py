"""The words of the house as values: frozen, keyword-only, replaced rather than changed.

Times named `…_s` are seconds; a time named `…_at_s` is a reading of a clock that never goes back. What is made anew
for every check is a tuple with names: a frozen dataclass takes several times as long to make.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError

SPEC_VERSION = "v0.0.1"  # the version of the interface that this software implements
MAX_ID_CHARS = 256
# Whoever tidies paths, percent-encoded or not, makes /node/health of /node/services/../health: a false answer.
DOT_SEGMENTS = (".", "..")
MAX_THRESHOLD = 1000  # with the default interval, half an hour and more until a change is told
MAX_INTERVAL_S = 86_400.0  # evidence counts for three intervals, and a green light of last month is none
MAX_STALE_AFTER_S = 7 * 86_400.0  # for the same reason; the default for the longest interval is below
# A "v" followed by dotted numbers; ASCII digits only, as a client's own pattern would have it.
VERSION_PATTERN = re.compile(r"v[0-9]+(\.[0-9]+)*")


class Status(Enum):
    """What we publish of a service."""

    UP = "Up"
    INITIALIZING = "Initializing"
    DOWN = "Down"


class Health(IntEnum):
    """What we answer for the node or for a service; the value is the HTTP status code."""

    HEALTHY = 200
    PARTIAL = 206
    UNHEALTHY = 503


class Impact(Enum):
    """How much a service weighs in the health of the node."""

    CRITICAL = "critical"
    PARTIAL = "partial"
    NONE = "none"


class Outcome(Enum):
    READY = "ready"
    NOT_READY = "not_ready"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found: an outcome, a reason for people and a code for programs."""

    outcome: Outcome
    reason: str = ""
    code: str = ReasonCode.OTHER  # a member of ReasonCode, or a code of another package that begins with "x_"

    @classmethod
    def ready(cls, reason: str = "", *, code: str = ReasonCode.OK) -> Verdict:
        return cls(Outcome.READY, reason, code)

    @classmethod
    def not_ready(cls, reason: str, *, code: str = ReasonCode.OTHER) -> Verdict:
        """The service is alive and says that it is starting, loading, syncing or lagging."""
        return cls(Outcome.NOT_READY, reason, code)

    @classmethod
    def failed(cls, reason: str, *, code: str = ReasonCode.OTHER) -> Verdict:
        return cls(Outcome.FAILED, reason, code)

    @classmethod
    def unknown(cls, reason: str, *, code: str = ReasonCode.OTHER) -> Verdict:
        """The fault is on this machine, so nothing was learned about the service."""
        return cls(Outcome.UNKNOWN, reason, code)


class Evidence(NamedTuple):
    """A verdict with the moment it was reached and what it took."""

    verdict: Verdict
    at_s: float
    duration_s: float = 0.0


def validate_threshold(what: str, number: object) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= MAX_THRESHOLD:
        raise InvalidValueError(
            f"{what} counts checks in a row, so it is a whole number from 1 to {MAX_THRESHOLD}, not {number!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When evidence becomes a change of status, and how long evidence counts."""

    rise: int = 2
    fall: int = 3
    start_period_s: float = 30.0
    # At most one of the two. Silence longer than `stale_after_s` is our doubt, longer than `ttl_s` it is the
    # service's failure; with neither, what was said counts until something else is said.
    stale_after_s: float | None = None
    ttl_s: float | None = None

    def __post_init__(self) -> None:
        validate_threshold("rise", self.rise)
        validate_threshold("fall", self.fall)
        if self.stale_after_s is not None and self.ttl_s is not None:
            raise InvalidValueError("a service has a stale_after or a ttl, not both")
        for word, limit_s in (("stale_after", self.stale_after_s), ("ttl", self.ttl_s)):
            if limit_s is not None and not limit_s > 0:
                raise InvalidValueError(f"{word} must be more than 0 seconds, not {limit_s!r}")
        if self.stale_after_s is not None and self.stale_after_s > MAX_STALE_AFTER_S:
            raise InvalidValueError(
                f"stale_after ({self.stale_after_s / 86_400:g} days) is more than 7 days; nothing would be evidence"
            )


# What a program says of its own service holds at once: it knows, so there is nothing to count.
REPORTED_POLICY = Policy(rise=1, fall=1, start_period_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a service is looked at."""

    interval_s: float = 10.0
    timeout_s: float = 3.0
    transition_interval_s: float | None = None  # while a change of status is pending; None: a fifth of the interval

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < self.interval_s:
            raise InvalidValueError(
                f"the timeout ({self.timeout_s:g} s) must be more than 0 and below the interval ({self.interval_s:g} s)"
            )
        if self.interval_s > MAX_INTERVAL_S:
            raise InvalidValueError(
                f"the interval ({self.interval_s:g} s) is more than a day; nothing would be evidence"
            )
        if self.transition_interval_s is not None and not 0 < self.transition_interval_s <= self.interval_s:
            raise InvalidValueError(
                f"the transition_interval ({self.transition_interval_s:g} s) must be more than 0 and no longer than "
                f"the interval ({self.interval_s:g} s)"
            )

    def wait_s(self, *, is_change_pending: bool) -> float:
        """From the beginning of a check to the beginning of the next."""
        if not is_change_pending:
            return self.interval_s
        return self.interval_s / 5 if self.transition_interval_s is None else self.transition_interval_s

    @property
    def default_stale_after_s(self) -> float:
        """Three missed checks and the time the last one may take."""
        return 3 * self.interval_s + self.timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    id: str
    name: str
    description: str
    impact: Impact = Impact.PARTIAL
    policy: Policy = REPORTED_POLICY

    def __post_init__(self) -> None:
        validate_service_id(self.id)
        validate_single_line(f"the name of service {self.id!r}", self.name)
        validate_multiline(f"the description of service {self.id!r}", self.description)


class ServiceState(NamedTuple):
    """What we believe of a service, why, and since when."""

    status: Status
    reason: str
    code: str  # why, as a reason code
    since_s: float
    registered_at_s: float
    ready_in_a_row: int = 0
    failures_in_a_row: int = 0
    last_ready_at_s: float | None = None  # the newest success
    last_evidence_at_s: float | None = None  # the newest evidence that was about the service at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the node is; the fields stand in the order the interface lists them."""

    node_name: str
    spec_version: str
    node_version: str

    def __post_init__(self) -> None:
        validate_text("node name", self.node_name)
        validate_version("node version", self.node_version)
        validate_version("spec version", self.spec_version)


class ChangeKind(Enum):
    REGISTERED = "registered"
    REPLACED = "replaced"
    DEREGISTERED = "deregistered"
    STATUS = "status"
    NODE = "node"  # an issue, a drain, a new identity: nothing about one service


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One transition. `before` is None for a service just registered, `after` for one just removed."""

    kind: ChangeKind
    at_s: float
    service_id: str | None = None
    before: ServiceState | None = None
    after: ServiceState | None = None
    health_before: Health
    health: Health


@dataclass(frozen=True, slots=True)
class Tally:
    """The counted services by what matters for the health of the node."""

    counted: int = 0
    up: int = 0
    down: int = 0
    critical_down: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the program says of the node as a whole."""

    starting: bool = False
    draining: bool = False
    issues: tuple[str, ...] = ()


def validate_service_id(service_id: str) -> None:
    if not service_id:
        raise InvalidValueError("a service id must not be empty")
    if len(service_id) > MAX_ID_CHARS:
        raise InvalidValueError(f"a service id has at most {MAX_ID_CHARS} characters, not {len(service_id)}")
    validate_text(f"service id {service_id!r}", service_id)
    if service_id in DOT_SEGMENTS:
        raise InvalidValueError(
            f'a service id must not be "{service_id}": in a path it names another place, and clients and proxies would '
            "ask for that instead"
        )


def validate_text(what: str, text: str) -> None:
    if not text:
        raise InvalidValueError(f"{what} must not be empty")
    validate_single_line(what, text)


def validate_single_line(what: str, text: str) -> None:
    """Refuse what could not stand in one line of a terminal, a log or a JSON document."""
    if any(map(_is_control, text)):
        raise InvalidValueError(f"{what} must not hold control characters")


def validate_multiline(what: str, text: str) -> None:
    """The same of each of several lines, which may hold tabs."""
    if any(map(_is_control, text.replace("\n", "").replace("\t", ""))):
        raise InvalidValueError(f"{what} must not hold control characters other than line breaks and tabs")


def _is_control(char: str) -> bool:
    """Or half a character: no UTF-8 text can carry it."""
    return char < " " or "\x7f" <= char < "\xa0" or "\ud800" <= char < "\ue000"


def validate_version(what: str, version: str) -> None:
    if not VERSION_PATTERN.fullmatch(version):
        hint = f'; did you mean "v{version}"?' if VERSION_PATTERN.fullmatch(f"v{version}") else ""
        raise InvalidValueError(
            f'{what} must be a "v" followed by dotted numbers such as "v1.4.2", not "{version}"{hint}'
        )
