"""`svcnode check-config`: validate a configuration and show the services that it defines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli._args import add_config_option, heartbeat_warnings, settings_reader
from svcnode.cli.output import show
from svcnode.config import find_file
from svcnode.core.model import Impact
from svcnode.core.text import one_line
from svcnode.server.sockets import tls_context

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from svcnode.cli._args import CommandParser
    from svcnode.config import ServiceSettings


LONG_STALE_AFTER_INTERVALS = 60  # a longer stale_after gets a note


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Validate a configuration and show the services that it defines. Exit code: 0 valid, 2 invalid."
    )
    add_config_option(parser)
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="same as --config FILE")


def run_command(arguments: argparse.Namespace) -> int:
    settings = settings_reader(arguments.file or arguments.config, arguments)()
    if settings.tls is not None:
        tls_context(settings.tls.certificate, settings.tls.key)
    addresses = ", ".join(map(str, settings.listen))
    source = find_file(arguments.file or arguments.config) or "no file, built-in defaults"
    lines = [f"Configuration is valid ({source}): {settings.node_name} {settings.node_version} on {addresses}"]
    if settings.sharing is not None:
        lines.append(f"  replica {settings.sharing.replica}, registry {settings.sharing.registry}")
    if settings.fleet is not None:
        lines.append(f"  fleet: the nodes of {settings.fleet.location}")
    lines += map(_service_line, settings.services)
    notes = [
        *heartbeat_warnings(settings),
        *_constant_health_notes(settings.services),
        *_long_stale_after_notes(settings.services),
    ]
    lines += map("Note: {}".format, notes)
    show("\n".join(map(one_line, lines)), sys.stdout)
    return 0


def _constant_health_notes(services: Sequence[ServiceSettings]) -> Iterator[str]:
    """Notes for a configuration with which the health of the node never changes."""
    counted = [service for service in services if service.definition.service.impact is not Impact.NONE]
    if services and not counted:
        yield (
            'all services have impact = "none", so the node is always healthy (200); set impact = "partial" or '
            '"critical" for services that matter'
        )
    elif counted and all(service.status is not None for service in counted):
        yield (
            "all counted services have a fixed status, so the health of the node never changes; replace status with "
            "probe where a service can be checked"
        )


def _long_stale_after_notes(services: Sequence[ServiceSettings]) -> Iterator[str]:
    """Notes for services that stay Up for long after their last successful check."""
    for settings in services:
        service, probe_config = settings.definition.service, settings.definition.probe_config
        limit_s = service.policy.stale_after_s
        if (
            probe_config is None
            or limit_s is None
            or limit_s <= LONG_STALE_AFTER_INTERVALS * probe_config.schedule.interval_s
        ):
            continue
        yield (
            f'stale_after of "{service.id}" is {limit_s:g} s, more than {LONG_STALE_AFTER_INTERVALS} intervals: the '
            "service may stay Up for that long while its checks cannot run; the default would be "
            f"{probe_config.schedule.default_stale_after_s:g} s"
        )


def _service_line(settings: ServiceSettings) -> str:
    service, probe_config = settings.definition.service, settings.definition.probe_config
    if settings.status is not None:
        source = f"fixed status {settings.status.value}"
    elif probe_config is None:
        expected = "heartbeat" if service.policy.grace_s is None else "success"
        source = f"{expected} at least every {service.policy.ttl_s:g} s"
    else:
        source = f"checked every {probe_config.schedule.interval_s:g} s"
    return f"  {service.id}: {service.name} ({source}, impact {service.impact.value})"
