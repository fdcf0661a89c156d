"""`nats://user:password@host:port`: a NATS server that accepts the login.

ready      the login succeeds and the server responds to PING; JetStream responds if `jetstream` is set
not ready  `jetstream` is set and JetStream is not enabled or has no leader; the certificate expires within
           `min_cert_days`
failed     any other error, such as wrong credentials or too many connections; connection refused, host unreachable,
           certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer; the credentials file cannot
           be read
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import nkeys  # type: ignore[import-untyped]
from nats.aio.client import Client, RawCredentials
from nats.aio.transport import TcpTransport
from nats.errors import AuthorizationError, ConnectionClosedError, Error, ProtocolError, StaleConnectionError
from nats.js.errors import APIError

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import register_secret
from svcnode.core.text import os_error_text
from svcnode.net.connect import TcpEndpoint
from svcnode.net.streams import Streams, open_streams, upgrade_streams
from svcnode.net.trace import step
from svcnode.probes.base import CheckError
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

READY = Verdict.ready()
_NO_LIMIT_S = 86_400  # the driver requires a limit; the check has its own deadline
# The protocol has no error numbers; these are parts of the messages of the server, in lower case.
_CODES_BY_TEXT = (
    ("maximum connections exceeded", ReasonCode.TOO_MANY_CONNECTIONS),
    ("maximum account active connections exceeded", ReasonCode.TOO_MANY_CONNECTIONS),
    ("permissions violation", ReasonCode.PERMISSION_DENIED),
    ("tls required", ReasonCode.TLS_REQUIRED),
    ("authorization", ReasonCode.AUTH_FAILED),
    ("authentication", ReasonCode.AUTH_FAILED),
    ("credentials", ReasonCode.AUTH_FAILED),
    ("shutdown", ReasonCode.SHUTTING_DOWN),
    ("unknown protocol", ReasonCode.PROTOCOL_ERROR),
    ("parser error", ReasonCode.PROTOCOL_ERROR),
)
# By JetStream error number.
_JETSTREAM_CODES = {
    10008: ReasonCode.NO_LEADER,  # system temporarily unavailable
    10009: ReasonCode.NO_LEADER,  # the cluster cannot handle the request
    10023: ReasonCode.UNHEALTHY,  # insufficient resources
    10039: ReasonCode.NOT_SUPPORTED,  # not enabled for the account
    10076: ReasonCode.NOT_SUPPORTED,  # not enabled
}


class _NatsTransport(TcpTransport):
    """The driver's transport over streams that are already open, with TLS if and only if it is configured.

    The driver lets the server decide about TLS and sends the password in plain text without it.
    """

    def __init__(self, streams: Streams, tls: ssl.SSLContext | None, server_name: str) -> None:
        super().__init__()
        self._tls = tls
        self._server_name = server_name
        self._is_tls_pending = tls is not None
        self.has_received = False
        self._use_streams(streams)

    def _use_streams(self, streams: Streams) -> None:
        self.streams = streams
        self._io_reader, self._io_writer = self._bare_io_reader, self._bare_io_writer = streams

    async def connect(self, *_: object, **__: object) -> None:
        pass

    async def connect_tls(self, *_: object, **__: object) -> None:
        if self._tls is None:
            raise CheckError("the server requires TLS; set tls = true", ReasonCode.TLS_REQUIRED)
        if self.streams.unread or self.at_eof():
            raise CheckError("the server closed the connection before the TLS handshake", ReasonCode.CONNECTION_CLOSED)
        self._use_streams(await upgrade_streams(self.streams, self._tls, self._server_name))
        self._is_tls_pending = False

    def write(self, payload: bytes) -> None:
        if self._is_tls_pending:
            raise CheckError("the server does not support TLS", ReasonCode.TLS_NOT_OFFERED)
        super().write(payload)

    async def readline(self) -> bytes:
        line: bytes = await super().readline()
        self.has_received = self.has_received or bool(line)
        return line

    def close(self) -> None:
        self.streams.abort()

    async def wait_closed(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _NatsSession:
    client: Client
    transport: _NatsTransport


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NatsProbe(LoginProbe[_NatsSession]):
    token: str = ""
    credentials_file: str = ""  # a .creds file with a JWT and its key
    jetstream: bool = False
    tls: bool = False
    _endpoint: TcpEndpoint = field(init=False, compare=False)

    tls_enabled_by: ClassVar = "tls = true"

    def __post_init__(self) -> None:
        self.url.reject_path()
        username, password = self.credentials()
        if password and not username:
            raise OptionError("username", "is missing; the password needs it")
        if bool(self.token) + bool(username) + bool(self.credentials_file) > 1:
            raise OptionError(
                "token" if self.token else "credentials_file", "conflicts with other credentials; set only one"
            )
        register_secret(self.token or ("" if password else username))
        if self.credentials_file:
            try:
                _read_credentials(self.credentials_file)
            except CheckError as exc:
                raise OptionError("credentials_file", str(exc)) from exc
        self.validate_tls_options(uses_tls=self.tls)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), self.url.port or 4222))

    async def open(self) -> _NatsSession:
        streams = await open_streams(self._endpoint)
        client = Client()
        tls = self.tls_context() if self.tls else None
        transport = _NatsTransport(streams, tls, self.server_name or self._endpoint.host)
        client._transport = transport  # otherwise the driver opens its own
        session = _NatsSession(client, transport)
        try:
            with step("log in"):
                await client.connect(**self._driver_options())
        except Exception as exc:  # noqa: BLE001  the driver raises many types for an invalid response
            self.abort(session)
            raise self._translate_error(exc, session) from None
        except BaseException:  # on cancellation too: nothing else closes the connection
            self.abort(session)
            raise
        return session

    def _driver_options(self) -> dict[str, Any]:
        username, password = self.credentials()
        token = self.token
        if username and not password:  # nats://token@host
            username, token = "", username
        return {
            "servers": [f"nats://{self._endpoint}"],
            "name": "svcnode",
            "user": username or None,
            "password": password or None,
            "token": token or None,
            "user_credentials": _read_credentials(self.credentials_file) if self.credentials_file else None,
            "tls": True,  # otherwise the driver makes a context; the transport has one
            "allow_reconnect": False,
            "connect_timeout": None,  # a timeout of the driver can swallow the cancellation of the check on Python 3.11
            "ping_interval": _NO_LIMIT_S,
            "error_cb": _ignore_error,
        }

    def _translate_error(self, exc: Exception, session: _NatsSession) -> Exception:
        last_line = session.transport.streams.unread
        if isinstance(exc, OSError | CheckError) and last_line.startswith(b"-ERR "):  # such as too many connections
            return self._login_error(Exception(last_line.decode(errors="replace")))
        if isinstance(exc, OSError | MemoryError | CheckError):
            return exc
        if not isinstance(exc, Error):
            return _not_nats()
        if session.client._server_info:
            return self._login_error(exc)
        return _not_nats() if session.transport.has_received else EOFError()

    def _login_error(self, exc: Exception) -> CheckError:
        error = _server_error(exc)
        has_credentials = bool(self.token or self.credentials_file or any(self.credentials()))
        if error.code is ReasonCode.AUTH_FAILED and not has_credentials:
            error.code = ReasonCode.AUTH_REQUIRED
        return error

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        return (exc if isinstance(exc, CheckError) else _server_error(exc)).verdict(self.url)

    async def check_connection(self, connection: _NatsSession) -> Verdict:
        client = connection.client
        await _wait_for_reply(client, client.rtt(_NO_LIMIT_S))
        if self.jetstream and (error := await _jetstream_error(client)) is not None:
            return error.verdict(self.url)
        verdict = self.certificate_verdict(connection.transport.streams.writer.transport) if self.tls else None
        return verdict or READY

    async def disconnect(self, connection: _NatsSession) -> None:
        await connection.client.close()

    def reset_byte_count(self, connection: _NatsSession) -> None:
        connection.transport.streams.reset_byte_count()

    def peer_address(self, connection: _NatsSession) -> str:
        return connection.transport.streams.peer_address

    def abort(self, connection: _NatsSession) -> None:
        connection.transport.close()
        for task in _client_tasks(connection.client):
            task.cancel()


def _not_nats() -> CheckError:
    return CheckError("the response is not NATS", ReasonCode.PROTOCOL_ERROR)


def _server_error(exc: Exception) -> CheckError:
    text = driver_error_text(Exception(re.sub(r"^(?:nats:|-ERR) '?|'?\s*$", "", str(exc))))
    return CheckError(text, _reason_code(exc, text.lower()))


def _reason_code(exc: Exception, text: str) -> ReasonCode:
    match exc:
        case AuthorizationError():
            return ReasonCode.AUTH_FAILED
        case ProtocolError():
            return ReasonCode.PROTOCOL_ERROR
        case StaleConnectionError() | ConnectionClosedError():
            return ReasonCode.CONNECTION_CLOSED
        case _:
            return next((code for part, code in _CODES_BY_TEXT if part in text), ReasonCode.SERVER_ERROR)


def _read_credentials(file: str) -> RawCredentials:
    """The driver's own reader loops forever if the file holds no JWT."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as exc:
        raise _credentials_error(
            f"cannot read {file}: {os_error_text(exc)}",
            ReasonCode.FILE_NOT_FOUND if isinstance(exc, FileNotFoundError) else ReasonCode.FILE_NOT_READABLE,
        ) from None
    except ValueError:
        raise _credentials_error(f"cannot read {file}: not UTF-8 text", ReasonCode.FILE_NOT_READABLE) from None
    found = [re.search(rf"BEGIN {what}-+\s+(\S+)", text) for what in ("NATS USER JWT", "USER NKEY SEED")]
    try:
        jwt, seed = (one[1] for one in found if one)
        register_secret(seed)
        nkeys.from_seed(bytearray(seed.encode())).wipe()
    except Exception:  # noqa: BLE001  nkeys raises many types for an invalid key
        raise _credentials_error(
            f"cannot use {file}: it does not contain the JWT and the key of a NATS user", ReasonCode.FILE_NOT_READABLE
        ) from None
    return RawCredentials(f"BEGIN NATS USER JWT\n{jwt}\nBEGIN USER NKEY SEED\n{seed}\n")


