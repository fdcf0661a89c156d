"""What a node tells of itself, as values. Who it is and how it is are those of the core."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.core.model import Identity

if TYPE_CHECKING:
    from svcnode.core.model import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class BackingService:
    """A service as a node lists it; `status` is None where the node tells none, or none that there is."""

    id: str
    name: str
    description: str
    status: Status | None


def told_identity(node_name: str, spec_version: str, node_version: str) -> Identity:
    """An identity in the words of another node, which may not keep to the forms that ours keeps to."""
    identity = object.__new__(Identity)
    object.__setattr__(identity, "node_name", node_name)
    object.__setattr__(identity, "spec_version", spec_version)
    object.__setattr__(identity, "node_version", node_version)
    return identity
