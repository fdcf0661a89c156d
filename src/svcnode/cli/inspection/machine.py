"""Inspects this machine: drivers, the limit of open files, and the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.cli.inspection.finding import Code, Finding, Level
from svcnode.core.codes import ReasonCode
from svcnode.net.fd_limit import hard_fd_limit
from svcnode.probes import missing_driver, scheme_of
from svcnode.probes.base import MAX_CLOCK_SKEW_S
from svcnode.probes.clock import read_kernel_clock
from svcnode.version import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from svcnode.cli.inspection.subject import ClockReading, Subject
    from svcnode.config.keys import KeyPath

FEW_CONNECTIONS = 64  # for health checks, the page and what scrapes metrics


# ---- drivers


def missing_drivers(data: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str, str]]:
    """The key, its scheme, and the command that installs the driver, from a configuration as it is written."""
    services = data.get("services")
    for index, service in enumerate(services if isinstance(services, list) else ()):
        scheme = scheme_of(service.get("probe")) if isinstance(service, dict) else ""
        if command := missing_driver(scheme):
            yield ("services", index, "probe"), scheme, command
    notify = data.get("notify")
    if isinstance(notify, dict) and "apprise" in notify and not _has_apprise():
        yield ("notify", "apprise"), "apprise", install_command("notify")


def _has_apprise() -> bool:
    from importlib.util import find_spec

    return find_spec("apprise") is not None


def drivers(subject: Subject) -> Iterator[Finding]:
    """Missing drivers of the kinds that load their driver only when they check."""
    kinds = {service.id: (path, service.definition.probe_config) for path, service in subject.services()}
    for checked in subject.evidence.checked:
        path, config = kinds[checked.service_id]
        if checked.verdict.code == ReasonCode.DRIVER_MISSING and config is not None:
            yield subject.finding(
                Code.DRIVER_MISSING,
                Level.FAULT,
                f'the probe of "{checked.service_id}" needs a driver that is not installed',
                checked.verdict.reason,
                (*path, "probe"),
            )


# ---- open files


def descriptors(subject: Subject) -> Iterator[Finding]:
    from svcnode.agent.agent import RESERVED_FDS, divide_fds, needed_fds

    allowed, needed = hard_fd_limit(), needed_fds()
    if allowed >= needed:
        return
    connections, checks = divide_fds(int(allowed))
    count = sum(service.definition.probe_config is not None for service in subject.settings.services)
    is_enough = allowed >= RESERVED_FDS + count + FEW_CONNECTIONS
    yield Finding(
        code=Code.DESCRIPTORS_LOW,
        level=Level.WARNING if is_enough else Level.FAULT,
        what=f"this user may open at most {allowed:g} files, which is enough for {connections} connections and "
        f"{checks} checks at a time; services that are checked: {count}",
        fix=f"Raise the limit to {needed}: LimitNOFILE={needed} in the systemd unit, or ulimit -Hn {needed} as root",
    )


# ---- the clock


def clock(subject: Subject) -> Iterator[Finding]:
    yield from _kernel_clock()
    yield from compared_clocks(subject.evidence.readings)
    for checked in subject.evidence.checked:
        if checked.verdict.code == ReasonCode.CLOCK_SKEW:
            yield _clock_finding(f'the check of "{checked.service_id}" says: {checked.verdict.reason}', Level.WARNING)


def _kernel_clock() -> Iterator[Finding]:
    try:
        state = read_kernel_clock()
    except OSError:  # it does not tell, as in some containers
        return
    if not state.is_synchronized:
        yield Finding(
            code=Code.CLOCK_UNSYNCHRONIZED,
            level=Level.WARNING,
            what="the kernel says that no program synchronizes the clock of this machine",
            fix="Run a time service, such as chrony or systemd-timesyncd: timedatectl set-ntp true",
        )


def compared_clocks(readings: Sequence[ClockReading]) -> Iterator[Finding]:
    """One clock that differs may be wrong itself. If there are several, and all differ, ours is wrong."""
    differing = [reading for reading in readings if abs(reading.ahead_s) > MAX_CLOCK_SKEW_S]
    is_ours = len(differing) > 1 and len(differing) == len(readings)
    for reading in differing[:1] if is_ours else differing:
        side = "ahead of" if reading.ahead_s > 0 else "behind"
        others = f" and of {len(differing) - 1} others" if is_ours else ""
        what = f"the clock of this machine is {abs(reading.ahead_s):.0f} s {side} that of {reading.source}{others}"
        yield _clock_finding(what, Level.FAULT if is_ours else Level.WARNING)


def _clock_finding(what: str, level: Level) -> Finding:
    return Finding(
        code=Code.CLOCK_DIFFERS,
        level=level,
        what=what,
        fix="Compare the time of both machines, and synchronize the one that is wrong: timedatectl status",
    )