def _credentials_error(text: str, code: ReasonCode) -> CheckError:
    return CheckError(text, code, Outcome.UNKNOWN)


async def _wait_for_reply(client: Client, request: Coroutine[Any, Any, object]) -> None:
    """Wait for a reply while the driver reads; the driver itself waits forever after its reader task has ended."""
    reply = asyncio.ensure_future(request)
    try:
        reader = [client._reading_task] if client._reading_task is not None else []
        await asyncio.wait((reply, *reader), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done() or isinstance(reply.exception(), ConnectionClosedError):
            error = client.last_error
            raise _not_nats() if error is None else _server_error(error)
        await reply
    finally:
        reply.cancel()


async def _jetstream_error(client: Client) -> CheckError | None:
    try:
        await _wait_for_reply(client, client.jetstream(timeout=_NO_LIMIT_S).account_info())
    except APIError as exc:
        if exc.description is None:  # no server responds to JetStream requests
            return CheckError("JetStream is not enabled", ReasonCode.NOT_SUPPORTED, Outcome.NOT_READY)
        text = f"JetStream: {driver_error_text(Exception(exc.description))}"
        code = _JETSTREAM_CODES.get(exc.err_code or 0, ReasonCode.UNHEALTHY)
        return CheckError(text, code, Outcome.NOT_READY)
    return None


def _client_tasks(client: Client) -> list[asyncio.Task[Any]]:
    """The tasks that `close` would end, but only after sending to a server that may not read."""
    found: list[asyncio.Task[Any] | None] = [each._wait_for_msgs_task for each in client._subs.values()]
    found += [getattr(client, f"_{name}_task", None) for name in ("reading", "ping_interval", "flusher")]
    return [task for task in found if task is not None]


async def _ignore_error(exc: Exception) -> None:
    """The caller gets the error as an exception."""
