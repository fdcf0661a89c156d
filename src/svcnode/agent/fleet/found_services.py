"""Keeps the services of the node equal to the replicas that were found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from svcnode.agent.fleet.sources import ABSENT, make_source
from svcnode.config.fleet import SERVICE_ID, FleetSettings
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import SvcnodeError
from svcnode.core.model import Verdict
from svcnode.core.redaction import redacted
from svcnode.core.text import join_first
from svcnode.core.url import Url
from svcnode.node.definition import Definition, define
from svcnode.probes.base import Probe
from svcnode.probes.svc import SvcProbe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.agent.fleet.found import FoundReplica
    from svcnode.agent.fleet.sources import FleetSource
    from svcnode.node.definition import ServiceOptions
    from svcnode.node.node_state import NodeState

SEARCH_TIMEOUT = 0.8  # of the interval
MAX_LISTED_IDS = 3


class _FleetService(NamedTuple):
    found: FoundReplica
    definition: Definition


class FleetServices:
    """The service `fleet`, and one for each replica. `ids` has those that are registered, for other service lists.

    Not thread-safe: used on the event loop of the agent.
    """

    def __init__(self, node: NodeState, ids: dict[str, bool]) -> None:
        self._node = node
        self._ids = ids  # the values are False: these services do not report by themselves
        self._services: dict[str, _FleetService] = {}

    def configure(self, settings: FleetSettings) -> None:
        """Search with these settings from now on. What was found before stays until the next search."""
        self._settings = settings
        probe = FleetProbe(settings=settings, services=self, source=make_source(settings))
        definition = define(
            SERVICE_ID,
            name="Fleet",
            description="Search for the nodes of the fleet",
            probe=probe,
            interval=settings.refresh_interval_s,
            timeout=settings.refresh_interval_s * SEARCH_TIMEOUT,
            start_period=0.0,
        )
        if SERVICE_ID in self._ids:
            self._node.replace(definition)
        else:
            self._node.add(definition)
            self._ids[SERVICE_ID] = False
        for service in list(self._services.values()):
            self._set(service.found)

    def remove_all(self) -> None:
        for service_id in list(self._ids):
            self._node.deregister(service_id)
        self._ids.clear()
        self._services.clear()

    @property
    def is_empty(self) -> bool:
        """Whether no search has found anything so far: a source has at least one replica."""
        return not self._services

    def apply(self, found: Iterable[FoundReplica]) -> list[str]:
        """Returns the ids that other services of the node have, or that are not valid."""
        if SERVICE_ID not in self._ids:  # a reload has ended the search while it was reading
            return []
        replicas = {replica.id: replica for replica in found}
        refused = [replica.id for replica in replicas.values() if not self._update(replica)]
        # Last: otherwise the node may be healthy for a moment, without its failed services.
        for service_id in self._services.keys() - replicas.keys():
            self._node.deregister(service_id)
            del self._services[service_id], self._ids[service_id]
        return refused

    def _update(self, replica: FoundReplica) -> bool:
        current = self._services.get(replica.id)
        if current is not None and (current.found == replica or _is_still_checked(current.found, replica)):
            return True
        if current is None and replica.id in self._node:
            return False
        try:
            self._set(replica)
        except SvcnodeError:  # the id is too long
            return False
        return True

    def _set(self, replica: FoundReplica) -> None:
        definition, unchecked = self._define(replica)
        current = self._services.get(replica.id)
        if current is None:
            self._node.add(definition)
            self._ids[replica.id] = False
        elif current.definition != definition:
            self._node.replace(definition)
        self._services[replica.id] = _FleetService(replica, definition)
        if unchecked is not None:
            self._node.report(replica.id, unchecked)

    def _define(self, replica: FoundReplica) -> tuple[Definition, Verdict | None]:
        """With a probe, or with a status and the reason why there is none."""
        about: ServiceOptions = {"name": replica.replica or replica.node, "group": replica.node}
        options = self._settings.options
        unchecked = replica.unchecked
        if unchecked is None:
            try:
                probe = SvcProbe(Url.parse(f"svc+{replica.url}"), **self._settings.probe_options)
                return define(replica.id, **options | about | {"probe": probe}), None
            except SvcnodeError as exc:
                unchecked = Verdict.not_ready(f"not checked: {exc}", code=ReasonCode.NO_EVIDENCE)
        if "impact" in options:
            about["impact"] = options["impact"]
        return define(replica.id, **about), unchecked


def _is_still_checked(current: FoundReplica, found: FoundReplica) -> bool:
    """A replica that has left the registry is checked at its last URL: the checks say whether it is gone."""
    return bool(current.url) and found.unchecked == ABSENT


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FleetProbe(Probe):
    """Searches for nodes in each check. Ready if it found all nodes, and this node could register them."""

    settings: FleetSettings
    services: FleetServices = field(compare=False)
    source: FleetSource = field(compare=False)

    @property
    def kind(self) -> str:
        return SERVICE_ID

    @property
    def display_url(self) -> str:
        return redacted(self.settings.location)

    @property
    def has_found_nodes(self) -> bool:
        return not self.services.is_empty

    async def check(self) -> Verdict:
        found = await self.source.read()
        if isinstance(found, Verdict):
            return found
        refused = self.services.apply(found)
        if refused:
            ids = join_first(refused, MAX_LISTED_IDS)
            text = f"not listed, because their id is too long, or another service of the node has it: {ids}"
            return Verdict.not_ready(text, code=ReasonCode.OTHER)
        nodes = len({replica.node or replica.id for replica in found})
        return Verdict.ready(f"nodes: {nodes}, replicas: {len(found)}")
