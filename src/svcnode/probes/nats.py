"""`nats://user:password@host:port`: a NATS server that lets us in.

ready      connected, and a flush came back; JetStream answers where `jetstream` is set
not ready  JetStream was asked for, and is not enabled or has no leader; the certificate ends within `min_cert_days`
failed     any refusal, such as wrong credentials or no connections left; refused, unreachable, not trusted
unknown    no file descriptors or ports left here, or the resolver does not work
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
from nats.errors import ConnectionClosedError, Error
from nats.js.errors import APIError

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Verdict
from svcnode.core.redaction import register_secret
from svcnode.core.text import os_error_text
from svcnode.net.connect import TcpEndpoint
from svcnode.net.os_errors import InconclusiveError
from svcnode.net.streams import Streams, open_streams, upgrade_streams
from svcnode.net.trace import step
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

READY = Verdict.ready()
_NO_LIMIT_S = 86_400  # the driver wants one, but the deadline is the look's


class _NatsTransport(TcpTransport):
    """The driver's transport, over streams that are open already, and with TLS or without it as we are told.

    Left to itself, the driver goes along with what the server says of it, and sends its password in the clear.
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
            raise ConnectionError("it asks for TLS; set tls = true")
        if self.streams.unread or self.at_eof():
            raise ConnectionError("it closed the connection before the handshake")
        self._use_streams(await upgrade_streams(self.streams, self._tls, self._server_name))
        self._is_tls_pending = False

    def write(self, payload: bytes) -> None:
        if self._is_tls_pending:
            raise ConnectionError("it does not offer TLS")
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
            raise OptionError("username", "is missing, and the password belongs to it")
        if bool(self.token) + bool(username) + bool(self.credentials_file) > 1:
            raise OptionError(
                "token" if self.token else "credentials_file", "stands beside other credentials; only one can count"
            )
        register_secret(self.token or ("" if password else username))
        if self.credentials_file:
            try:
                _read_credentials(self.credentials_file)
            except InconclusiveError as exc:
                raise OptionError("credentials_file", str(exc)) from exc
        self.validate_tls_options(uses_tls=self.tls)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), self.url.port or 4222))

    async def open(self) -> _NatsSession:
        streams = await open_streams(self._endpoint)
        client = Client()
        tls = self.tls_context() if self.tls else None
        transport = _NatsTransport(streams, tls, self.server_name or self._endpoint.host)
        client._transport = transport  # it would open one of its own
        session = _NatsSession(client, transport)
        try:
            with step("log in"):
                await client.connect(**self._driver_options())
        except Exception as exc:  # noqa: BLE001  whatever the driver makes of what a server says
            self.abort(session)
            raise self._translate_error(exc, session) from None
        except BaseException:  # also when cancelled: nobody else knows the connection yet
            self.abort(session)
            raise
        return session

    def _driver_options(self) -> dict[str, Any]:
        username, password = self.credentials()
        token = self.token
        if username and not password:  # a URL with one word before the host carries a token
            username, token = "", username
        return {
            "servers": [f"nats://{self._endpoint}"],
            "name": "svcnode",
            "user": username or None,
            "password": password or None,
            "token": token or None,
            "user_credentials": _read_credentials(self.credentials_file) if self.credentials_file else None,
            "tls": True,  # or it would make a context of its own; ours is with the transport
            "allow_reconnect": False,
            "connect_timeout": None,  # one that never comes could still swallow the end of a look, on Python 3.11
            "ping_interval": _NO_LIMIT_S,
            "error_cb": _ignore_error,
        }

    def _translate_error(self, exc: Exception, session: _NatsSession) -> Exception:
        said_last = session.transport.streams.unread
        if isinstance(exc, OSError) and said_last.startswith(b"-ERR "):  # such as that it has no connections left
            return ConnectionError(_error_text(said_last.decode(errors="replace")))
        if isinstance(exc, OSError | MemoryError):
            return exc
        if not isinstance(exc, Error):
            return ConnectionError("what came back is not NATS")
        if session.client._server_info:
            return ConnectionError(_error_text(str(exc)))
        return ConnectionError("what came back is not NATS") if session.transport.has_received else EOFError()

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        return Verdict.failed(f"{_error_text(str(exc))}: {self.url}")

    async def check_connection(self, connection: _NatsSession) -> Verdict:
        client = connection.client
        await _wait_for_reply(client, client.rtt(_NO_LIMIT_S))
        if self.jetstream and (fault := await _jetstream_problem(client)):
            return Verdict.not_ready(f"JetStream: {fault}: {self.url}")
        expiring = self.certificate_verdict(connection.transport.streams.writer.transport) if self.tls else None
        return expiring or READY

    async def disconnect(self, connection: _NatsSession) -> None:
        await connection.client.close()

    def reset_byte_count(self, connection: _NatsSession) -> None:
        connection.transport.streams.reset_byte_count()

    def abort(self, connection: _NatsSession) -> None:
        connection.transport.close()
        for task in _client_tasks(connection.client):
            task.cancel()


