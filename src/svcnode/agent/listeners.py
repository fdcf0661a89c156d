"""The addresses of the node: bound at the start, changed by a reload.

A change has two steps. `open` binds the new sockets and can fail; `listen` starts and stops listeners.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from svcnode.api.app import Mount
from svcnode.core.errors import ListenError
from svcnode.operator import OperatorApp
from svcnode.operator.auth import OperatorAuth
from svcnode.server.sockets import bind, bound_address, bound_url, remove_unix_socket, tls_context

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterable, Mapping

    from svcnode.agent.systemd import PassedSockets
    from svcnode.api.app import App
    from svcnode.config import Settings
    from svcnode.core.address import Address
    from svcnode.operator.context import OperatorContext
    from svcnode.server.server import HttpServer

log = logging.getLogger("svcnode")

MAX_PUSH_BYTES = 10 * 1024  # of the body; the rest is not kept
MAX_PUSH_BODY_BYTES = 1024**3


class BoundSockets(NamedTuple):
    """The new sockets that some settings need: bound, but not listening yet."""

    settings: Settings
    tls: ssl.SSLContext | None
    sockets: Mapping[Address, socket.socket]


class Listeners:
    def __init__(self, server: HttpServer, passed: PassedSockets) -> None:
        """`passed`: the sockets that systemd has bound."""
        self._server = server
        self._passed = passed
        self._sockets: dict[Address, socket.socket] = {}
        self._mounts: dict[Address, Mount] = {}

    def open(self, settings: Settings) -> BoundSockets:
        """Bind all new addresses, or none. A socket that systemd passes is already bound.

        An address that this process already listens on with another scheme reuses the bound socket. So does an address
        with TLS, because a listener keeps the certificate that it started with.
        """
        tls = None if settings.tls is None else tls_context(settings.tls.certificate, settings.tls.key)
        addresses = settings.addresses
        self._passed.require_configured(addresses)
        reusable = {address.bind_key: sock for address, sock in self._sockets.items() if address not in addresses}
        sockets: dict[Address, socket.socket] = {}
        try:
            for address in addresses:
                if address not in self._sockets or address.scheme == "https":
                    bound = self._sockets.get(address, reusable.get(address.bind_key))
                    sockets[address] = self._bind(address, addresses[address]) if bound is None else bound.dup()
        except ListenError:
            for sock in sockets.values():
                sock.close()
                remove_unix_socket(sock)
            raise
        return BoundSockets(settings=settings, tls=tls, sockets=sockets)

    def _bind(self, address: Address, set_by: str | None) -> socket.socket:
        return self._passed.get(address) or bind(address, set_by)

    async def listen(self, bound: BoundSockets, context: OperatorContext, push: App | None) -> None:
        """Listen on exactly the addresses of the settings; open connections stay open."""
        addresses = bound.settings.addresses
        self._stop([address for address in self._sockets if address in bound.sockets or address not in addresses])
        for address, sock in bound.sockets.items():
            # The mount is reused: connections of the previous listener get the new access rules too.
            mount = self._mounts.setdefault(address, Mount())
            await self._server.listen(sock, bound.tls if address.scheme == "https" else None, mount)
            self._sockets[address] = sock
            urls = [bound_url(sock, address, f"{prefix}/node") for prefix in bound.settings.prefixes]
            log.info("listening on %s", " and ".join(urls), extra={"event": "listening", "url": urls[0]})
        self.set_push(push, bound.settings)
        for address, mount in self._mounts.items():
            self._update_mount(address, mount, bound.settings, context)

    def set_push(self, push: App | None, settings: Settings) -> None:
        for address, mount in self._mounts.items():
            _set_push(mount, push if address in settings.listen else None)

    def close(self) -> None:
        self._stop(list(self._sockets))
        self._passed.close()

    def _stop(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            sock = self._sockets.pop(address)
            self._server.stop_listening(sock)
            remove_unix_socket(sock)

    def _update_mount(self, address: Address, mount: Mount, settings: Settings, context: OperatorContext) -> None:
        """Mount or remove the operator surface at an address."""
        operator = settings.operator
        if operator is None or address not in (operator.listen or settings.listen):
            if mount.app is not None:
                mount.set_app(None)
            return
        bound = bound_address(self._sockets[address], address)
        auth = OperatorAuth(bound, operator.token, trusts_loopback=operator.trusts_loopback)
        current = mount.app.auth if isinstance(mount.app, OperatorApp) else None
        if auth != current:
            mount.set_app(OperatorApp(context, auth))
            url = bound_url(self._sockets[address], address, "/")
            log.info("operator page: %s%s", url, auth.log_suffix, extra={"event": "operator_page", "url": url})


def _set_push(mount: Mount, push: App | None) -> None:
    """A failure is never refused for the length of its text, of which only the beginning is kept."""
    mount.push = push
    mount.kept_body_bytes = 0 if push is None else MAX_PUSH_BYTES
    mount.max_body_bytes = None if push is None else MAX_PUSH_BODY_BYTES
