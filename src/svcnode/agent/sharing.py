"""The node as a replica of a node on several machines."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from svcnode.core.errors import ConfigError

if TYPE_CHECKING:
    from svcnode.config import Settings
    from svcnode.node.node_state import NodeState
    from svcnode.sharing.replica import Replica

RELOADABLE = {"observers"}  # of [sharing]


def make_replica(node: NodeState, settings: Settings) -> Replica | None:
    if settings.sharing is None:
        return None
    from svcnode.sharing.cache import FileCache
    from svcnode.sharing.replica import Replica

    path = settings.sharing.cache_path
    cache = None if path is None else FileCache(path)
    return Replica(node, settings.sharing, cache=cache, on_synced=node.overrides.started)


def check_sharing_change(old: Settings, new: Settings) -> None:
    """Before a reload: what the other replicas know this one by does not change while it runs."""
    if old.sharing is None or new.sharing is None:
        if old.sharing is not new.sharing:
            verb = "adding" if old.sharing is None else "removing"
            raise ConfigError(f"{verb} [sharing] needs a restart of the node")
        return
    if old.node_name != new.node_name:
        raise ConfigError("a new name of a node with [sharing] needs a restart: the replicas of a node share its name")
    for field in fields(new.sharing):
        if field.name not in RELOADABLE and getattr(old.sharing, field.name) != getattr(new.sharing, field.name):
            key = field.name.removesuffix("_s")
            raise ConfigError(f"a change of {key} in [sharing] needs a restart of the node", key=f"sharing.{key}")
