"""The control socket: who may connect, and what a reload changes. Its application is in control/."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections import ChainMap
from typing import TYPE_CHECKING, Any

from svcnode.api.app import Mount
from svcnode.config.settings import node_folder_name
from svcnode.control.app import ControlApp
from svcnode.core.errors import ConfigError, ControlError, ControlUnreachableError, ListenError
from svcnode.core.text import os_error_text
from svcnode.server.sockets import bind_private, peer_user, remove_unix_socket

if TYPE_CHECKING:
    import socket
    from collections import Counter
    from collections.abc import Callable, Coroutine, Mapping
    from pathlib import Path

    from svcnode.config import ControlSettings, Settings
    from svcnode.control.push import PushApp
    from svcnode.control.types import NodeDocument
    from svcnode.node.definition import PushAccess, RegisteredService
    from svcnode.node.node_state import NodeState
    from svcnode.server.server import HttpServer
    from svcnode.sharing.replica import Replica

MAX_BODY_BYTES = 1024 * 1024  # of a request: a report is not refused because its reason is a long traceback
HANDOVER_S = 10.0  # how long a node that starts waits for one that stops: the default drain, and as long again
HANDOVER_POLL_S = 0.1
OWNER_TIMEOUT_S = 1.0  # for the node at the socket to say who it is

log = logging.getLogger("svcnode")


class ControlSocket:
    """`reload` reads the configuration again and returns what has changed."""

    def __init__(
        self,
        node: NodeState,
        server: HttpServer,
        settings: Settings,
        reload: Callable[[], Coroutine[None, None, str]],
        replica: Replica | None = None,
    ) -> None:
        self._node = node
        self._found: dict[str, bool] = {}
        self._server = server
        self._settings = settings
        self._socket: socket.socket | None = None
        self._next_socket: socket.socket | None = None  # of the settings that are being applied
        self._is_listening = False
        self._push_access: dict[str, PushAccess] = {}  # of the services of the file
        self._push: PushApp | None = None
        if replica is None:
            self._app = ControlApp(node, self._define, reload)
        else:
            self._app = ControlApp(node, self._define, reload, replica.services, replica.work_client)
        self._mount = Mount(
            self._app, kept_body_bytes=MAX_BODY_BYTES, max_body_bytes=MAX_BODY_BYTES, peer_user=self._peer_user
        )
        self._apply_to_app(settings)

    def on_registration(self, callback: Callable[[], None]) -> None:
        """Call it after services were registered, replaced or removed. Before `start`."""
        self._app.on_registration = callback

    def set_found(self, services: dict[str, bool]) -> None:
        """Services that the node finds by itself, which count as those of the file. The caller keeps it up to date."""
        self._found = services
        self._apply_to_app(self._settings)

    def _apply_to_app(self, settings: Settings) -> None:
        self._app.store_path = None if settings.control is None else settings.control.path
        self._app.runs_with = {
            "config_file": None if settings.file is None else str(settings.file.absolute()),
            "listen": [str(address) for address in settings.listen],
        }
        self._app.set_configured(ChainMap(_configured(settings), self._found))

    async def claim(self) -> None:
        """Before anything else that two nodes of one name would share, such as the history: bind the socket.

        A node that is stopping has some time to leave it. Raises `ListenError` if another node has it.
        """
        self._socket = await self._bind(self._settings, HANDOVER_S)

    async def start(self) -> None:
        """After the services of the file are applied: apply what is stored."""
        if self._settings.control is not None:
            await self._app.load_stored()

    async def listen(self) -> None:
        """When the node has started: a request may reload it."""
        if self._socket is None:
            return
        await self._server.listen(self._socket, mount=self._mount)
        self._is_listening = True
        path = self._socket.getsockname()
        log.info("control socket: %s", path, extra={"event": "control_socket", "path": path})

    async def before_reload(self, new: Settings) -> None:
        """Before anything of the new settings is applied. Raises `ConfigError` or `ListenError`."""
        old = self._settings.control
        if self._app.is_loaded and new.control is None:
            raise ConfigError("the control socket is in use; to turn it off, restart the node")
        if self._app.is_loaded and new.control is not None and old is not None and new.control.path != old.path:
            raise ConfigError(
                "to change the path of the control store, stop the node, move the file, and start the node again"
            )
        if new.control is None:
            return
        if old is None or new.control.listen != old.listen:
            self._remove(self._next_socket)
            self._next_socket = await self._bind(new)
        elif new.control.group_id != old.group_id:
            raise ConfigError("to change the group of the control socket, restart the node")

    def set_configured(self, new: Settings) -> None:
        self._apply_to_app(new)

    async def apply(self, new: Settings) -> None:
        """After the services of the new settings are applied."""
        old, self._settings = self._settings, new
        self._app.apply_all(redefine=_definition_settings(new) != _definition_settings(old))
        if new.control is None:
            self.stop_listening()
        elif old.control is None or new.control.listen != old.control.listen:
            next_socket, self._next_socket = self._next_socket, None
            self.stop_listening()
            self._socket = next_socket
            await self._app.load_stored()
            await self.listen()

    def stop(self) -> None:
        """The node is stopping, and stays drained."""
        self._app.stop()

    def stop_listening(self) -> None:
        if self._socket is not None and self._is_listening:
            self._server.stop_listening(self._socket)
        self._remove(self._socket)
        self._remove(self._next_socket)
        self._socket = self._next_socket = None
        self._is_listening = False

    async def close(self) -> None:
        self.stop_listening()
        await self._app.close()

    def push_app(self, settings: Settings, refused: Counter[str]) -> PushApp | None:
        """The application that receives the pushes of services; None if none has a token."""
        self._push_access = {service.id: service.push for service in settings.services if service.push is not None}
        if not self._push_access and not self._app.receives_pushes:
            return None
        if self._push is None:
            from svcnode.control.push import PushApp

            self._push = PushApp(self._node, self._push_access_of, self._app.change, refused)
        return self._push

    def _push_access_of(self, service_id: str) -> PushAccess | None:
        return self._push_access.get(service_id) or self._app.push_access(service_id)

    def _peer_user(self, sock: socket.socket) -> str | None:
        control = self._settings.control
        return None if control is None else peer_user(sock, control.group_id)

    def _define(self, service_id: str, options: Mapping[str, Any]) -> RegisteredService:
        from svcnode.config.registration import PATH, define_registered
        from svcnode.control.api import json_pointer

        try:
            return define_registered(service_id, options, self._settings, os.environ)
        except ConfigError as exc:
            pointer = json_pointer(*exc.path[len(PATH) :])
            raise ControlError(400, str(exc), pointer=pointer, others=exc.texts[1:]) from exc

    async def _bind(self, settings: Settings, wait_s: float = 0.0) -> socket.socket | None:
        """None if there shall be no socket, or if the default path cannot be used."""
        control, deadline_s, has_waited = settings.control, time.monotonic() + wait_s, False
        while control is not None:
            try:
                return _listening(control)
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE or not _is_socket(control.listen):
                    _continue_without(control, exc)
                    return None
                owner = await _owner(control.listen)
                is_stopping = owner is None or owner["draining"]
                if not is_stopping or time.monotonic() >= deadline_s:
                    raise ListenError(f"{_problem(control)}: {in_use_text(owner, settings)}") from exc
                if not has_waited:
                    text = "waiting for another node to stop: it has the control socket %s"
                    log.info(text, control.listen, extra={"event": "control_socket_waiting"})
                has_waited = True
            await asyncio.sleep(HANDOVER_POLL_S)
        return None

    def _remove(self, sock: socket.socket | None) -> None:
        if sock is not None:
            remove_unix_socket(sock)
            sock.close()


def _listening(control: ControlSettings) -> socket.socket:
    sock = bind_private(control.listen, control.group_id)
    sock.listen()  # whoever connects from now on waits until the node has started
    return sock


def _continue_without(control: ControlSettings, exc: OSError) -> None:
    """The node works without the default socket, but not without one that is configured."""
    problem = f"{_problem(control)}: {os_error_text(exc)}"
    if not control.is_default:
        raise ListenError(f"{problem}; set another path with listen in [control]") from exc
    log.warning("%s; the node cannot be controlled", problem, extra={"event": "control_socket_failed"})


def _problem(control: ControlSettings) -> str:
    return f"cannot listen on the control socket {control.listen}"


# ---- another node at the same path


def _is_socket(path: Path) -> bool:
    """One that is left after an attempt to bind it: a process listens there."""
    return path.is_socket() and not path.is_symlink()


async def _owner(path: Path) -> NodeDocument | None:
    """The node at the socket; None if it does not say who it is, as while it starts or has just ended."""
    from svcnode.control.client import AsyncControlClient  # few nodes find another one

    try:
        async with AsyncControlClient(path, timeout=OWNER_TIMEOUT_S) as client:
            return await client.node()
    except (ControlError, ControlUnreachableError):
        return None


def in_use_text(owner: NodeDocument | None, settings: Settings) -> str:
    """Who has the control socket of these settings, and what to do."""
    from svcnode.control.owner import owner_text

    if owner is None:
        who = "another process has it, and does not say which node it is"
    elif owner["node_name"] == settings.node_name:
        who = f"another node named {owner_text(owner)} runs on this machine and has it"
    else:
        who = f"the node {owner_text(owner)} has it"
    return f"{who}; {other_path_hint(settings)}, or stop that node"


def other_path_hint(settings: Settings) -> str:
    """How to get a control socket of one's own. Another name also means another history and another control store."""
    control = settings.control
    assert control is not None
    if not control.is_default or control.listen.parent.name != node_folder_name(settings.node_name):
        return "set another path with listen in [control]"
    if settings.sharing is not None:
        return "give each replica on this machine its own state folder, with XDG_STATE_HOME"
    return "set another name in [node], with --name or with SVCNODE_NODE_NAME"


# ---- what the settings say


def _definition_settings(settings: Settings) -> tuple[object, ...]:
    """What the definition of a registered service depends on."""
    return settings.defaults, settings.control is not None and settings.control.allows_exec


def _configured(settings: Settings) -> dict[str, bool]:
    """The services of the file: whether they report by themselves."""
    return {
        service.id: service.status is None and service.definition.probe_config is None for service in settings.services
    }
