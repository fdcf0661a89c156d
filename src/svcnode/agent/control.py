"""The control socket of the agent. The API and the store are loaded when there is something stored, or a request."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from svcnode.api.app import Mount
from svcnode.core.errors import ConfigError, ControlError, ListenError
from svcnode.core.text import os_error_text
from svcnode.server.sockets import bind_private, is_peer_allowed, remove_unix_socket

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping

    from svcnode.api.spec import Request, Response
    from svcnode.config import ControlSettings, Settings
    from svcnode.control.api import ControlApp
    from svcnode.definition import Definition
    from svcnode.node import Node
    from svcnode.server.server import HttpServer

log = logging.getLogger("svcnode")


class ControlSocket:
    """`reload` reads the configuration again and returns what has changed."""

    def __init__(self, node: Node, server: HttpServer, reload: Callable[[], Awaitable[str]]) -> None:
        self._node = node
        self._server = server
        self._reload = reload
        self._settings: Settings | None = None
        self._socket: socket.socket | None = None
        self._mount = Mount(self, keeps_body=True, admits=self._admits)
        self._app: ControlApp | None = None
        self._loading = asyncio.Lock()

    async def start(self, settings: Settings) -> None:
        """After the services of the file are applied."""
        self._settings = settings
        if settings.control is None:
            return
        self._socket = self._bind(settings.control)
        if self._socket is None:
            return
        if settings.control.path.exists():
            await self._load()
        await self._server.listen(self._socket, mount=self._mount)
        path = str(settings.control.listen)
        log.info("control socket: %s", path, extra={"event": "control_socket", "path": path})

    def before_reload(self, new: Settings) -> None:
        """Before the services of the new settings are applied. Raises `ConfigError` if they need a restart."""
        old_path = None if self._settings is None or self._settings.control is None else self._settings.control.path
        if self._app is not None and (new.control is None or new.control.path != old_path):
            raise ConfigError("a new path of the control store needs a restart; move the file before it")

    def set_configured(self, new: Settings) -> None:
        if self._app is not None:
            self._app.resources.set_configured(_configured(new))

    async def apply(self, new: Settings) -> None:
        """After the services of the new settings are applied."""
        old, self._settings = self._settings, new
        if self._app is not None:
            self._app.resources.apply_all()
        if old is None or new.control == old.control:
            return
        self.stop_listening()
        await self.start(new)

    def stop_listening(self) -> None:
        if self._socket is not None:
            self._server.stop_listening(self._socket)
            remove_unix_socket(self._socket)
            self._socket = None

    async def close(self) -> None:
        self.stop_listening()
        if self._app is not None:
            await self._app.resources.close()

    # ---- the application on the socket

    def matches(self, path: bytes) -> bool:
        return True

    def rejection(self, request: Request) -> Response | None:
        return None  # `_admits` decides who may connect

    async def handle(self, request: Request) -> Response:
        return await (await self._load()).handle(request)

    def _admits(self, sock: socket.socket) -> bool:
        control = None if self._settings is None else self._settings.control
        return control is not None and is_peer_allowed(sock, control.group_id)

    async def _load(self) -> ControlApp:
        async with self._loading:
            if self._app is None:
                self._app = await self._make_app()
        return self._app

    async def _make_app(self) -> ControlApp:
        from svcnode.control.api import ControlApp
        from svcnode.control.resources import Resources
        from svcnode.control.store import ControlStore

        assert self._settings is not None
        assert self._settings.control is not None
        resources = Resources(self._node, ControlStore(self._settings.control.path), self._define)
        resources.set_configured(_configured(self._settings))
        await resources.start()
        return ControlApp(self._node, resources, self._reload)

    def _define(self, service_id: str, options: Mapping[str, Any]) -> Definition:
        from svcnode.config.registration import PATH, define_registered
        from svcnode.control.api import json_pointer

        assert self._settings is not None
        try:
            return define_registered(service_id, options, self._settings, os.environ)
        except ConfigError as exc:
            raise ControlError(400, str(exc), pointer=json_pointer(*exc.path[len(PATH) :])) from exc

    def _bind(self, control: ControlSettings) -> socket.socket | None:
        try:
            return bind_private(control.listen, control.group_id)
        except OSError as exc:
            problem = f"cannot listen on the control socket {control.listen}: {os_error_text(exc)}"
            if not control.is_default:
                raise ListenError(f"{problem}; set another path with listen in [control]") from exc
            log.warning("%s; the node cannot be controlled", problem, extra={"event": "control_socket_failed"})
            return None


def _configured(settings: Settings) -> dict[str, bool]:
    """The services of the file: whether they report by themselves."""
    return {
        service.id: service.status is None and service.definition.probe_config is None for service in settings.services
    }
