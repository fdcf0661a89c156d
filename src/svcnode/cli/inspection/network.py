"""Asks the resolver, the services and the alert targets, and judges what they answer.

Only hosts that the configuration names are asked. To an alert target, a connection is opened and closed; nothing is
sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

from svcnode.cli.inspection.finding import Code, Level
from svcnode.cli.inspection.subject import ClockReading, Lookup, TargetProblem
from svcnode.core.address import is_loopback
from svcnode.core.codes import ReasonCode
from svcnode.net.connect import TcpEndpoint
from svcnode.net.dns import is_ip_address, resolve_host
from svcnode.net.os_errors import code_for_os_error, connection_error_text
from svcnode.probes.base import UrlProbe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from svcnode.cli.inspection.finding import Finding
    from svcnode.cli.inspection.subject import Subject
    from svcnode.config import Settings
    from svcnode.config.keys import KeyPath
    from svcnode.config.sources import Source
    from svcnode.core.model import Verdict
    from svcnode.net.http1 import Http1Client
    from svcnode.probes.http import HttpProbe

LOOKUP_TIMEOUT_S = 5.0
MAX_CONCURRENT_LOOKUPS = 50
SLOW_LOOKUP_S = 1.0
REQUEST_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 10.0
MAX_CLOCKS = 5  # of different hosts
_NAME_CODES = (ReasonCode.HOST_NOT_FOUND, ReasonCode.RESOLVER_FAILED)


# ---- names


class Named(NamedTuple):
    """A host that the configuration names, and where."""

    host: str
    path: KeyPath


def named_hosts(settings: Settings, source: Source) -> list[Named]:
    """The hosts of services, the registry and alert targets, except IP addresses and names that a proxy resolves."""
    found = (*_service_hosts(settings), *_registry_hosts(settings), *_target_hosts(settings, source))
    return [named for named in found if not is_ip_address(named.host)]


def _service_hosts(settings: Settings) -> Iterator[Named]:
    for index, service in enumerate(settings.services):
        config = service.definition.probe_config
        probe = None if config is None else config.probe
        if isinstance(probe, UrlProbe) and probe.url.host and not getattr(probe, "proxy", ""):
            yield Named(probe.url.host, ("services", index, "probe"))


def _registry_hosts(settings: Settings) -> Iterator[Named]:
    registries = {
        "sharing": None if settings.sharing is None else settings.sharing.registry,
        "fleet": None if settings.fleet is None else settings.fleet.registry,
    }
    for table, registry in registries.items():
        for host, _ in () if registry is None else registry.endpoints:
            yield Named(host, (table, "registry"))


def _target_hosts(settings: Settings, source: Source) -> Iterator[Named]:
    for target in alert_targets(settings, source):
        if target.host and not (target.client is not None and target.client.proxy):
            yield Named(target.host, target.path)


async def look_up(hosts: Iterable[str]) -> dict[str, Lookup]:
    """Resolves the names, a limited number at the same time: each takes a thread."""
    names, limit = sorted(set(hosts)), asyncio.Semaphore(MAX_CONCURRENT_LOOKUPS)

    async def look_up_one(host: str) -> Lookup:
        async with limit:
            return await _look_up(host)

    return dict(zip(names, await asyncio.gather(*map(look_up_one, names)), strict=True))


async def _look_up(host: str) -> Lookup:
    began_s = time.perf_counter()
    addresses, problem = [], ""
    try:
        async with asyncio.timeout(LOOKUP_TIMEOUT_S):
            addresses = await resolve_host(host)
    except TimeoutError:
        problem = f"no answer within {LOOKUP_TIMEOUT_S:g} s"
    except (OSError, ValueError) as exc:  # ValueError: a label that is too long
        problem = connection_error_text(exc) if isinstance(exc, OSError) else "invalid host name"
    return Lookup(tuple(addresses), time.perf_counter() - began_s, problem)


def address_kind(address: str) -> str:
    ip = ipaddress.ip_address(address.partition("%")[0])
    kinds = {"loopback": ip.is_loopback, "link-local": ip.is_link_local, "public": ip.is_global}
    return next((kind for kind, is_one in kinds.items() if is_one), "private")


def names(subject: Subject) -> Iterator[Finding]:
    """One finding for each name, at the first key that has it. Alert targets have findings of their own."""
    seen: set[str] = set()
    for host, path in named_hosts(subject.settings, subject.source):
        if host in seen or path[0] == "notify":
            continue
        seen.add(host)
        found = subject.evidence.lookups[host]
        local = [address for address in found.addresses if address_kind(address) == "loopback"]
        if found.problem:
            what, fix = f'the name "{host}" does not resolve: {found.problem}', f"Check it with: getent ahosts {host}"
            yield subject.finding(Code.NAME_UNRESOLVED, Level.FAULT, what, fix, path)
        elif found.duration_s > SLOW_LOOKUP_S:
            what = f'it took {found.duration_s:.1f} s to resolve "{host}", and each check takes that longer'
            fix = "Check the name servers in /etc/resolv.conf, or use an IP address"
            yield subject.finding(Code.NAME_SLOW, Level.WARNING, what, fix, path)
        elif local and len(local) == len(found.addresses) and not is_loopback(host):
            what = f'the name "{host}" means this machine here ({", ".join(local)})'
            fix = "If another machine is meant, look for the name in /etc/hosts"
            yield subject.finding(Code.NAME_LOCAL, Level.NOTE, what, fix, path)


# ---- clocks


async def read_clocks(settings: Settings) -> list[ClockReading]:
    """How far our clock is ahead of those of HTTP services, by their Date header."""
    probes: dict[str, HttpProbe] = {}
    for service in settings.services:
        config = service.definition.probe_config
        if config is not None and config.probe.kind in ("http", "https"):
            from svcnode.probes.http import HttpProbe

            if isinstance(config.probe, HttpProbe) and config.probe.method in ("GET", "HEAD"):
                probes.setdefault(config.probe.url.host_port, config.probe)
    readings = await asyncio.gather(*map(_read_clock, list(probes.values())[:MAX_CLOCKS]))
    return [reading for reading in readings if reading is not None]


async def _read_clock(probe: HttpProbe) -> ClockReading | None:
    request = probe.build_request(probe.url.target, method=probe.method, needs="head")
    began_s = time.time()
    try:
        async with asyncio.timeout(REQUEST_TIMEOUT_S):
            headers = (await probe.send(request)).headers
    except (OSError, TimeoutError):
        return None  # the check says why
    finally:
        probe.close()
    return clock_reading(probe.url.host_port, headers, (began_s + time.time()) / 2)


def clock_reading(source: str, headers: Mapping[str, str], now_s: float) -> ClockReading | None:
    """None if the answer has no date. The answer of a cache has the date at which it was stored, and its age."""
    try:
        date_s = parsedate_to_datetime(headers.get("date", "")).timestamp()
        age_s = int(headers.get("age", "0"))
    except (ValueError, OverflowError):
        return None
    return ClockReading(source, now_s - (date_s + age_s + 0.5))  # a date is half a second old on average


# ---- alert targets


class AlertTarget(NamedTuple):
    path: KeyPath
    name: str
    host: str  # empty: its URL names none
    port: int | None
    client: Http1Client | None  # None: a target of Apprise
    scheme: str


def alert_targets(settings: Settings, source: Source) -> Iterator[AlertTarget]:
    if settings.notify is None:
        return
    from svcnode.notify.targets import AppriseTarget

    for path, route in zip(_target_paths(source), settings.notify.routes, strict=True):
        if isinstance(route.target, AppriseTarget):
            host, port = route.target.endpoint or ("", None)
            yield AlertTarget(path, route.name, host, port, None, "")
        else:
            yield _http_target(path, route.name, route.target.options)  # type: ignore[attr-defined]
    if (heartbeat := settings.notify.heartbeat) is not None:
        yield _http_target(("notify", "heartbeat"), heartbeat.name, heartbeat.options)


def _http_target(path: KeyPath, name: str, client: Http1Client) -> AlertTarget:
    url = client.url
    return AlertTarget(path, name, url.host, url.port, client, client.http_scheme)


def _target_paths(source: Source) -> Iterator[KeyPath]:
    """In the order of the routes."""
    from svcnode.config.tables import NotifyTable

    for key in NotifyTable.target_keys:
        given = source.data["notify"].get(key, [])
        yield from (
            (("notify", key, index) for index in range(len(given))) if isinstance(given, list) else [("notify", key)]
        )


async def try_targets(targets: Iterable[AlertTarget]) -> list[TargetProblem]:
    problems = await asyncio.gather(*map(_try_target, targets))
    return [problem for problem in problems if problem is not None]


async def _try_target(target: AlertTarget) -> TargetProblem | None:
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await _connect(target)
    except TimeoutError:
        text, code = f"no connection within {CONNECT_TIMEOUT_S:g} s", ReasonCode.TIMEOUT
    except OSError as exc:
        text, code = connection_error_text(exc), code_for_os_error(exc)
    else:
        return None
    return TargetProblem(target.path, target.name, text, code)


async def _connect(target: AlertTarget) -> None:
    if target.client is not None:
        request = target.client.build_request(target.client.url.target, method="POST")
        transport, _ = await target.client.connect(request, asyncio.Protocol)
    elif target.host and target.port:
        transport, _ = await TcpEndpoint.of(target.host, target.port).connect(asyncio.Protocol)
    elif target.host and not is_ip_address(target.host):
        await resolve_host(target.host)
        return
    else:
        return
    transport.abort()


def targets(subject: Subject) -> Iterator[Finding]:
    for path, name, text, reason in subject.evidence.target_problems:
        if reason in _NAME_CODES:
            code, fix = Code.TARGET_UNRESOLVED, "Correct the host in its URL, or the name servers of this machine"
        elif reason.startswith("tls"):
            code, fix = Code.TARGET_TLS_FAILED, "Renew the certificate of the target, or name its authority with ca"
        else:
            code, fix = (
                Code.TARGET_UNREACHABLE,
                "Check that it runs, and the firewalls in between; then: svcnode notify-test",
            )
        yield subject.finding(code, Level.FAULT, f"no connection to the alert target {name}: {text}", fix, path)
    for target in alert_targets(subject.settings, subject.source):
        if target.scheme == "http" and _is_public(target.host, subject.evidence.lookups):
            what = f"alerts to {target.name} go through the Internet without TLS, with the keys of the target"
            yield subject.finding(Code.TARGET_UNENCRYPTED, Level.WARNING, what, "Use https://", target.path)


def _is_public(host: str, lookups: Mapping[str, Lookup]) -> bool:
    addresses = [host] if is_ip_address(host) else lookups[host].addresses if host in lookups else ()
    return any(address_kind(address) == "public" for address in addresses)


# ---- services


def services(subject: Subject) -> Iterator[Finding]:
    from svcnode.core.model import Outcome
    from svcnode.core.remedies import advice_text, advised_code

    kinds = {
        Outcome.NOT_READY: (Code.SERVICE_NOT_READY, Level.WARNING),
        Outcome.FAILED: (Code.SERVICE_FAILED, Level.FAULT),
        Outcome.UNKNOWN: (Code.SERVICE_UNKNOWN, Level.WARNING),
    }
    by_id = {service.id: (path, service.definition.probe_config) for path, service in subject.services()}
    for service_id, verdict, _ in subject.evidence.checked:
        path, config = by_id[service_id]
        if verdict.outcome not in kinds or config is None or verdict.code == ReasonCode.DRIVER_MISSING:
            continue
        code, level = kinds[verdict.outcome]
        advised = advised_code(_code_of(verdict), is_probed=True, is_failure=verdict.outcome is Outcome.FAILED)
        fix = advice_text(advised, service_id, config.probe.kind, config.probe.display_url, config.schedule.timeout_s)
        yield subject.finding(code, level, verdict.reason or verdict.outcome.value, fix, path and (*path, "probe"))


def _code_of(verdict: Verdict) -> str:
    return verdict.code or ReasonCode.OTHER
