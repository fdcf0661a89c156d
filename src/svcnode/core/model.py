"""The domain model: immutable values.

A name that ends in `_s` holds seconds; a name that ends in `_at_s` holds a time of the monotonic clock. A value that
validates itself is a dataclass; the others are named tuples, which are several times as fast to load and to create.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Literal, NamedTuple, Protocol

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.text import has_control_chars
from svcnode.core.units import utc_text
from svcnode.core.url import validate_link

SPEC_VERSION = "v0.0.1"  # the version of the interface that this software implements
DEFAULT_PREFIX = "/svc"  # of the paths of the interface
MAX_ID_CHARS = 256
# Of a service that is registered; every response of the node has these texts.
MAX_TEXT_CHARS = {"name": 256, "group": 256, "description": 1000}
MAX_TAGS = 10  # of a service
MAX_TAG_CHARS = 64
TAG_PATTERN = re.compile(rf"[^\s,]{{1,{MAX_TAG_CHARS}}}")
# Clients and proxies normalise paths, also percent-encoded ones: /node/services/../health would become /node/health.
DOT_SEGMENTS = (".", "..")
MAX_THRESHOLD = 1000  # at the default transition interval of 2 s, more than half an hour
MAX_INTERVAL_S = 86_400.0  # evidence is valid for three intervals; days later it says little about the service
MAX_STALE_AFTER_S = 7 * 86_400.0  # more than the default for the longest interval
# ASCII digits only, as in the patterns of clients.
MIN_TOKEN_CHARS = 16
TOKEN_PATTERN = re.compile(rf"[A-Za-z0-9._~+/=-]{{{MIN_TOKEN_CHARS},}}")
VERSION_PATTERN = re.compile(r"v[0-9]+(\.[0-9]+)*")
_TOLERANCE_PATTERN = re.compile("([0-9]{1,4})/([0-9]{1,4})")
_SLO_PATTERN = re.compile(r"([0-9]{1,2}(?:\.[0-9]{1,4})?)%", re.ASCII)
_TOLERANCE_HINT = 'replaced by tolerance; write tolerance = "4/10" for at most 4 failures among the last 10 checks'
# Keys of a service that were replaced, and by what.
RETIRED_KEYS = dict.fromkeys(("window", "max_failures", "recovery_failures"), _TOLERANCE_HINT)


class Status(Enum):
    """The published status of a service."""

    UP = "Up"
    INITIALIZING = "Initializing"
    DOWN = "Down"


class Health(IntEnum):
    """The health of the node or of a service; the value is the HTTP status code."""

    HEALTHY = 200
    PARTIAL = 206
    UNHEALTHY = 503

    @property
    def label(self) -> str:
        """One word: "healthy", "partial" or "unhealthy"."""
        return self.name.lower()

    @property
    def text(self) -> str:
        """As in a sentence: "healthy", "partially healthy" or "unhealthy"."""
        return "partially healthy" if self is Health.PARTIAL else self.label


class Impact(Enum):
    """How a service affects the health of the node."""

    CRITICAL = "critical"
    PARTIAL = "partial"
    NONE = "none"


# As options are written.
ImpactName = Literal["critical", "partial", "none"]
LoweredImpactName = Literal["partial", "none"]

_SEVERITY = {Impact.NONE: 0, Impact.PARTIAL: 1, Impact.CRITICAL: 2}


class Outcome(Enum):
    READY = "ready"
    NOT_READY = "not_ready"
    FAILED = "failed"
    UNKNOWN = "unknown"

    __hash__ = object.__hash__  # members are compared by identity; the hash of Enum is a Python function


class Verdict(NamedTuple):
    """The result of a check: an outcome, a reason for people and a code for programs."""

    outcome: Outcome
    reason: str = ""
    code: str = ReasonCode.OTHER  # a member of ReasonCode, or a code of another package with the prefix "x_"

    @classmethod
    def ready(cls, reason: str = "", *, code: str = ReasonCode.OK) -> Verdict:
        return cls(Outcome.READY, reason, code)

    @classmethod
    def not_ready(cls, reason: str, *, code: str = ReasonCode.OTHER) -> Verdict:
        """The service responds and reports that it is starting, loading, syncing or lagging."""
        return cls(Outcome.NOT_READY, reason, code)

    @classmethod
    def failed(cls, reason: str, *, code: str = ReasonCode.OTHER) -> Verdict:
        return cls(Outcome.FAILED, reason, code)

    @classmethod
    def unknown(cls, reason: str, *, code: str = ReasonCode.OTHER) -> Verdict:
        """The check failed for a reason on this machine and says nothing about the service."""
        return cls(Outcome.UNKNOWN, reason, code)


class Evidence(NamedTuple):
    """A verdict with the time at which the check began, and its duration."""

    verdict: Verdict
    at_s: float
    duration_s: float = 0.0


class Tolerance(NamedTuple):
    """How many of the last checks may fail, in a row or not: "4/10", or "off"."""

    max_failures: int = 4
    window: int = 10  # 0: off

    @classmethod
    def parse(cls, value: object) -> Tolerance:
        if value == "off":
            return cls(0, 0)
        match = _TOLERANCE_PATTERN.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise InvalidValueError(
                f'must be a text such as "4/10" (at most 4 failures among the last 10 checks), or "off", not {value!r}'
            )
        tolerance = cls(int(match[1]), int(match[2]))
        if not tolerance.max_failures < tolerance.window <= MAX_THRESHOLD:
            raise InvalidValueError(
                f'"{value}": the first number must be below the second, which is at most {MAX_THRESHOLD}'
            )
        return tolerance

    @property
    def recovery_failures(self) -> int:
        """An unreliable service is Up again with at most this many: a quarter, rounded down."""
        return self.max_failures // 4

    def __str__(self) -> str:
        return f"{self.max_failures}/{self.window}" if self.window else "off"


def parse_slo(value: object) -> float | None:
    """The share of the time in which a service is to be Up, in percent: from "99.9%". None from "off"."""
    if value == "off":
        return None
    match = _SLO_PATTERN.fullmatch(value) if isinstance(value, str) else None
    if match is None or not 0 < float(match[1]) < 100:
        raise InvalidValueError(
            f'must be a percentage above 0 and below 100, with at most 4 decimals, such as "99.9%", or "off", '
            f"not {value!r}"
        )
    return float(match[1])


def slo_text(slo_percent: float | None) -> str | None:
    return None if slo_percent is None else f"{slo_percent:g}%"


def validate_threshold(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_THRESHOLD:
        raise InvalidValueError(f"{name} must be a whole number from 1 to {MAX_THRESHOLD}, not {value!r}")


class RunTimes(Protocol):
    """When a job runs, in seconds of the wall clock. Equal schedules are equal, and hashable."""

    @property
    def longest_gap_s(self) -> float: ...
    def next_s(self, after_s: float, /) -> float: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When evidence changes the status, and how long evidence is valid."""

    rise: int = 2
    fall: int = 3
    start_period_s: float = 30.0
    # A service is unreliable with more than `max_failures` failures among its last `window` checks, until there are at
    # most `recovery_failures`. Repeated failures count for `window_s`, however many checks follow. 0 turns this off.
    # An outage that ended in Down counts as `outage_failures` of them.
    # The three numbers are those of a `Tolerance`.
    window: int = 10
    max_failures: int = 4
    recovery_failures: int = 1
    window_s: float = 0.0
    # At most one of the two is set. Evidence older than `stale_after_s` makes the service Initializing; no heartbeat
    # within `ttl_s` makes it Down. If neither is set, a report is valid until the next one.
    stale_after_s: float | None = None
    ttl_s: float | None = None
    stale_code: str = ReasonCode.STALE  # of a service whose evidence is older than `stale_after_s`
    # Of a job, whose `ttl_s` is its period and this: only a success counts, and a run must end within `grace_s`.
    grace_s: float | None = None
    # Of a job that runs by a schedule: its ttl depends on the last success (`state_machine.with_deadline`).
    run_times: RunTimes | None = None
    next_run_s: float | None = None  # then, the first run after that success

    def __post_init__(self) -> None:
        validate_threshold("rise", self.rise)
        validate_threshold("fall", self.fall)
        if self.stale_after_s is not None and self.ttl_s is not None:
            raise InvalidValueError("stale_after and ttl exclude each other; set one of them")
        for name, limit_s in (("stale_after", self.stale_after_s), ("ttl", self.ttl_s)):
            if limit_s is not None and not limit_s > 0:
                raise InvalidValueError(f"{name} must be more than 0 seconds, not {limit_s!r}")
        if self.stale_after_s is not None and self.stale_after_s > MAX_STALE_AFTER_S:
            raise InvalidValueError(f"stale_after ({self.stale_after_s / 86_400:g} days) must be at most 7 days")

    @property
    def outage_failures(self) -> int:
        """Half of `max_failures`, rounded up: two or three outages within `window_s` are more than allowed."""
        return (self.max_failures + 1) // 2


