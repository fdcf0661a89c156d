"""Where the node listens: opened at the start, changed by a reload, and told in the log.

A change has two steps. `open` takes the places, and is the one that can fail; `listen` makes them the node's.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.core.errors import ListenError
from svcnode.web.listen import bind, bound_url, remove_unix_socket, tls_context
from svcnode.web.operator import Operator
from svcnode.web.operator.access import Access
from svcnode.web.visits import Door

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterable, Mapping

    from svcnode.config import Settings, TlsSettings
    from svcnode.core.address import Address
    from svcnode.web.operator.desk import Desk
    from svcnode.web.wire import WireServer

log = logging.getLogger("svcnode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What some settings ask for beyond what is listened on already: taken, and not listened on yet."""

    settings: Settings
    tls: ssl.SSLContext | None
    sockets: Mapping[Address, socket.socket]


class Listeners:
    """Each with a door, behind which is what it offers beyond the interface."""

    def __init__(self, server: WireServer) -> None:
        self._server = server
        self._sockets: dict[Address, socket.socket] = {}
        self._doors: dict[Address, Door] = {}

    def open(self, settings: Settings) -> Opened:
        """Whatever is not listened on yet: all of it, or none.

        A place that is ours already, to speak something else there, is taken over. So is one that speaks TLS, since
        a listener keeps the certificate it began with.
        """
        tls = _context(settings.tls)
        wanted = settings.listen_everywhere
        free_places = {address.place: sock for address, sock in self._sockets.items() if address not in wanted}
        sockets: dict[Address, socket.socket] = {}
        try:
            for address in wanted:
                if address not in self._sockets or address.scheme == "https":
                    mine = self._sockets.get(address, free_places.get(address.place))
                    sockets[address] = bind(address, settings.changed_by(address)) if mine is None else mine.dup()
        except ListenError:
            for address, sock in sockets.items():
                sock.close()
                remove_unix_socket(address)
            raise
        return Opened(settings=settings, tls=tls, sockets=sockets)

    async def listen(self, opened: Opened, desk: Desk) -> None:
        """Where the settings say, and nowhere else; who is connected stays."""
        wanted = opened.settings.listen_everywhere
        self._stop([address for address in self._sockets if address in opened.sockets or address not in wanted])
        for address, sock in opened.sockets.items():
            # Who came by the listener of before, with another certificate, is held to the rules of now as well.
            door = self._doors.setdefault(address, Door())
            await self._server.listen(sock, opened.tls if address.scheme == "https" else None, door)
            self._sockets[address] = sock
            log.info("listening on %s", bound_url(sock, address, f"{opened.settings.prefixes[0]}/node"))
        for address, door in self._doors.items():
            self._open_door(address, door, opened.settings, desk)

    def close(self) -> None:
        self._stop(list(self._sockets))

    def _stop(self, addresses: Iterable[Address]) -> None:
        for address in addresses:
            self._server.stop_listening(self._sockets.pop(address))
            remove_unix_socket(address)

    def _open_door(self, address: Address, door: Door, settings: Settings, desk: Desk) -> None:
        """To the operator surface, where that is to be; a door that leads there already is left alone."""
        operator = settings.operator
        if operator is None or address not in (operator.listen or settings.listen):
            if door.surface is not None:
                door.change(None)
            return
        access = Access(address, operator.token, operator.trusts_loopback)
        before = door.surface.access if isinstance(door.surface, Operator) else None
        if access != before:
            door.change(Operator(desk, access))
            log.info("the operator page is at %s%s", bound_url(self._sockets[address], address, "/"), access.spoken)


def _context(tls: TlsSettings | None) -> ssl.SSLContext | None:
    return None if tls is None else tls_context(tls.certificate, tls.key)
