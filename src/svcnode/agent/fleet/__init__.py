"""A node whose services are other nodes, found in a registry or a file: one page and one list for a fleet.

    registry or file ──► FleetSource ──► FleetProbe ──► FleetServices ──► services of the node, with svc+http probes

The service `fleet` is the search itself: each of its checks reads the source again. If the source cannot be read, that
service is not Up, and the nodes found before stay in the list and are checked.

    sources    where the nodes are: a registry or a file
    found_services  keeps the services of the node equal to what was found
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.core.errors import ConfigError

if TYPE_CHECKING:
    from svcnode.agent.fleet.found_services import FleetServices
    from svcnode.config import Settings
    from svcnode.config.fleet import FleetSettings
    from svcnode.node.node_state import NodeState


class Fleet:
    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._services: FleetServices | None = None
        self._settings: FleetSettings | None = None
        self.ids: dict[str, bool] = {}  # of its services, which do not report by themselves

    def check_change(self, new: Settings) -> None:
        """Before a reload."""
        for service in new.services:
            if service.id in self.ids:
                raise ConfigError(
                    f'the fleet already has a service with the id "{service.id}"; use another id, or restart the node'
                )
        if new.fleet is not None:
            from svcnode.config.fleet import SERVICE_ID

            if SERVICE_ID not in self.ids and SERVICE_ID in self._node:
                raise ConfigError(
                    f'[fleet] needs the id "{SERVICE_ID}", but another service has it; deregister that one'
                )

    def apply(self, settings: FleetSettings | None) -> None:
        if settings == self._settings:
            return
        self._settings = settings
        if settings is None:
            assert self._services is not None
            self._services.remove_all()
            return
        if self._services is None:
            from svcnode.agent.fleet.found_services import FleetServices

            self._services = FleetServices(self._node, self.ids)
        self._services.configure(settings)
