"""What a source has found."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from svcnode.core.model import Verdict


class FoundReplica(NamedTuple):
    """A process that serves the interface of a node."""

    node: str  # its name; "" if only the URL is known
    replica: str  # its name in the registry, or its host and port; "" stands for the node as a whole
    url: str = ""  # of its interface; "" if it is not known
    unchecked: Verdict | None = None  # set without a URL: its status, and why

    @property
    def id(self) -> str:
        return "/".join(filter(None, (self.node, self.replica)))
