"""A connection of the MySQL driver asyncmy, made safe for checks.

It is opened by `TcpEndpoint`: the driver's own connect leaks when it is cancelled. It has a size limit, sends no local
file if the server requests one, and no plain-text password without TLS.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NoReturn, cast

from asyncmy.connection import Connection, _MySQLProtocol  # type: ignore[attr-defined]
from asyncmy.constants import CLIENT
from asyncmy.cursors import DictCursor
from asyncmy.errors import OperationalError

from svcnode.core.codes import ReasonCode
from svcnode.net.connect import send
from svcnode.net.streams import MAX_RECEIVED_BYTES, ResponseTooLargeError
from svcnode.net.tls import upgrade_transport
from svcnode.net.trace import step
from svcnode.probes.base import CheckError

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Awaitable, Callable

    from svcnode.net.connect import TcpEndpoint

_MAX_PACKET_BYTES = 2**24 - 1
_UTF8MB4 = 45
_COM_QUIT = b"\x01\x00\x00\x00\x01"
# Authentication plugins that send the password in plain text.
_CLEARTEXT_PLUGINS = ("mysql_clear_password", "dialog")


class _LimitedProtocol(_MySQLProtocol):  # type: ignore[misc]
    """The driver's protocol with a size limit, and with data_received, which TlsProtocol calls."""

    received_bytes = 0

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self.received_bytes <= MAX_RECEIVED_BYTES:
            super().buffer_updated(nbytes)
            return
        transport = self.transport
        self.connection_lost(ResponseTooLargeError())
        if transport is not None:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        while data:
            buffer = self.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]


class MysqlConnection(Connection):
    # Attributes that the driver's types lack.
    server_capabilities: int
    _client_flag: int
    _loop: asyncio.AbstractEventLoop
    _proto: Any
    _transport: Any
    thread_id: Callable[[], int]
    _get_server_information: Callable[[], Awaitable[None]]
    _request_authentication: Callable[[], Awaitable[object]]

    def __init__(self, tls: tuple[ssl.SSLContext, str] | None, **options: Any) -> None:  # noqa: ANN401  the driver's
        cleartext_plugins = {} if tls else dict.fromkeys(_CLEARTEXT_PLUGINS, _reject_cleartext_auth)
        super().__init__(  # type: ignore[no-untyped-call]
            **options,
            program_name="svcnode",
            cursor_cls=DictCursor,
            local_infile=False,
            auth_plugin_map={"mysql_old_password": _reject_old_auth, **cleartext_plugins},
        )
        self._client_flag &= ~CLIENT.MULTI_STATEMENTS  # `query` is one statement, and cannot end its transaction
        self._tls = tls

    async def connect_to(self, endpoint: TcpEndpoint) -> None:
        self._transport, self._proto = await endpoint.connect(lambda: _LimitedProtocol(self._loop))
        self._next_seq_id = 0
        with step("log in"):
            await self._get_server_information()
            if self._tls is not None:
                await self._upgrade_to_tls(*self._tls)
            await self._authenticate()
        self._connected = True

    async def _authenticate(self) -> None:
        try:
            await self._request_authentication()
        except AttributeError as exc:
            if "scramble_old_password" in str(exc):  # the driver lacks it
                _reject_old_auth(self)
            raise

    async def _upgrade_to_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        if not self.server_capabilities & CLIENT.SSL:
            raise CheckError("the server does not support TLS", ReasonCode.TLS_NOT_OFFERED)
        self._client_flag |= CLIENT.SSL | CLIENT.MULTI_RESULTS | (self.server_capabilities & CLIENT.DEPRECATE_EOF)
        self.write_packet(struct.pack("<IIB23x", self._client_flag, _MAX_PACKET_BYTES, _UTF8MB4))
        self._proto = _LimitedProtocol(self._loop)  # without the bytes received before TLS
        self._transport = await upgrade_transport(self._transport, self._proto, context, server_name)
        self._proto.connection_made(self._transport)
        self._ssl_context, self._secure, self._tls_established = context, True, True

    async def _fill_buffer(self, need: int) -> None:
        try:
            await super()._fill_buffer(need)  # type: ignore[misc]
        except OperationalError as exc:  # the driver hides the error of the system
            raise self._proto.exc or EOFError from exc

    @property
    def transport(self) -> asyncio.Transport:
        return cast("asyncio.Transport", self._transport)

    def reset_byte_count(self) -> None:
        self._proto.received_bytes = 0

    def log_out(self) -> None:
        send(self._transport, _COM_QUIT)  # otherwise the server counts and logs an aborted client

    def close(self) -> None:
        """Close without waiting for the server, unlike the driver."""
        if self._transport is not None:
            self._transport.abort()
        self._transport = None


def _reject_cleartext_auth(_: MysqlConnection) -> NoReturn:
    raise CheckError(
        "the server requests the password in plain text, which is sent only over TLS; set tls = true",
        ReasonCode.TLS_REQUIRED,
    )


def _reject_old_auth(_: MysqlConnection) -> NoReturn:
    """Its hash is not safe, and MySQL has removed it in version 5.7."""
    raise CheckError(
        "the server requests the authentication of MySQL before 4.1 (mysql_old_password), which is not supported; give "
        "the user another plugin",
        ReasonCode.AUTH_FAILED,
    )
