"""Where the nodes of a fleet are: the replicas in a registry, or the lines of a file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from svcnode.agent.fleet.found import FoundReplica
from svcnode.core.address import parse_node_address
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import (
    InvalidValueError,
    RegistryError,
    RegistryLoginError,
    RegistryPermissionError,
    RegistryUnreachableError,
)
from svcnode.core.model import Verdict, validate_text
from svcnode.net.files import read_small_file
from svcnode.net.os_errors import verdict_for_file_error
from svcnode.net.threads import STILL_RUNNING, DaemonCall
from svcnode.sharing.format import Ignored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from svcnode.config.fleet import FleetSettings
    from svcnode.sharing.client import NodeReplicas

MAX_FILE_BYTES = 4 * 1024**2
_REGISTRY_CODES: dict[type[RegistryError], ReasonCode] = {
    RegistryUnreachableError: ReasonCode.REGISTRY_LOST,
    RegistryLoginError: ReasonCode.AUTH_FAILED,
    RegistryPermissionError: ReasonCode.PERMISSION_DENIED,
}
NO_URL = Verdict.not_ready(
    "not checked: the replica has no URL; set url in [sharing] of that replica", code=ReasonCode.NO_EVIDENCE
)
ABSENT = Verdict.failed(
    "not in the registry: the replica was stopped, or its lease has expired; if it will not come back, run svcnode "
    "registry forget",
    code=ReasonCode.NOT_FOUND,
)
NO_REPLICA = Verdict.failed("no replica of this node is in the registry", code=ReasonCode.NOT_FOUND)


class FleetSource(Protocol):
    async def read(self) -> list[FoundReplica] | Verdict:
        """All replicas, at least one; or why they are not known."""


def make_source(settings: FleetSettings) -> FleetSource:
    if settings.file is not None:
        return FileSource(settings.file)
    return RegistrySource(settings)


# ---- a registry


class RegistrySource:
    def __init__(self, settings: FleetSettings) -> None:
        from svcnode.sharing.etcd import EtcdClient

        assert settings.registry is not None
        self._registry = settings.registry
        self._client = EtcdClient.at(settings.registry, settings.tls)

    async def read(self) -> list[FoundReplica] | Verdict:
        from svcnode.sharing.client import read_replicas

        try:
            async with self._client:
                nodes = await read_replicas(self._client, self._registry.prefix)
        except RegistryError as exc:
            return Verdict.failed(f"registry: {exc}", code=_REGISTRY_CODES.get(type(exc), ReasonCode.OTHER))
        found = [replica for name, replicas in nodes.items() for replica in found_replicas(name, replicas)]
        return found or Verdict.not_ready(f"no nodes in the registry {self._registry}", code=ReasonCode.NOT_FOUND)


def found_replicas(node: str, replicas: NodeReplicas) -> Iterator[FoundReplica]:
    """Those that are live, those that are absent and still define services, or the node itself if it has none."""
    for name, document in sorted(replicas.live.items()):
        if isinstance(document, Ignored):
            text = f"not checked: this node cannot use the replica's document in the registry: {document.reason}"
            yield FoundReplica(node, name, unchecked=Verdict.not_ready(text, code=ReasonCode.NO_EVIDENCE))
        else:
            yield FoundReplica(node, name, document.url, None if document.url else NO_URL)
    for name in sorted(replicas.absent):
        yield FoundReplica(node, name, unchecked=ABSENT)
    if replicas.service_count and not replicas.live and not replicas.absent:
        yield FoundReplica(node, "", unchecked=NO_REPLICA)


# ---- a file


class FileSource:
    """One node per line: its URL and, after a space, the name of the node."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._reader = DaemonCall("nodes of the fleet")

    async def read(self) -> list[FoundReplica] | Verdict:
        if self._reader.is_busy:
            return STILL_RUNNING
        try:
            content = await self._reader.call(partial(read_small_file, self._path, MAX_FILE_BYTES))
            return parse_node_list(content.decode("utf-8-sig"))
        except OSError as exc:
            return verdict_for_file_error(exc, str(self._path))
        except UnicodeDecodeError:
            problem = "not UTF-8 text"
        except InvalidValueError as exc:
            problem = str(exc)
        return Verdict.failed(f"{self._path}: {problem}", code=ReasonCode.UNEXPECTED_RESPONSE)


def parse_node_list(text: str) -> list[FoundReplica]:
    """Raises `InvalidValueError` for a line that is not valid, and without any node: the file may not be whole yet."""
    found: dict[str, FoundReplica] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        try:
            replica = _parse_line(content)
        except InvalidValueError as exc:
            raise InvalidValueError(f"line {number}: {exc}") from exc
        if replica.id in found:
            raise InvalidValueError(f'line {number}: duplicate node "{replica.id}"')
        found[replica.id] = replica
    if not found:
        raise InvalidValueError("the file has no nodes; write one URL per line")
    return list(found.values())


def _parse_line(content: str) -> FoundReplica:
    url, _, name = content.partition(" ")
    url, name = url.removeprefix("svc+"), name.strip()
    address = parse_node_address(url)
    if address.socket_path is not None:
        raise InvalidValueError("must be a URL with a host, such as http://10.0.0.5:8420, not a Unix socket")
    if name:
        validate_text("the name of a node", name)
    return FoundReplica(name, address.url.host_port, url if "://" in url else f"http://{url}")