def _error_text(refusal: str) -> str:
    return driver_error_text(Exception(re.sub(r"^(?:nats:|-ERR) '?|'?\s*$", "", refusal)))


def _read_credentials(file: str) -> RawCredentials:
    """Read by us: the driver would look for ever for a JWT that is not there."""
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise InconclusiveError(f"there is no file {file}", ReasonCode.FILE_NOT_READABLE) from exc
    except OSError as exc:
        raise InconclusiveError(f"cannot read {file}: {os_error_text(exc)}", ReasonCode.FILE_NOT_READABLE) from exc
    except ValueError as exc:
        raise InconclusiveError(f"cannot read {file}: not UTF-8 text", ReasonCode.FILE_NOT_READABLE) from exc
    found = [re.search(rf"BEGIN {what}-+\s+(\S+)", text) for what in ("NATS USER JWT", "USER NKEY SEED")]
    try:
        jwt, seed = (one[1] for one in found if one)
        register_secret(seed)
        nkeys.from_seed(bytearray(seed.encode())).wipe()
    except Exception as exc:  # whatever nkeys makes of a key which is none
        raise InconclusiveError(f"cannot use {file}: it does not hold the JWT and the key of a NATS user", ReasonCode.FILE_NOT_READABLE) from exc
    return RawCredentials(f"BEGIN NATS USER JWT\n{jwt}\nBEGIN USER NKEY SEED\n{seed}\n")


async def _wait_for_reply(client: Client, waiting: Coroutine[Any, Any, object]) -> None:
    """Wait for an answer for as long as anybody listens for it; the driver waits even when nobody does any more."""
    answered = asyncio.ensure_future(waiting)
    try:
        listening = [client._reading_task] if client._reading_task is not None else []
        await asyncio.wait((answered, *listening), return_when=asyncio.FIRST_COMPLETED)
        if not answered.done() or isinstance(answered.exception(), ConnectionClosedError):
            why = client.last_error
            raise ConnectionError("what came back is not NATS" if why is None else _error_text(str(why)))
        await answered
    finally:
        answered.cancel()


async def _jetstream_problem(client: Client) -> str | None:
    try:
        await _wait_for_reply(client, client.jetstream(timeout=_NO_LIMIT_S).account_info())
    except APIError as exc:
        return driver_error_text(Exception(exc.description)) if exc.description else "nobody answers for it"
    return None


def _client_tasks(client: Client) -> list[asyncio.Task[Any]]:
    """What closing would end, but only after a last word to a server that may not listen."""
    found: list[asyncio.Task[Any] | None] = [each._wait_for_msgs_task for each in client._subs.values()]
    found += [getattr(client, f"_{name}_task", None) for name in ("reading", "ping_interval", "flusher")]
    return [task for task in found if task is not None]


async def _ignore_error(exc: Exception) -> None:
    """Whoever waits gets it as well."""
