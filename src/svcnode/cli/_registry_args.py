"""The arguments of commands that use the registry of a node on several machines, and the clients made from them."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
import threading
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

from svcnode.cli.output import show
from svcnode.config import Override, find_node_file, load_registry
from svcnode.config.registration import define_registered
from svcnode.control.all_replicas import AllReplicas
from svcnode.control.changes import DRAIN, maintenance_path, planned_maintenance_path
from svcnode.control.document_kind import author_of
from svcnode.core.errors import ControlError, InvalidValueError, RegistryError, RegistryPermissionError
from svcnode.core.model import validate_service_id, validate_text
from svcnode.core.text import join_first, sanitize
from svcnode.sharing.client import RegistryClient, node_names
from svcnode.sharing.etcd import EtcdClient
from svcnode.sharing.format import LOST_OWNER, MAX_NAME_CHARS, REPLICA_OWNER, node_root, service_document
from svcnode.sharing.work import WorkClient

if TYPE_CHECKING:
    import argparse
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from svcnode.config.sharing import RegistrySettings
    from svcnode.control.types import DrainDocument, MaintenanceDocument, PlannedMaintenanceDocument

T = TypeVar("T")

DEFAULT_OWNER_SUFFIX = "-client"
MAX_NAMED_NODES = 10


def registry_settings(arguments: argparse.Namespace) -> RegistrySettings:
    """With --registry, only the environment is read, not the file.

    The file may belong to another node, whose password must not be sent to this registry.
    """
    if arguments.registry is None:
        return load_registry(find_node_file(arguments.config), os.environ)
    return load_registry(None, os.environ, [Override(("sharing", "registry"), arguments.registry, "--registry")])


def valid_name(flag: str, name: str) -> str:
    """A name that becomes a part of keys."""
    try:
        validate_text("the name", name)
    except InvalidValueError as exc:
        raise InvalidValueError(f"{flag}: {exc}") from exc
    if len(name) > MAX_NAME_CHARS:
        raise InvalidValueError(f"{flag}: a name has at most {MAX_NAME_CHARS} characters; this one has {len(name)}")
    return name


@asynccontextmanager
async def open_registry(arguments: argparse.Namespace) -> AsyncIterator[tuple[EtcdClient, RegistrySettings]]:
    settings = registry_settings(arguments)
    with registry_errors():
        async with EtcdClient.at(settings.registry, settings.tls) as etcd:
            yield etcd, settings


@contextmanager
def registry_errors() -> Iterator[None]:
    """Says that an error is about the registry. The errors of etcd name only the endpoint."""
    try:
        yield
    except RegistryError as exc:
        raise type(exc)(f"registry: {exc}") from exc


def service_client(arguments: argparse.Namespace) -> BlockingRegistryClient:
    given = getattr(arguments, "owner", None)
    owner = f"{socket.gethostname()}{DEFAULT_OWNER_SUFFIX}" if given is None else given
    if valid_name("--owner", owner).startswith((REPLICA_OWNER, LOST_OWNER)):
        raise InvalidValueError(
            f'--owner: must not begin with "{REPLICA_OWNER}" or "{LOST_OWNER}", which are reserved for replicas'
        )
    if arguments.node is None:
        raise InvalidValueError("--registry: which node? Name it with --node")
    settings = registry_settings(arguments)
    by = author_of({"by": arguments.by or os.environ.get("SUDO_USER", ""), "user": user_name()})
    return BlockingRegistryClient(settings, valid_name("--node", arguments.node), owner, by)


def user_name() -> str:
    """The user of this process; empty if it has no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


