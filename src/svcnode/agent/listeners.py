"""The addresses of the node: bound at the start, changed by a reload.

A change has two steps. `open` binds the new sockets and can fail; `listen` starts and stops listeners.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from svcnode.api.app import Mount
from svcnode.core.errors import ListenError
from svcnode.node.definition import MAX_PUSH_BYTES
from svcnode.operator import OperatorApp
from svcnode.operator.auth import OperatorAuth
from svcnode.server.sockets import (
    bind,
    bound_address,
    bound_url,
    listen_error,
    overlapping,
    remove_unix_socket,
    tls_context,
)

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterable, Mapping

    from svcnode.agent.systemd import PassedSockets
    from svcnode.api.app import App
    from svcnode.config import Settings
    from svcnode.core.address import Address
    from svcnode.operator.context import OperatorContext
    from svcnode.operator.public import PublicApp
    from svcnode.server.server import HttpServer

log = logging.getLogger("svcnode")

MAX_PUSH_BODY_BYTES = 1024**3


class BoundSockets(NamedTuple):
    """The new sockets that the new settings need: bound, but not listening yet."""

    settings: Settings
    tls: ssl.SSLContext | None
    sockets: Mapping[Address, socket.socket]


class Listeners:
    def __init__(self, server: HttpServer, public_server: HttpServer, passed: PassedSockets) -> None:
        """`public_server`: of the addresses of the public page. `passed`: the sockets that systemd has bound."""
        self._server = server
        self._public_server = public_server
        self._passed = passed
        self._sockets: dict[Address, socket.socket] = {}
        self._servers: dict[Address, HttpServer] = {}  # which one listens
        self._mounts: dict[Address, Mount] = {}
        self._public: PublicApp | None = None

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
                server = self._server_of(address, settings)
                if self._servers.get(address) is not server or address.scheme == "https":
                    bound = self._sockets.get(address, reusable.get(address.bind_key))
                    sockets[address] = self._bind(address, settings, sockets) if bound is None else bound.dup()
        except ListenError:
            for sock in sockets.values():
                sock.close()
                remove_unix_socket(sock)
            raise
        return BoundSockets(settings=settings, tls=tls, sockets=sockets)

    def _server_of(self, address: Address, settings: Settings) -> HttpServer:
        """The public page has its own: its readers neither take connections from health checks nor see their cache."""
        is_public = settings.public is not None and address in settings.public.listen
        return self._public_server if is_public else self._server

    def _bind(self, address: Address, settings: Settings, others: Iterable[Address]) -> socket.socket:
        """`others`: the addresses that were bound before this one, beside those that the node listens on already."""
        if (passed := self._passed.get(address)) is not None:
            return passed
        other = overlapping(address, [*self._sockets, *others])
        if other is None:
            return bind(address, settings.addresses[address])
        if other in settings.addresses:
            raise ListenError(f"cannot listen on both {other} and {address}: they overlap; remove one of them")
        raise ListenError(
            f"cannot listen on {address}: this node still listens on {other}, which overlaps; restart the node"
        )

    async def listen(self, bound: BoundSockets, context: OperatorContext, push: App | None) -> None:
        """Listen on exactly the addresses of the settings; open connections stay open."""
        addresses = bound.settings.addresses
        self._stop([address for address in self._sockets if address in bound.sockets or address not in addresses])
        for address, sock in bound.sockets.items():
            # The mount is reused: connections of the previous listener get the new access rules too.
            mount = self._mounts.setdefault(address, Mount())
            server = self._server_of(address, bound.settings)
            try:
                await server.listen(sock, bound.tls if address.scheme == "https" else None, mount)
            except OSError as exc:  # another process listens there since it was bound
                raise listen_error(exc, address, addresses[address]) from exc
            self._sockets[address], self._servers[address] = sock, server
            if server is self._server:
                urls = [bound_url(sock, address, f"{prefix}/node") for prefix in bound.settings.prefixes]
                log.info("listening on %s", " and ".join(urls), extra={"event": "listening", "url": urls[0]})
        self.set_push(push, bound.settings)
        self._public = _public_app(bound.settings, context, self._public)
        for address, mount in self._mounts.items():
            self._update_mount(address, mount, bound.settings, context)
            self._publish(address, mount, bound.settings)

    def set_push(self, push: App | None, settings: Settings) -> None:
        for address, mount in self._mounts.items():
            _set_push(mount, push if address in settings.listen else None)

    def close(self) -> None:
        self._stop(list(self._sockets))
        self._passed.close()

    def _stop(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            sock = self._sockets.pop(address)
            self._servers.pop(address).stop_listening(sock)
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

    def _publish(self, address: Address, mount: Mount, settings: Settings) -> None:
        """Mount or remove the public page at an address."""
        public, before = settings.public, mount.public
        is_public = public is not None and address in (public.listen or settings.listen)
        mount.public = self._public if is_public else None
        if mount.public is not None and mount.public is not before and public is not None:
            url = bound_url(self._sockets[address], address, f"{public.path}/")
            log.info("public page: %s", url, extra={"event": "public_page", "url": url})


def _public_app(settings: Settings, context: OperatorContext, current: PublicApp | None) -> PublicApp | None:
    """The current one, unless something that it shows has changed: it keeps answers that are made."""
    public = settings.public
    if public is None:
        return None
    from svcnode.operator.public import PublicApp, Publication  # few nodes publish anything

    publication = Publication(
        title=public.title,
        services=public.services,
        groups=public.groups,
        tags=public.tags,
        url=public.url or public.path,
        schedules=settings.maintenance,
    )
    is_current = current is not None and (current.publication, current.path) == (publication, public.path)
    return current if is_current else PublicApp(context, publication, public.path)


def _set_push(mount: Mount, push: App | None) -> None:
    """A failure is never refused for the length of its text, of which only the beginning is kept."""
    mount.push = push
    mount.kept_body_bytes = 0 if push is None else MAX_PUSH_BYTES
    mount.max_body_bytes = None if push is None else MAX_PUSH_BODY_BYTES
