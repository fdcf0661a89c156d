"""`svcnode check-config`: validate a configuration and show the services that it defines."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli._args import EXIT_USAGE, add_config_option, config_warnings
from svcnode.cli.output import show
from svcnode.config import find_node_file, load, node_environ
from svcnode.core.errors import ConfigError, InvalidValueError
from svcnode.core.model import Impact, Outcome
from svcnode.core.redaction import MASK, redacted
from svcnode.core.text import one_line, toml_value
from svcnode.core.units import format_limit
from svcnode.probes.options import public_options
from svcnode.server.sockets import tls_context

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from svcnode.cli._args import CommandParser
    from svcnode.cli.inspection.subject import Evidence, OnceChecked
    from svcnode.config import ServiceSettings, Settings
    from svcnode.node.definition import ProbeConfig
    from svcnode.probes.base import Probe


MAX_CONCURRENT_CHECKS = 50
LONG_STALE_AFTER_INTERVALS = 60  # a longer stale_after gets a note


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Validate a configuration, and show all its errors, or the services that it defines and their probes. "
        "With --check, look at everything that a first start needs: services, addresses, the control socket, the "
        "history, names, alert targets, which get no message, secrets that others can read, drivers, the clock and "
        "the limit of open files. Run it as the user of the node. "
        "Exit code: 0 valid, 1 valid, but --check found a fault or a service is not ready, 2 invalid."
    )
    add_config_option(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="also run each probe once, look for faults around the node, and say what to do next",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="with --check: one JSON object without secrets and user names, to attach to a report about a problem",
    )
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="same as --config FILE")


def run_command(arguments: argparse.Namespace) -> int:
    if arguments.json and not arguments.check:
        raise InvalidValueError("--json: only with --check")
    file = find_node_file(arguments.file or arguments.config)
    environ = node_environ(file, os.environ) if arguments.check else os.environ
    try:
        settings = load(file, environ)
        if settings.tls is not None:
            tls_context(settings.tls.certificate, settings.tls.key)
    except ConfigError as exc:
        if not arguments.json:
            raise
        return _show_errors(file, environ, exc)
    notes = _notes(settings)
    if not arguments.json:
        lines = [*_configuration_lines(settings), *(() if arguments.check else map("Note: {}".format, notes))]
        show("\n".join(map(one_line, lines)), sys.stdout)
    return _inspect(settings, environ, notes, as_json=arguments.json) if arguments.check else 0


def _configuration_lines(settings: Settings) -> Iterator[str]:
    addresses = ", ".join(map(str, settings.listen))
    source = settings.file or "no file, built-in defaults"
    yield f"Configuration is valid ({source}): {settings.node_name} {settings.node_version} on {addresses}"
    if settings.sharing is not None:
        yield f"  replica {settings.sharing.replica}, registry {settings.sharing.registry}"
    if settings.fleet is not None:
        yield f"  fleet: the nodes of {settings.fleet.location}"
    yield from map(_service_line, settings.services)
    yield from _public_lines(settings)


def _notes(settings: Settings) -> dict[str, str]:
    """The notes: from the text to its code."""
    return {
        **config_warnings(settings),
        **dict.fromkeys(_constant_health_notes(settings.services), "health_constant"),
        **dict.fromkeys(_long_stale_after_notes(settings.services), "stale_after_long"),
    }


# ---- checks


def _inspect(settings: Settings, environ: Mapping[str, str], notes: Mapping[str, str], *, as_json: bool) -> int:
    from svcnode.cli._checks import run_quietly
    from svcnode.cli.inspection import gather_evidence, inspect
    from svcnode.cli.inspection.finding import Level
    from svcnode.cli.inspection.report import json_report, report_lines
    from svcnode.cli.inspection.subject import Subject
    from svcnode.config.sources import Source

    source = Source(settings.file, environ, ())
    results: list[OnceChecked] = []
    gathered: list[Evidence] = []

    async def ask() -> None:
        if not _has_missing_store(settings):
            results.extend(await _run_checks(_checks_of(settings.services)))
        gathered.append(await gather_evidence(settings, source, results))

    run_quietly(ask())
    subject = Subject(settings=settings, source=source, evidence=gathered[0], notes=notes)
    findings = inspect(subject)
    if as_json:
        show(json_report(subject, findings), sys.stdout)
    else:
        lines = [*_result_lines(settings, results), *report_lines(subject, findings)]
        show("\n".join(map(one_line, lines)), sys.stdout)
    is_ready = all(result.verdict.outcome is Outcome.READY for result in results)
    return int(not is_ready or any(finding.level is Level.FAULT for finding in findings))


def _show_errors(file: Path | None, environ: Mapping[str, str], error: ConfigError) -> int:
    from svcnode.cli.inspection import findings_of_errors
    from svcnode.cli.inspection.report import json_report_of_errors
    from svcnode.config.sources import Source

    try:
        source = Source(file, environ, ())
    except ConfigError:  # it is not TOML
        source = None
    show(json_report_of_errors(file, findings_of_errors(error, source)), sys.stdout)
    return EXIT_USAGE


def _has_missing_store(settings: Settings) -> bool:
    """A node that never ran has no store, which is its only service."""
    from svcnode.agent.store import is_missing

    return settings.uses_store and is_missing(settings.store_path)


def _result_lines(settings: Settings, results: Sequence[OnceChecked]) -> Iterator[str]:
    if _has_missing_store(settings):
        yield f"Not checked: svcnode serve creates the store {settings.store_path}"
    else:
        yield from format_checks(results, len(settings.services) - len(results))


def _checks_of(services: Sequence[ServiceSettings]) -> list[tuple[str, ProbeConfig]]:
    configs = ((service.id, service.definition.probe_config) for service in services)
    return [(service_id, config) for service_id, config in configs if config is not None]


async def _run_checks(checks: Sequence[tuple[str, ProbeConfig]]) -> list[OnceChecked]:
    """In the order of the services; a limited number at the same time."""
    import asyncio
    import time

    from svcnode.cli.inspection.subject import OnceChecked
    from svcnode.probes.run import close_probe, run_check

    limit = asyncio.Semaphore(MAX_CONCURRENT_CHECKS)

    async def check(service_id: str, config: ProbeConfig) -> OnceChecked:
        async with limit:
            started_s = time.perf_counter()
            verdict, _ = await run_check(config.probe, config.schedule.timeout_s, config.max_latency_s)
            close_probe(config.probe)
            return OnceChecked(service_id, verdict, time.perf_counter() - started_s)

    return await asyncio.gather(*(asyncio.create_task(check(*item)) for item in checks))


def format_checks(results: Sequence[OnceChecked], unchecked_count: int) -> Iterator[str]:
    from svcnode.cli._checks import milliseconds_text, outcome_text

    ready_count = sum(result.verdict.outcome is Outcome.READY for result in results)
    unchecked = f"; without a check: {unchecked_count}" if unchecked_count else ""
    yield f"Checked once: {ready_count} of {len(results)} ready{unchecked}"
    width = max((len(one_line(result.service_id)) for result in results), default=0)
    for service_id, verdict, duration_s in results:
        row = f"  {one_line(service_id):{width}}  {outcome_text(verdict):9}  {milliseconds_text(duration_s):>10}"
        yield f"{row}  {verdict.reason}".rstrip()


# ---- services and notes


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


def _public_lines(settings: Settings) -> Iterator[str]:
    """What everyone will see of the configuration, and where."""
    public = settings.public
    if public is None:
        return
    addresses = public.listen or settings.listen
    yield f'Public, without a token: "{public.title}" on {", ".join(f"{one}{public.path}" for one in addresses)}'
    for service in (one.definition.service for one in settings.services):
        if service.group in public.groups:
            yield f"  {service.id}: {service.name}, in {service.group}"
        elif service.id in public.services or not set(public.tags).isdisjoint(service.tags):
            yield f"  {service.id}: {service.name}"


def _service_line(settings: ServiceSettings) -> str:
    service, probe_config = settings.definition.service, settings.definition.probe_config
    if settings.status is not None:
        source = f"fixed status {settings.status.value}"
    elif service.policy.run_times is not None:
        source = f"success within {format_limit(service.policy.grace_s or 0)} after {service.policy.run_times}"
    elif probe_config is None:
        expected = "heartbeat" if service.policy.grace_s is None else "success"
        source = f"{expected} at least every {format_limit(service.policy.ttl_s or 0)}"
    else:
        source = f"checked every {probe_config.schedule.interval_s:g} s"
    probe = "" if probe_config is None else f": {_probe_text(probe_config.probe)}"
    return f"  {service.id}: {service.name} ({source}, impact {service.impact.value}){probe}"


def _probe_text(probe: Probe) -> str:
    """The URL and the options, without secrets."""
    options = (
        f"{name} = {value if value == MASK else toml_value(value)}" for name, value in public_options(probe).items()
    )
    return redacted(", ".join([probe.display_url or probe.kind, *options]))
