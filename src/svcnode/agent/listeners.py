"""Where the node listens: opened at the start, changed by a reload, and told in the log.

A change has two steps. `open` takes the places, and is the one that can fail; `listen` makes them the node's.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.api.app import Mount
from svcnode.core.errors import ListenError
from svcnode.operator import OperatorApp
from svcnode.operator.auth import OperatorAuth
from svcnode.server.sockets import bind, bound_url, remove_unix_socket, tls_context

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterable, Mapping

    from svcnode.config import Settings, TlsSettings
    from svcnode.core.address import Address
    from svcnode.operator.context import OperatorContext
    from svcnode.server.server import HttpServer

log = logging.getLogger("svcnode")


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundSockets:
    """What some settings ask for beyond what is listened on already: taken, and not listened on yet."""

    settings: Settings
    tls: ssl.SSLContext | None
    sockets: Mapping[Address, socket.socket]


class Listeners:
    """Each with a door, behind which is what it offers beyond the interface."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._sockets: dict[Address, socket.socket] = {}
        self._mounts: dict[Address, Mount] = {}

    def open(self, settings: Settings) -> BoundSockets:
        """Whatever is not listened on yet: all of it, or none.

        A place that is ours already, to speak something else there, is taken over. So is one that speaks TLS, since
        a listener keeps the certificate it began with.
        """
        tls = _tls_context(settings.tls)
        wanted = settings.all_listen_addresses
        free_places = {address.bind_key: sock for address, sock in self._sockets.items() if address not in wanted}
        sockets: dict[Address, socket.socket] = {}
        try:
            for address in wanted:
                if address not in self._sockets or address.scheme == "https":
                    mine = self._sockets.get(address, free_places.get(address.bind_key))
                    sockets[address] = bind(address, settings.set_by(address)) if mine is None else mine.dup()
        except ListenError:
            for address, sock in sockets.items():
                sock.close()
                remove_unix_socket(address)
            raise
        return BoundSockets(settings=settings, tls=tls, sockets=sockets)

    async def listen(self, opened: BoundSockets, desk: OperatorContext) -> None:
        """Where the settings say, and nowhere else; who is connected stays."""
        wanted = opened.settings.all_listen_addresses
        self._stop([address for address in self._sockets if address in opened.sockets or address not in wanted])
        for address, sock in opened.sockets.items():
            # Who came by the listener of before, with another certificate, is held to the rules of now as well.
            door = self._mounts.setdefault(address, Mount())
            await self._server.listen(sock, opened.tls if address.scheme == "https" else None, door)
            self._sockets[address] = sock
            log.info("listening on %s", bound_url(sock, address, f"{opened.settings.prefixes[0]}/node"))
        for address, door in self._mounts.items():
            self._update_mount(address, door, opened.settings, desk)

    def close(self) -> None:
        self._stop(list(self._sockets))

    def _stop(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            self._server.stop_listening(self._sockets.pop(address))
            remove_unix_socket(address)

    def _update_mount(self, address: Address, door: Mount, settings: Settings, desk: OperatorContext) -> None:
        """To the operator surface, where that is to be; a door that leads there already is left alone."""
        operator = settings.operator
        if operator is None or address not in (operator.listen or settings.listen):
            if door.app is not None:
                door.set_app(None)
            return
        access = OperatorAuth(address, operator.token, operator.trusts_loopback)
        before = door.app.auth if isinstance(door.app, OperatorApp) else None
        if access != before:
            door.set_app(OperatorApp(desk, access))
            log.info("the operator page is at %s%s", bound_url(self._sockets[address], address, "/"), access.log_suffix)


def _tls_context(tls: TlsSettings | None) -> ssl.SSLContext | None:
    return None if tls is None else tls_context(tls.certificate, tls.key)
