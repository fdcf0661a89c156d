"""The services of the demo, as tables of a configuration file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from svcnode.cli.demo.servers import HOST, Cache, Chain, DemoServer, Indexer, Peer, Storage

if TYPE_CHECKING:
    from collections.abc import Mapping

INTERVAL_S = 1.0
TIMEOUT_S = 0.5
MAX_LATENCY_S = 0.2
START_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoService:
    id: str
    server_class: type[DemoServer]
    name: str
    description: str
    url: str  # with {address} for host:port
    options: Mapping[str, Any] = field(default_factory=dict)
    impact: str = "partial"
    max_latency_s: float | None = None

    def config_table(self, port: int, speed: float) -> dict[str, Any]:
        """The [[services]] table."""
        table: dict[str, Any] = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "impact": self.impact,
            "probe": {"url": self.url.format(address=f"{HOST}:{port}"), **self.options},
        }
        if self.max_latency_s is not None:
            table["max_latency"] = duration_text(self.max_latency_s / speed)
        return table


SERVICES = (
    DemoService(
        id="chain",
        server_class=Chain,
        name="Execution client",
        description="Ethereum JSON-RPC; not ready while it syncs",
        url="ethereum+http://{address}",
        impact="critical",
    ),
    DemoService(
        id="indexer",
        server_class=Indexer,
        name="Indexer",
        description="Follows the chain; reports when it is behind",
        url="http://{address}/status",
        options={"starting_json": {"/state": "syncing"}, "json": {"/state": "ready"}},
    ),
    DemoService(
        id="storage",
        server_class=Storage,
        name="Storage daemon",
        description="IPFS; needs at least 3 peers",
        url="ipfs+http://{address}",
        options={"min_peers": 3},
    ),
    DemoService(
        id="cache",
        server_class=Cache,
        name="Cache",
        description="memcached; not ready if slower than 200 ms",
        url="memcached://{address}",
        max_latency_s=MAX_LATENCY_S,
    ),
    DemoService(
        id="peer",
        server_class=Peer,
        name="Peer",
        description="Another node of this interface",
        url="svc+http://{address}",
    ),
)


def defaults(speed: float) -> dict[str, str]:
    """The [defaults] table."""
    return {
        "interval": duration_text(INTERVAL_S / speed),
        "timeout": duration_text(TIMEOUT_S / speed),
        "start_period": duration_text(START_PERIOD_S / speed),
    }


def duration_text(seconds: float) -> str:
    return f"{1000 * seconds:.3f}ms"
