"""A node whose services are other nodes, found in a registry or a file: one page and one list for a fleet.

    registry or file ──► FleetSource ──► FleetProbe ──► FleetServices ──► services of the node, with svc+http probes

The service `fleet` is the search itself: each of its checks reads the source again. If the source cannot be read, that
service is not Up, and the nodes found before stay in the list and are checked.

    sources    where the nodes are: a registry or a file
    services   keeps the services of the node equal to what was found
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from svcnode.core.address import RegistryAddress
    from svcnode.core.model import Verdict
    from svcnode.definition import ServiceOptions
    from svcnode.net.tls import TlsOptions

SERVICE_ID = "fleet"


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


class FoundReplica(NamedTuple):
    """A process that serves the interface of a node."""

    node: str  # its name; "" if only the URL is known
    replica: str  # its name in the registry, or its host and port; "" stands for the node as a whole
    url: str = ""  # of its interface; "" if it is not known
    unchecked: Verdict | None = None  # set without a URL: its status, and why

    @property
    def id(self) -> str:
        return "/".join(filter(None, (self.node, self.replica)))
