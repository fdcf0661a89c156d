"""What a notification target gets: the options of its entry in [notify], beside those of the target itself."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, time, tzinfo
from typing import TYPE_CHECKING, Annotated, Any

from svcnode.config.values import names, quiet_hours, timezone
from svcnode.core.errors import OptionError
from svcnode.core.option_types import duration, one_of
from svcnode.core.text import suggestion
from svcnode.notify.routes import QuietHours, RouteSettings
from svcnode.notify.subjects import Severity
from svcnode.notify.targets import PROBE_ONLY_OPTIONS
from svcnode.probes.options import parse_options, raise_first

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from svcnode.notify.targets import NotificationTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    min_severity: Annotated[str, one_of("critical", "warning")] = "warning"
    services: Annotated[tuple[str, ...], names] = ()
    groups: Annotated[tuple[str, ...], names] = ()
    quiet_hours: Annotated[tuple[time, time] | None, quiet_hours] = None
    timezone: Annotated[tzinfo, timezone] = UTC
    repeat_interval: Annotated[float | None, duration(at_least="1m", at_most="30d", zero="no reminders", unit="h")] = (
        None
    )
    escalate_after: Annotated[float, duration(at_most="7d", unit="m")] = 0.0


def route_from(
    entry: object, build: Callable[[object], NotificationTarget], target_options: Collection[str]
) -> RouteSettings:
    """From an entry as the target reads it, with its own options, which may have these options, too."""
    given: dict[str, Any] = {}
    if isinstance(entry, dict):
        known = [field.name for field in fields(RouteOptions)]
        unknown = [name for name in entry if name not in (*known, *target_options, "url", "file")]
        names_to_suggest = {*known, *target_options} - {"url", *PROBE_ONLY_OPTIONS}
        raise_first([OptionError(name, f"unknown option{suggestion(name, names_to_suggest)}") for name in unknown])
        given = {name: value for name, value in entry.items() if name in known}
        entry = {name: value for name, value in entry.items() if name not in known}
    options = RouteOptions(**parse_options(RouteOptions, given))
    if "timezone" in given and options.quiet_hours is None:
        raise OptionError("timezone", "needs quiet_hours")
    target = build(entry)
    if target.resend_interval_s is not None:
        for name in ("quiet_hours", "repeat_interval"):
            if name in given:
                raise OptionError(name, "does not apply to Alertmanager, which has its own; remove it")
    return RouteSettings(
        target=target,
        min_severity=Severity(options.min_severity),
        services=frozenset(options.services),
        groups=frozenset(options.groups),
        quiet_hours=None if options.quiet_hours is None else QuietHours(*options.quiet_hours, options.timezone),
        repeat_interval_s=options.repeat_interval,
        escalate_after_s=options.escalate_after,
    )
