"""`svcnode check-config --check`: finds what would go wrong in the first hour of a node, and what a bug report needs.

finding.py    a finding, its code and its level; the next steps
subject.py    the configuration, and what was answered about it
network.py    asks services, the resolver and alert targets
files.py, machine.py, addresses.py, history.py   judge, one function per topic
paths.py      files and folders
report.py     the findings as text, and as JSON without secrets

Asking comes first, with a deadline on every await. Then each topic judges the settings and the answers. It looks at
files and sockets of this machine, and changes nothing.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from svcnode.cli.inspection import addresses, files, history, machine, network
from svcnode.cli.inspection.finding import Code, Finding, Level, in_order
from svcnode.cli.inspection.subject import Evidence
from svcnode.net.threads import call_with_timeout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.cli.inspection.subject import OnceChecked, Subject
    from svcnode.config import Settings
    from svcnode.config.sources import Source
    from svcnode.core.errors import ConfigError

    Topic = Callable[[Subject], Iterator[Finding]]

TOPIC_TIMEOUT_S = 5.0  # a mount may hang

# In the order of their weight: of two findings of one level, the first is the more urgent one.
TOPICS: dict[str, Topic] = {
    "the configuration file": files.configuration_file,
    "listen addresses": addresses.listen_addresses,
    "the control socket": addresses.control_socket,
    "the history": history.history,
    "drivers": machine.drivers,
    "names": network.names,
    "services": network.services,
    "alert targets": network.targets,
    "the clock": machine.clock,
    "files of secrets": files.secret_files,
    "files of variables": files.environment_files,
    "tokens": addresses.access,
    "open files": machine.descriptors,
    "notes": files.notes,
}


async def gather_evidence(settings: Settings, source: Source, checked: Sequence[OnceChecked]) -> Evidence:
    hosts = {named.host for named in network.named_hosts(settings, source)}
    targets = list(network.alert_targets(settings, source))
    lookups, readings, problems = await asyncio.gather(
        network.look_up(hosts), network.read_clocks(settings), network.try_targets(targets)
    )
    return Evidence(checked=tuple(checked), lookups=lookups, readings=tuple(readings), target_problems=tuple(problems))


def inspect(subject: Subject) -> list[Finding]:
    return in_order(finding for name, topic in TOPICS.items() for finding in _inspect(name, topic, subject))


def _inspect(name: str, topic: Topic, subject: Subject) -> list[Finding]:
    try:
        return call_with_timeout(partial(_all_of, topic, subject), TOPIC_TIMEOUT_S)
    except (TimeoutError, OSError) as exc:
        return [
            Finding(
                code=Code.NOT_INSPECTED,
                level=Level.WARNING,
                what=f"{name} could not be inspected: {exc}",
                fix="Check the disks and mounts of this machine",
            )
        ]


def _all_of(topic: Topic, subject: Subject) -> list[Finding]:
    return list(topic(subject))


def findings_of_errors(error: ConfigError, source: Source | None) -> list[Finding]:
    """Of an invalid configuration. `source` is None if the file cannot be read as TOML."""
    missing = {} if source is None else {path: rest for path, *rest in machine.missing_drivers(source.data)}
    found: dict[tuple[str, str], Finding] = {}
    for one in (error, *error.others):
        path = next((path for path in missing if one.path[: len(path)] == path), None)
        finding = _invalid(one) if path is None else _no_driver(one, *missing[path])
        found.setdefault((finding.code, finding.what), finding)
    return list(found.values())


def _no_driver(error: ConfigError, scheme: str, command: str) -> Finding:
    return Finding(
        code=Code.DRIVER_MISSING,
        level=Level.FAULT,
        key=error.key or "",
        place=_place(error),
        what=f'"{scheme}" needs a driver that is not installed',
        fix=command,
    )


def _invalid(error: ConfigError) -> Finding:
    return Finding(
        code=Code.TARGET_INVALID if error.path[:1] == ("notify",) else Code.CONFIG_INVALID,
        level=Level.FAULT,
        key=error.key or "",
        place=_place(error),
        what=str(error).removeprefix(f"{error.key}: ").removesuffix(f" ({_place(error)})"),
        fix="Correct this, then run svcnode check-config again",
    )


def _place(error: ConfigError) -> str:
    if error.file is None:
        return ""
    return f"{error.file}:{error.line}" if error.line else str(error.file)
