"""Which node answers on a control socket.

The default path of the socket is made from the name of the node. So with two nodes of one name, a command finds the
socket of the first one, whichever of the two configurations it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from svcnode.control.client import NODE, ControlClient
from svcnode.core.errors import ControlUnreachableError

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.control.client import ControlRequest
    from svcnode.control.types import NodeDocument
    from svcnode.core.units import Duration

D = TypeVar("D")


class ConfiguredControlClient(ControlClient):
    """Found the socket in a configuration file, and acts only on the node that runs with this file.

    It asks before every request: another node may have started at the socket since the last one. None stands for a
    command without a file, which takes the node that is there.
    """

    def __init__(self, path: str | Path, file: Path | None, *, timeout: Duration, by: str = "") -> None:
        super().__init__(path, timeout=timeout, by=by)
        self._file = file

    def _send(self, request: ControlRequest[D]) -> D:
        owner = super()._send(NODE)
        if not runs_with(owner, self._file):
            raise ControlUnreachableError(
                f"the control socket {self.path} is that of another node: {owner_text(owner)}, while the configuration "
                f"here is {self._file}; set another name in [node], or another listen in [control], in one of the two; "
                f"to change the node that runs, add --socket {self.path}"
            )
        return super()._send(request)


def runs_with(owner: NodeDocument, file: Path | None) -> bool:
    """Whether the node runs with this file. An older node does not say what it runs with."""
    if file is None or "config_file" not in owner:
        return True
    try:
        return owner["config_file"] is not None and file.samefile(owner["config_file"])
    except OSError:
        return False


def owner_text(owner: NodeDocument) -> str:
    file = owner.get("config_file") or "without a configuration file"
    return f'"{owner["node_name"]}" (process {owner.get("process_id", "unknown")}, {file})'
