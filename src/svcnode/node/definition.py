"""Service definitions: from the options of a [[services]] table to a service and its probe configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypedDict, Unpack

from svcnode.core.errors import InvalidValueError, UnknownOptionError
from svcnode.core.model import (
    REPORTED_POLICY,
    RETIRED_KEYS,
    Impact,
    ImpactName,
    LoweredImpactName,
    Policy,
    Schedule,
    Service,
    Tolerance,
    parse_slo,
    validate_threshold,
)
from svcnode.core.text import suggestion
from svcnode.core.units import Duration, parse_duration_s
from svcnode.probes import make_probe
from svcnode.probes.base import Probe

MAX_PUSH_BYTES = 10 * 1024  # of the body of a push; the rest is not kept


class ProbeConfig(NamedTuple):
    """How a service is checked. A reload with an equal configuration does not restart the checks."""

    probe: Probe
    schedule: Schedule
    max_latency_s: float | None = None  # a success that takes longer is not_ready


class Definition(NamedTuple):
    service: Service
    probe_config: ProbeConfig | None = None  # None: the program reports the status
    # The keys of its [[services]] table, with [defaults], and its probe as written: variables and files are not read,
    # but a password may be literal. None: the service was not made from a table.
    options: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        """Without the options, which may hold a secret."""
        return f"Definition(service={self.service!r}, probe_config={self.probe_config!r})"


class PushAccess(NamedTuple):
    """Who may push reports of a service."""

    token: str
    by_get: bool = False  # by GET, too

    def __repr__(self) -> str:
        return f"PushAccess(by_get={self.by_get})"


class RegisteredService(NamedTuple):
    """A service as a program registers it while the node runs."""

    definition: Definition
    push: PushAccess | None = None  # None: pushes are not received
    deregister_after_s: float | None = None  # None: it stays, however long it is silent


class ServiceList(Protocol):
    """Registers services in a node: the node itself, or an object that combines several sources of services.

    After `add`, the node has the service. After `deregister`, it may still have it, from another source.
    """

    def __contains__(self, service_id: object, /) -> bool: ...
    def add(self, definition: Definition, /, *, registered_at_s: float | None = None) -> None: ...
    def replace(self, definition: Definition, /) -> None: ...
    def deregister(self, service_id: str, /) -> None: ...


class TimingOptions(TypedDict, total=False):
    """Options of a service that is checked: when, and what the results mean."""

    interval: Duration
    transition_interval: Duration | None
    timeout: Duration | None
    max_latency: Duration | None
    rise: int
    fall: int
    tolerance: str
    start_period: Duration
    stale_after: Duration | None


class CheckOptions(TimingOptions, total=False):
    """Options of a service that a function checks."""

    name: str
    description: str
    group: str
    tags: Sequence[str]
    runbook: str
    slo: str
    depends_on: Sequence[str]
    impact: Impact | ImpactName
    maintenance_impact: Impact | LoweredImpactName | None


class ServiceOptions(CheckOptions, total=False):
    """Options of a service: the keys of a [[services]] table."""

    probe: Probe | str | Mapping[str, Any]
    ttl: Duration


def validate_option_names(names: Iterable[str], known: type[CheckOptions]) -> None:
    options = known.__annotations__
    for name in names:
        if name not in options:
            if name in RETIRED_KEYS:
                raise UnknownOptionError(f"{name} was {RETIRED_KEYS[name]}")
            is_of_services = name in ServiceOptions.__annotations__
            hint = "; the function is the probe" if is_of_services else suggestion(name, list(options))
            raise UnknownOptionError(f'unknown option "{name}"{hint}')


def define(  # noqa: PLR0913  each is a key of the table
    service_id: str,
    *,
    name: str | None = None,
    description: str = "",
    group: str = "",
    tags: Sequence[str] = (),
    runbook: str = "",
    slo: str = "off",
    depends_on: Sequence[str] = (),
    impact: Impact | str = Impact.PARTIAL,
    maintenance_impact: Impact | str | None = None,
    probe: Probe | str | Mapping[str, Any] | None = None,
    ttl: Duration | None = None,
    **timing: Unpack[TimingOptions],
) -> Definition:
    validate_option_names(timing, ServiceOptions)
    if probe is not None and ttl is not None:
        raise InvalidValueError(
            "a service cannot have both probe and ttl: ttl is for a service that reports its own status"
        )
    probe = None if probe is None else _probe(probe)
    if probe is None or probe.ttl_s is not None:  # a heartbeat is not a check: the service reports by itself
        probe_config, policy = None, _reported_policy(ttl if probe is None else probe.ttl_s, timing)
        if probe is not None and probe.grace_s is not None:
            policy = replace(policy, grace_s=probe.grace_s, run_times=probe.run_times)
    else:
        probe_config, policy = _checked(probe, **timing)
    service = Service(
        id=service_id,
        name=service_id if name is None else name,
        description=description,
        impact=_impact("impact", impact),
        maintenance_impact=None if maintenance_impact is None else _impact("maintenance_impact", maintenance_impact),
        policy=policy,
        group=group,
        tags=_names("tags", tags, "texts"),
        runbook=runbook,
        slo_percent=_slo(slo),
        depends_on=_names("depends_on", depends_on, "ids and groups"),
    )
    return Definition(service, probe_config)


def _probe(probe: object) -> Probe:
    if isinstance(probe, str | Mapping):
        return make_probe(probe)
    if isinstance(probe, Probe):
        return probe
    raise InvalidValueError(
        f"a probe must be a URL, a table with a url, or an instance of svcnode.Probe, not {probe!r}; "
        "derive the class from svcnode.Probe"
    )


def _reported_policy(ttl: Duration | None, timing: Mapping[str, object]) -> Policy:
    for option in timing:
        raise InvalidValueError(
            f"{option} is for a service with a probe, and this one has none, so it is never checked; "
            "remove the option, or add a probe"
        )
    return REPORTED_POLICY if ttl is None else replace(REPORTED_POLICY, ttl_s=parse_duration_s(ttl))


def _checked(probe: Probe, **options: Unpack[TimingOptions]) -> tuple[ProbeConfig, Policy]:
    schedule, max_latency_s, policy = timing(**options)
    probe.validate_interval(schedule.interval_s)
    return ProbeConfig(probe, schedule, max_latency_s), policy


def timing(  # noqa: PLR0913  each is a key of the table
    *,
    interval: Duration = 10.0,
    transition_interval: Duration | None = None,
    timeout: Duration | None = None,
    max_latency: Duration | None = None,
    rise: int = 2,
    fall: int = 3,
    tolerance: str = "4/10",
    start_period: Duration = 30.0,
    stale_after: Duration | None = None,
) -> tuple[Schedule, float | None, Policy]:
    """Raises `InvalidValueError` if the options do not fit together."""
    # Validated here, too: the policy cache does not distinguish True from 1.
    validate_threshold("rise", rise)
    validate_threshold("fall", fall)
    allowed = _tolerance(tolerance)
    schedule = _schedule(interval, timeout, transition_interval)
    policy = _cached_policy(
        rise=rise,
        fall=fall,
        start_period_s=parse_duration_s(start_period),
        window=allowed.window,
        max_failures=allowed.max_failures,
        recovery_failures=allowed.recovery_failures,
        window_s=allowed.window * schedule.interval_s,
        stale_after_s=_stale_after_s(stale_after, schedule),
    )
    return schedule, _max_latency_s(max_latency, schedule), policy


# Thousands of services with the same schedule and policy share one object each, which saves memory.
_cached_schedule = lru_cache(maxsize=256)(Schedule)
_cached_policy = lru_cache(maxsize=256)(Policy)


def _schedule(interval: Duration, timeout: Duration | None, transition_interval: Duration | None) -> Schedule:
    interval_s = parse_duration_s(interval)
    # The default timeout is 3 s, or half of an interval below 6 s.
    timeout_s = min(3.0, interval_s / 2) if timeout is None else parse_duration_s(timeout)
    return _cached_schedule(
        interval_s=interval_s,
        timeout_s=timeout_s,
        transition_interval_s=None if transition_interval is None else parse_duration_s(transition_interval),
    )


def _tolerance(text: str) -> Tolerance:
    try:
        return Tolerance.parse(text)
    except InvalidValueError as exc:
        raise InvalidValueError(f"tolerance {exc}") from exc


def _slo(text: str) -> float | None:
    try:
        return parse_slo(text)
    except InvalidValueError as exc:
        raise InvalidValueError(f"slo {exc}") from exc


def _max_latency_s(max_latency: Duration | None, schedule: Schedule) -> float | None:
    if max_latency is None:
        return None
    limit_s = parse_duration_s(max_latency)
    if not 0 < limit_s < schedule.timeout_s:
        raise InvalidValueError(
            f"max_latency ({limit_s:g} s) must be more than 0 and below the timeout ({schedule.timeout_s:g} s)"
        )
    return limit_s


def _stale_after_s(stale_after: Duration | None, schedule: Schedule) -> float:
    if stale_after is None:
        return schedule.default_stale_after_s
    limit_s = parse_duration_s(stale_after)
    if limit_s <= schedule.interval_s:
        raise InvalidValueError(
            f"stale_after ({limit_s:g} s) must be longer than the interval ({schedule.interval_s:g} s), or the service "
            "becomes Initializing before the next check; "
            f'set it to "{schedule.default_stale_after_s:g}s", the default for this interval'
        )
    return limit_s


def _names(name: str, value: object, kind: str) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return tuple(dict.fromkeys(value))
    raise InvalidValueError(f"{name} must be a list of {kind}, not {value!r}")


def _impact(name: str, impact: Impact | str) -> Impact:
    try:
        return Impact(impact)
    except ValueError:
        known = ", ".join(f'"{member.value}"' for member in Impact)
        raise InvalidValueError(f'{name} must be one of {known}, not "{impact}"') from None
