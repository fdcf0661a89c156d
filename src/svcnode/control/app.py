"""The application on the control socket. It loads the store and the API when something is stored, or when asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from svcnode.api.spec import Request, Response
    from svcnode.control.api import ControlApi
    from svcnode.control.changes import ChangeRequest
    from svcnode.control.service_documents import Define
    from svcnode.node.definition import PushAccess, ServiceList
    from svcnode.node.node_state import NodeState
    from svcnode.sharing.work import WorkClient


class ControlApp:
    """`reload` reads the configuration again and returns what has changed."""

    def __init__(
        self,
        node: NodeState,
        define_service: Define,
        reload: Callable[[], Coroutine[None, None, str]],
        service_list: ServiceList | None = None,
        work: WorkClient | None = None,
    ) -> None:
        """`work` asks all replicas of a node on several machines for a drain or maintenance."""
        self._node = node
        self._define_service = define_service
        self._reload = reload
        self._service_list = service_list
        self._work = work
        self.on_registration: Callable[[], None] = lambda: None  # after services were registered, replaced or removed
        self.store_path: Path | None = None  # of the settings; set before anything is loaded
        self.runs_with: Mapping[str, Any] = {}  # the file and the addresses of the settings, as `GET /v1` shows them
        self._configured: Mapping[str, bool] = {}
        self._is_stopping = False
        self._api: ControlApi | None = None
        self._loading = asyncio.Lock()

    def matches(self, path: bytes) -> bool:
        return True

    def rejection(self, request: Request) -> Response | None:
        return None  # the socket decides who may connect

    async def handle(self, request: Request) -> Response:
        return await (await self._load()).handle(request)

    async def change(self, change: ChangeRequest) -> None:
        await (await self._load()).resources.change(change)

    def push_access(self, service_id: str) -> PushAccess | None:
        """Of a registered service."""
        return None if self._api is None else self._api.resources.services_by_program.push_access(service_id)

    @property
    def receives_pushes(self) -> bool:
        """Whether a registered service does."""
        return self._api is not None and self._api.resources.services_by_program.receives_pushes

    @property
    def is_loaded(self) -> bool:
        return self._api is not None

    async def load_stored(self) -> None:
        if self.store_path is not None and _may_exist(self.store_path):
            await self._load()

    def set_configured(self, services: Mapping[str, bool]) -> None:
        """The services of the file: whether they report by themselves."""
        self._configured = services
        if self._api is not None:
            self._api.resources.set_configured(services)

    def apply_all(self, *, redefine: bool) -> None:
        """After the services of the file have changed; `redefine`: so has what other definitions depend on."""
        if self._api is not None:
            self._api.resources.apply_all()
            if redefine:
                self._api.resources.redefine_all()

    def stop(self) -> None:
        """The node is stopping, and stays drained."""
        self._is_stopping = True
        if self._api is not None:
            self._api.resources.stop()

    async def close(self) -> None:
        if self._api is not None:
            await self._api.resources.close()

    async def _load(self) -> ControlApi:
        async with self._loading:
            if self._api is None:
                self._api = await self._make_api()
                self.on_registration()
        return self._api

    async def _make_api(self) -> ControlApi:
        from svcnode.control.api import ControlApi
        from svcnode.control.resources import Resources
        from svcnode.control.store import ControlStore

        assert self.store_path is not None
        resources = Resources(self._node, ControlStore(self.store_path), self._define_service, self._service_list)
        resources.on_registration = self.on_registration
        resources.set_configured(self._configured)
        if self._is_stopping:
            resources.stop()
        await resources.start()
        return ControlApi(self._node, resources, self._reload_whole, self._work, runs_with=lambda: self.runs_with)

    async def _reload_whole(self) -> str:
        """A client that disconnects does not end a reload halfway."""
        return await asyncio.shield(asyncio.create_task(self._reload(), name="reload by the control socket"))


def _may_exist(path: Path) -> bool:
    """False only if there is certainly no file."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True