class BlockingRegistryClient:
    """The calls of `svcnode.control.ControlClient` that work without a replica. Thread-safe.

    They register and report services, and drain and maintain all replicas.
    """

    def __init__(self, settings: RegistrySettings, node: str, owner: str, by: str = "") -> None:
        self._prefix, self._node = settings.registry.prefix, node
        self._etcd = EtcdClient.at(settings.registry, settings.tls)
        root = node_root(self._prefix, node)
        self._client = RegistryClient(self._etcd, root, owner)
        self._all = AllReplicas(WorkClient(lambda: nullcontext(self._etcd), root, owner))
        self._by = by
        self._is_node_checked = False
        self._lock = threading.Lock()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_open:
            self._runner.run(self._etcd.__aexit__())
        self._runner.close()

    def register(self, service_id: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
        definition = define_registered(service_id, options, None, os.environ).definition
        document = service_document(service_id, definition.options or {}, 0)
        revision = self._call(lambda: self._client.register(service_id, document))
        self._check_node()
        return {"id": service_id, "revision": revision}

    def deregister(self, service_id: str) -> None:
        validate_service_id(service_id)
        self._call(lambda: self._client.deregister(service_id))

    def beat(self, service_id: str, status: str = "up", reason: object = "", *, code: str | None = None) -> None:
        validate_service_id(service_id)
        self._call(lambda: self._client.report(service_id, status, reason, code))

    # ---- all replicas: that is what they are about, so `all_replicas` changes nothing

    def drain(self, reason: str = "", *, all_replicas: bool = True) -> None:
        self._put(DRAIN, {"reason": reason})

    def undrain(self, reason: str = "", *, all_replicas: bool = True) -> None:
        self._call(lambda: self._all.delete(DRAIN))

    def drained(self, *, all_replicas: bool = True) -> DrainDocument:
        return cast("DrainDocument", self._get(DRAIN))

    def maintain(
        self, service_id: str | None, duration: str, *, reason: str = "", all_replicas: bool = True
    ) -> MaintenanceDocument:
        value = {"duration": duration, "reason": reason}
        return cast("MaintenanceDocument", self._put(maintenance_path(service_id), value))

    def maintenance(self, service_id: str | None = None, *, all_replicas: bool = True) -> MaintenanceDocument:
        return cast("MaintenanceDocument", self._get(maintenance_path(service_id)))

    def end_maintenance(self, service_id: str | None = None, *, reason: str = "", all_replicas: bool = True) -> None:
        self._call(lambda: self._all.delete(maintenance_path(service_id)))

    def plan_maintenance(
        self, service_id: str | None, begin: str, end: str, *, reason: str = "", all_replicas: bool = True
    ) -> PlannedMaintenanceDocument:
        value = {"from": begin, "until": end, "reason": reason}
        return cast("PlannedMaintenanceDocument", self._put(planned_maintenance_path(service_id), value))

    def planned_maintenance(
        self, service_id: str | None = None, *, all_replicas: bool = True
    ) -> PlannedMaintenanceDocument:
        return cast("PlannedMaintenanceDocument", self._get(planned_maintenance_path(service_id)))

    def cancel_maintenance(self, service_id: str | None = None, *, reason: str = "", all_replicas: bool = True) -> None:
        self._call(lambda: self._all.delete(planned_maintenance_path(service_id)))

    def _get(self, path: str) -> dict[str, Any]:
        found = self._call(lambda: self._all.get(path))
        if found is None:
            raise ControlError(404, "Not found")
        return found

    def _put(self, path: str, value: dict[str, Any]) -> dict[str, Any]:
        fields = self._call(lambda: self._all.put(path, {**value, "by": self._by}))
        self._check_node()
        return fields

    def _check_node(self) -> None:
        """Warns once if the registry has no such node: it may come later, but its name may also be misspelled."""
        if not self._is_node_checked:
            self._is_node_checked = True
            with suppress(RegistryError):
                if not self._call(self._client.has_replica):
                    text = (
                        f'the registry has no replica of the node "{self._node}"; is the name right? '
                        f"Nodes in it: {self._other_nodes()}"
                    )
                    show(f"svcnode: warning: {sanitize(text)}", sys.stderr)

    def _other_nodes(self) -> str:
        try:
            names = self._call(lambda: node_names(self._etcd, self._prefix))
        except RegistryPermissionError:
            return "unknown, this user may not list them"
        return join_first([name for name in names if name != self._node], MAX_NAMED_NODES) or "no others"

    def _call(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        with self._lock, registry_errors():
            return self._runner.run(self._call_connected(call))

    async def _call_connected(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if not self._is_open:  # not before: the command of `run` does not wait for the registry
            await self._etcd.__aenter__()
            self._is_open = True
        return await call()
