"""The settings of a node whose services are other nodes: the table [fleet]."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from svcnode.config.sharing import registry_address, registry_tls
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import validate_text
from svcnode.core.units import parse_duration_s
from svcnode.definition import define
from svcnode.fleet import SERVICE_ID, FleetSettings
from svcnode.probes import make_probe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.config.schema import FileTable, FleetTable
    from svcnode.config.sources import Source
    from svcnode.definition import ServiceOptions

DEFAULT_REFRESH_INTERVAL, MIN_REFRESH_INTERVAL_S, MAX_REFRESH_INTERVAL_S = "10s", 1.0, 3600.0
CONNECTION_KEYS = ("password", "tls", "ca", "client_certificate", "client_key")  # of the registry
# The scheme is the one that all options may be used with.
EXAMPLE_URL = "svc+https://node.example"


def fleet_from(table: FileTable, source: Source, options: ServiceOptions) -> FleetSettings:
    """`options`: of the services, with those of [defaults]."""
    fleet = table["fleet"]
    if "sharing" in table:
        raise source.error(("fleet",), "a node with [sharing] cannot have [fleet]; use another node for the fleet")
    for index, service in enumerate(table.get("services", [])):
        if service["id"] == SERVICE_ID:
            raise source.error(("services", index, "id"), f'"{SERVICE_ID}" is the search of [fleet]; use another id')
    if ("registry" in fleet) == ("file" in fleet):
        both_or_neither = "both are" if "file" in fleet else "neither is"
        raise source.error(("fleet",), f"needs exactly one of registry and file; {both_or_neither} set")
    probe_options = _probe_options(fleet, source)
    with source.error_context("fleet"):
        define("example", **options | {"probe": make_probe(EXAMPLE_URL)})
    is_file = "file" in fleet
    return FleetSettings(
        registry=None if is_file else registry_address(fleet, "fleet", source),
        tls=None if is_file else registry_tls(fleet, "fleet", source),
        file=_file(fleet, source) if is_file else None,
        refresh_interval_s=_refresh_interval_s(fleet, source),
        options=options,
        probe_options=probe_options,
    )


def _refresh_interval_s(fleet: FleetTable, source: Source) -> float:
    with source.error_context("fleet", "refresh_interval"):
        interval_s = parse_duration_s(fleet.get("refresh_interval", DEFAULT_REFRESH_INTERVAL))
        if not MIN_REFRESH_INTERVAL_S <= interval_s <= MAX_REFRESH_INTERVAL_S:
            raise InvalidValueError("must be from 1s to 1h")
    return interval_s


def _file(fleet: FleetTable, source: Source) -> Path:
    for key in (key for key in CONNECTION_KEYS if key in fleet):
        raise source.error(("fleet", key), "is for a registry; for the nodes, write it in [fleet.probe]")
    with source.error_context("fleet", "file"):
        validate_text("the path", fleet["file"])
    return Path(fleet["file"])


def _probe_options(fleet: FleetTable, source: Source) -> Mapping[str, Any]:
    """Parsed once, so that no secret is read again for each node."""
    given = fleet.get("probe", {})
    for key in (key for key in ("url", "service") if key in given):
        raise source.error(("fleet", "probe", key), "is not for all nodes; remove this key")
    with source.error_context("fleet", "probe"):
        probe = make_probe({"url": EXAMPLE_URL, **given}, environ=source.environ)
    return {option: getattr(probe, option) for option in given}