# A report of the program takes effect at once, without counting.
REPORTED_POLICY = Policy(rise=1, fall=1, start_period_s=0.0, window=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When a service is checked."""

    interval_s: float = 10.0
    timeout_s: float = 3.0
    transition_interval_s: float | None = None  # while a status change is pending; None: a fifth of the interval

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s < self.interval_s:
            raise InvalidValueError(
                f"the timeout ({self.timeout_s:g} s) must be more than 0 and below the interval ({self.interval_s:g} s)"
            )
        if self.interval_s > MAX_INTERVAL_S:
            raise InvalidValueError(
                f"the interval ({self.interval_s:g} s) must be at most {MAX_INTERVAL_S:g} s (1 day)"
            )
        if self.transition_interval_s is not None and not 0 < self.transition_interval_s <= self.interval_s:
            raise InvalidValueError(
                f"the transition_interval ({self.transition_interval_s:g} s) must be more than 0 and at most "
                f"the interval ({self.interval_s:g} s)"
            )

    def wait_s(self, *, is_change_pending: bool) -> float:
        """From the start of a check to the start of the next one."""
        if not is_change_pending:
            return self.interval_s
        return self.interval_s / 5 if self.transition_interval_s is None else self.transition_interval_s

    @property
    def default_stale_after_s(self) -> float:
        """Three missed checks and the timeout of the last one."""
        return 3 * self.interval_s + self.timeout_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    id: str
    name: str
    description: str
    impact: Impact = Impact.PARTIAL
    maintenance_impact: Impact | None = None  # during maintenance, if it is lower; None: as always
    is_impact_lowered: bool = False  # by maintenance
    policy: Policy = REPORTED_POLICY
    group: str = ""  # on the page, under this heading; "": in no group
    tags: tuple[str, ...] = ()  # by which it is found and filtered; a service has one group and any tags
    runbook: str = ""  # a link to what to do when it is not Up; "": none
    slo_percent: float | None = None  # of the time in which it is to be Up; None: there is no objective
    depends_on: tuple[str, ...] = ()  # ids and groups; if one of them is not Up, it is the cause (notify/causes.py)

    def __post_init__(self) -> None:
        validate_service_id(self.id)
        validate_single_line(f"name of service {self.id!r}", self.name)
        validate_multiline(f"description of service {self.id!r}", self.description)
        validate_single_line(f"group of service {self.id!r}", self.group)
        for tag in self.tags:
            validate_tag(tag)
        if len(self.tags) > MAX_TAGS:
            raise InvalidValueError(f"service {self.id!r} must have at most {MAX_TAGS} tags, not {len(self.tags)}")
        if self.runbook:
            validate_link(f"runbook of service {self.id!r}", self.runbook)
        for name in self.depends_on:
            validate_text(f"depends_on of service {self.id!r}", name)
        if self.id in self.depends_on:
            raise InvalidValueError(f"service {self.id!r} must not depend on itself")

    def during_maintenance(self) -> Service:
        """The service with the impact that it has during maintenance, which is never a higher one."""
        impact = self.impact if self.maintenance_impact is None else self.maintenance_impact
        is_lower = _SEVERITY[impact] < _SEVERITY[self.impact]
        return replace(self, impact=impact, is_impact_lowered=True) if is_lower else self

    @property
    def affects_health(self) -> bool:
        """Also with an impact that maintenance lowers to none: a node whose service is not Up is not healthy."""
        return self.impact is not Impact.NONE or self.is_impact_lowered


class Maintenance(NamedTuple):
    """Planned work on a service or on the node. Checks go on and their results count; alerts are held."""

    source: str  # "control", "planned" or "schedule"
    ends_at_s: float
    by: str = ""
    reason: str = ""

    def text(self, until: str) -> str:
        """`until` is the end as text."""
        by, reason = f", by {self.by}" if self.by else "", f": {self.reason}" if self.reason else ""
        return f"until {until}{by}{reason}"


class Acknowledgement(NamedTuple):
    """Somebody takes care of a problem of a service or of the node: there are no reminders, and it is not escalated.

    It changes neither a status nor the health. Its times are those of the wall clock.
    """

    health: Health  # that it was made in; it covers that and better, and ends when it gets worse or healthy
    made_s: float
    until_s: float | None = None  # None: until the problem has cleared
    by: str = ""
    reason: str = ""

    def covers(self, health: Health) -> bool:
        return Health.HEALTHY < health <= self.health

    @property
    def text(self) -> str:
        by, reason = f"by {self.by} " if self.by else "", f": {self.reason}" if self.reason else ""
        until = "" if self.until_s is None else f" until {utc_text(self.until_s)}"
        return f"{by}at {utc_text(self.made_s)}{until}{reason}"


class RecentFailures(NamedTuple):
    """The failures that make a service unreliable. An outage that ended in Down is one of `failures`, and
    `outage_failures` of the repeated ones, however long it was."""

    failures: int = 0  # a bit for each of the last `window` checks, the newest is bit 0; 1 is a failure
    # The start of each check that failed together with the one before or after it, within `window_s`. At most one more
    # than `max_failures`: that is enough to compare.
    repeated_at_s: tuple[float, ...] = ()
    is_unreliable: bool = False

    @property
    def failure_count(self) -> int:
        return self.failures.bit_count()


NO_FAILURES = RecentFailures()


class KnownBefore(NamedTuple):
    """What was known of a service when the previous process ended."""

    status: Status
    since_s: float
    reason: str
    code: str


class ServiceState(NamedTuple):
    """The state of a service: its status, the reason, and since when.

    The status has a time at which it was decided, after the check; evidence has the time at which the check began,
    because the response may be from any time since then.
    """

    status: Status
    reason: str
    code: str  # the reason code
    since_s: float  # when the status was decided
    registered_at_s: float
    ready_in_a_row: int = 0
    failures_in_a_row: int = 0
    last_ready_at_s: float | None = None  # the newest success
    last_evidence_at_s: float | None = None  # the newest evidence with an outcome other than `unknown`
    first_failure_at_s: float | None = None  # when the first of the failures in a row, or of this Down, was known
    recent_failures: RecentFailures = NO_FAILURES
    failures_before_run: RecentFailures = NO_FAILURES  # `recent_failures` before the failures in a row began
    job_started_at_s: float | None = None  # the first start of a job since the last evidence
    host_fault: str = ""  # why this machine could not run the last check; "" if it could
    known_before: KnownBefore | None = None  # the restart, as long as no evidence since then has decided the status


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The name and versions of the node. The order of the fields is that of the interface."""

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
    NODE = "node"  # an issue, a drain, a new identity or another order of the list; no single service
    MAINTENANCE = "maintenance"  # of a service or of the node: it begins, or has a new end
    MAINTENANCE_ENDED = "maintenance_ended"
    MAINTENANCE_PLANNED = "maintenance_planned"
    MAINTENANCE_CANCELLED = "maintenance_cancelled"  # before it has begun
    ACKNOWLEDGED = "acknowledged"  # a problem of a service or of the node
    ACKNOWLEDGEMENT_ENDED = "acknowledgement_ended"
    # What happened around the services, and changes nothing:
    NOTE = "note"  # somebody has written it down, such as a deployment
    RELOADED = "reloaded"
    RELOAD_FAILED = "reload_failed"
    MESSAGE_SENT = "message_sent"  # to a notification target
    MESSAGE_FAILED = "message_failed"  # the first of the failed attempts in a row


STATUS_CHANGES = (ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED, ChangeKind.STATUS)
MAINTENANCE_CHANGES = (ChangeKind.MAINTENANCE, ChangeKind.MAINTENANCE_ENDED)
PLAN_CHANGES = (ChangeKind.MAINTENANCE_PLANNED, ChangeKind.MAINTENANCE_CANCELLED)
ANNOUNCEMENTS = (
    ChangeKind.NOTE,
    ChangeKind.RELOADED,
    ChangeKind.RELOAD_FAILED,
    ChangeKind.MESSAGE_SENT,
    ChangeKind.MESSAGE_FAILED,
)
ACKNOWLEDGEMENT_CHANGES = (ChangeKind.ACKNOWLEDGED, ChangeKind.ACKNOWLEDGEMENT_ENDED)


class Change(NamedTuple):
    """One change. `before` is None if the service was registered, `after` is None if it was removed."""

    kind: ChangeKind
    at_s: float
    health_before: Health
    health: Health
    service_id: str | None = None
    before: ServiceState | None = None
    after: ServiceState | None = None
    maintenance: Maintenance | None = None  # that begins
    # What has changed at the node itself, such as a drain and its reason; what is planned; why an acknowledgement
    # ended; the text of an announcement
    reason: str = ""
    by: str = ""  # who has requested it; empty: no person or program has
    acknowledgement: Acknowledgement | None = None  # that is made


class Tally(NamedTuple):
    """The counts from which the health of the node follows."""

    counted: int = 0
    up: int = 0
    down: int = 0
    critical_down: int = 0
    uncounted_not_up: int = 0  # of the services that are not counted because of maintenance only
    registered: int = 0
    relevant: int = 0  # those that affect the health: counted, or not counted because of maintenance only


class Condition(NamedTuple):
    """The condition of the whole node, whatever its services say."""

    starting: bool = False
    draining: bool = False
    drain_reason: str = ""
    issues: tuple[str, ...] = ()  # the node is 503
    caveats: tuple[str, ...] = ()  # what the node does not know: it is 206 at best


def validate_service_id(service_id: str) -> None:
    require_str("service id", service_id)
    if not service_id:
        raise InvalidValueError("a service id must not be empty")
    if len(service_id) > MAX_ID_CHARS:
        raise InvalidValueError(f"a service id has at most {MAX_ID_CHARS} characters, not {len(service_id)}")
    validate_text(f"service id {service_id!r}", service_id)
    if service_id in DOT_SEGMENTS:
        raise InvalidValueError(
            f'a service id must not be "{service_id}": clients and proxies remove this segment from the path'
        )


def require_str(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidValueError(f"{name}: must be a string, not {type(value).__name__}")


def validate_text(name: str, text: str) -> None:
    if not text:
        raise InvalidValueError(f"{name} must not be empty")
    validate_single_line(name, text)


def validate_tag(tag: str) -> None:
    """Without spaces and commas: they separate the tags of a service, and the words of a search."""
    if not TAG_PATTERN.fullmatch(tag):
        raise InvalidValueError(f'a tag must be 1 to {MAX_TAG_CHARS} characters without spaces and commas, not "{tag}"')
    validate_single_line("a tag", tag)


def validate_single_line(name: str, text: str) -> None:
    """Raise on characters that break a line of a terminal or a log."""
    if has_control_chars(text):
        raise InvalidValueError(f"{name} must not contain control characters")


def validate_multiline(name: str, text: str) -> None:
    if has_control_chars(text.replace("\n", "").replace("\t", "")):
        raise InvalidValueError(f"{name} must not contain control characters other than line breaks and tabs")


def validate_token(token: str) -> None:
    """An operator token: long enough that it cannot be guessed, and the same text in every header."""
    if not TOKEN_PATTERN.fullmatch(token):
        raise InvalidValueError(f"must be at least {MIN_TOKEN_CHARS} characters, only letters, digits and -._~+/=")


def validate_version(name: str, version: str) -> None:
    if not VERSION_PATTERN.fullmatch(version):
        hint = f'; did you mean "v{version}"?' if VERSION_PATTERN.fullmatch(f"v{version}") else ""
        raise InvalidValueError(
            f'{name} must be a "v" followed by dotted numbers such as "v1.4.2", not "{version}"{hint}'
        )
