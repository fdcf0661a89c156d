"""The node as a replica of a node on several machines."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from svcnode.core.errors import ConfigError

if TYPE_CHECKING:
    from svcnode.config import Settings
    from svcnode.node.node_state import NodeState
    from svcnode.sharing import SharingSettings
    from svcnode.sharing.replica import Replica

RELOADABLE = {"observers", "tls"}  # of [sharing]; and the login of the registry


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
        raise ConfigError("renaming a node with [sharing] needs a restart: all replicas of a node have its name")
    for field in fields(new.sharing):
        if field.name not in RELOADABLE and _value(old.sharing, field.name) != _value(new.sharing, field.name):
            key = field.name.removesuffix("_s")
            what = "the endpoints or the prefix in registry" if key == "registry" else key
            raise ConfigError(f"changing {what} in [sharing] needs a restart of the node", key=f"sharing.{key}")


def _value(sharing: SharingSettings, field: str) -> object:
    """Of the registry, only where it is."""
    return sharing.registry[:2] if field == "registry" else getattr(sharing, field)


def apply_sharing(replica: Replica | None, sharing: SharingSettings | None) -> None:
    if replica is not None and sharing is not None:
        replica.services.set_default_observers(sharing.observers)
        replica.set_access(sharing)
