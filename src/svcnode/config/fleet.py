"""The settings of a node whose services are other nodes: the table [fleet]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svcnode.config.sharing import registry_address, registry_tls
from svcnode.node.definition import define
from svcnode.probes import make_probe

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from svcnode.config.sources import Source
    from svcnode.config.tables import FleetTable
    from svcnode.core.address import RegistryAddress
    from svcnode.net.tls import TlsOptions
    from svcnode.node.definition import ServiceOptions

SERVICE_ID = "fleet"
CONNECTION_KEYS = ("password", "tls", "ca", "client_certificate", "client_key")  # of the registry
# The scheme is the one that all options may be used with.
EXAMPLE_URL = "svc+https://node.example"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    registry: RegistryAddress | None  # None: the nodes are in a file
    tls: TlsOptions | None  # of the connections to the registry; None: without TLS
    file: Path | None  # None: the nodes are in a registry
    refresh_interval_s: float
    options: ServiceOptions  # of all nodes that are found
    probe_options: Mapping[str, Any]  # of their svc+http probes

    @property
    def location(self) -> str:
        return str(self.file if self.registry is None else self.registry)


def fleet_from(
    fleet: FleetTable, source: Source, options: ServiceOptions, *, is_timing_right: bool
) -> FleetSettings | None:
    """None if there is an error. `options` are those of the services, which include [defaults]."""
    is_file = "file" in fleet
    if not fleet.is_right("registry", "file"):
        return None
    if ("registry" in fleet) == is_file:
        both_or_neither = "both are" if is_file else "neither is"
        source.report(("fleet",), f"needs exactly one of registry and file; {both_or_neither} set")
    elif is_file:
        for key in fleet.given_keys(CONNECTION_KEYS):
            source.report(
                ("fleet", key), "only works with a registry; for the nodes of a file, set it in [fleet.probe]"
            )
    if is_timing_right:
        with source.reporting("fleet"):
            define("example", **options | {"probe": make_probe(EXAMPLE_URL)})
    is_registry = "registry" in fleet and not is_file
    return FleetSettings(
        registry=registry_address(fleet, "fleet", source) if is_registry else None,
        tls=registry_tls(fleet, "fleet", source) if is_registry else None,
        file=fleet.file,
        refresh_interval_s=fleet.refresh_interval,
        options=options,
        probe_options=_probe_options(fleet.probe or {}, source),
    )


def _probe_options(given: Mapping[str, Any], source: Source) -> Mapping[str, Any]:
    """The options are parsed once, so that their secrets are not read again for each node."""
    of_one_node = [key for key in ("url", "service") if key in given]
    for key in of_one_node:
        source.report(("fleet", "probe", key), "cannot be the same for all nodes; remove this key")
    others = {key: value for key, value in given.items() if key not in of_one_node}
    with source.reporting("fleet", "probe"):
        probe = make_probe({"url": EXAMPLE_URL, **others}, environ=source.environ)
        return {option: getattr(probe, option) for option in others}
    return {}
