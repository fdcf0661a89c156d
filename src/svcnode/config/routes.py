"""What a notification target gets: the options of its entry in [notify], beside those of the target itself."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, time, tzinfo
from typing import TYPE_CHECKING, Annotated

from svcnode.config.tables import NotifyTable
from svcnode.config.values import line, names, quiet_hours, timezone
from svcnode.core.errors import InvalidValueError, OptionError
from svcnode.core.option_types import duration, one_of
from svcnode.core.text import suggestion
from svcnode.notify.routes import QuietHours, RouteSettings
from svcnode.notify.subjects import Severity
from svcnode.notify.targets import PROBE_ONLY_OPTIONS
from svcnode.probes.options import parse_options, raise_first

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from svcnode.notify.targets import NotificationTarget


MAX_NAME_CHARS = 100
_NOT_FOR_ALERTMANAGER = "does not apply to Alertmanager, which has its own; remove it"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteOptions:
    name: Annotated[str, line("the name of a target", max_chars=MAX_NAME_CHARS)] = ""
    min_severity: Annotated[str, one_of("critical", "warning")] = "warning"
    services: Annotated[tuple[str, ...], names] = ()
    groups: Annotated[tuple[str, ...], names] = ()
    tags: Annotated[tuple[str, ...], names] = ()
    quiet_hours: Annotated[tuple[time, time] | None, quiet_hours] = None
    timezone: Annotated[tzinfo, timezone] = UTC
    repeat_interval: Annotated[float | None, duration(at_least="1m", at_most="30d", zero="no reminders", unit="h")] = (
        None
    )
    escalate_after: Annotated[float, duration(at_most="7d", unit="m")] = 0.0


def route_from(
    entry: object, build: Callable[[object], NotificationTarget], target_options: Collection[str]
) -> RouteSettings:
    """Reads the options of the route from an entry, which has them beside the options of the target."""
    if not isinstance(entry, dict) or entry.keys() == {"file"}:
        return RouteSettings(target=build(entry))
    known = [field.name for field in fields(RouteOptions)]
    unknown = [name for name in entry if name not in (*known, *target_options, "url", "file")]
    names_to_suggest = {*known, *target_options} - {"url", *PROBE_ONLY_OPTIONS}
    errors = [OptionError(name, f"unknown option{_hint(name, names_to_suggest)}") for name in unknown]
    given = {name: value for name, value in entry.items() if name in known}
    if "timezone" in given and "quiet_hours" not in given:
        errors.append(OptionError("timezone", "needs quiet_hours"))
    options, target = RouteOptions(), None
    with _collecting(errors):
        options = RouteOptions(**parse_options(RouteOptions, given))
    with _collecting(errors):
        target = build({name: value for name, value in entry.items() if name not in (*known, *unknown)})
        if target.resend_interval_s is not None:
            refused = [name for name in ("quiet_hours", "repeat_interval") if name in given]
            raise_first([OptionError(name, _NOT_FOR_ALERTMANAGER) for name in refused])
    raise_first(errors)
    assert target is not None, "there is no error"
    return RouteSettings(
        target=target,
        name=options.name,
        id=options.name,
        min_severity=Severity(options.min_severity),
        services=frozenset(options.services),
        groups=frozenset(options.groups),
        tags=frozenset(options.tags),
        quiet_hours=None if options.quiet_hours is None else QuietHours(*options.quiet_hours, options.timezone),
        repeat_interval_s=options.repeat_interval,
        escalate_after_s=options.escalate_after,
    )


def _hint(name: str, known: Collection[str]) -> str:
    if name in NotifyTable.keys:
        return "; it belongs in [notify], outside the targets"
    return suggestion(name, known)


@contextmanager
def _collecting(errors: list[OptionError]) -> Iterator[None]:
    try:
        yield
    except OptionError as exc:
        errors += [error for error in (exc, *exc.others) if isinstance(error, OptionError)]
    except InvalidValueError as exc:
        errors.append(OptionError("url", str(exc)))
