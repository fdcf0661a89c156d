"""`nats://user:password@host:port`: a NATS server that accepts the login.

ready      the login succeeds and the server responds to PING; JetStream responds if `jetstream` or `write` is set, and
           stores a message if `write` is set
not ready  `jetstream` or `write` is set, and JetStream is not enabled, has no leader, or has reached a limit of the
           account; `write` is set, and the stream is full, sealed or without its quorum; the certificate expires within
           `min_cert_days`
failed     any other error, such as wrong credentials or too many connections; no stream for `write`, or no
           acknowledgement; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer; the credentials file cannot
           be read
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import nkeys  # type: ignore[import-untyped]
from nats.aio.client import Client, RawCredentials
from nats.aio.transport import TcpTransport
from nats.errors import AuthorizationError, ConnectionClosedError, Error, ProtocolError, StaleConnectionError
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.option_types import PublicText
from svcnode.core.redaction import RotatingSecret, register_secret
from svcnode.core.text import os_error_text
from svcnode.core.url import NO_PATH, UrlForm
from svcnode.net.files import READ_TIMEOUT_S, file_version, read_small_file
from svcnode.net.os_errors import CodedOSError
from svcnode.net.streams import ConnectionStreams, open_streams, upgrade_streams
from svcnode.net.threads import DaemonCall, call_with_timeout
from svcnode.net.trace import READ_FILES_STEP, interrupts, step
from svcnode.probes.base import CheckError
from svcnode.probes.options import WriteTarget
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine

    from svcnode.net.files import FileVersion

T = TypeVar("T")

_MAX_CREDENTIALS_BYTES = 64 * 1024
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
    10002: ReasonCode.STORAGE_FULL,  # a limit of the account, of file or memory storage
    10023: ReasonCode.STORAGE_FULL,  # a limit of the server, of file or memory storage
    10028: ReasonCode.OUT_OF_MEMORY,
    10039: ReasonCode.NOT_SUPPORTED,  # not enabled for the account
    10047: ReasonCode.STORAGE_FULL,
    10076: ReasonCode.NOT_SUPPORTED,  # not enabled
    10109: ReasonCode.READ_ONLY,  # the stream is sealed
    10118: ReasonCode.NO_QUORUM,  # the stream is offline
}
# The number of every failure to store a message. Only these parts of its text distinguish the limits of a stream.
_STORE_FAILED = 10077
_STREAM_FULL_TEXTS = ("maximum messages", "maximum bytes", "no space left")
# As large as a block of a file system: a smaller one often fits into the last block although the disk is full.
_MESSAGE = b"svcnode".ljust(4096)
_INFO_SUBJECT, _NAMES_SUBJECT = "$JS.API.INFO", "$JS.API.STREAM.NAMES"
_SUBJECT = re.compile(r"(?!\$(?:JS|SYS)\.)(?![*>](?:\.|$))[^\s.]+(?:\.(?![*>](?:\.|$))[^\s.]+)*")


class _NatsTransport(TcpTransport):
    """The driver's transport over streams that are already open, with TLS if and only if it is configured.

    The driver lets the server decide about TLS and sends the password in plain text without it.
    """

    def __init__(self, streams: ConnectionStreams, tls: ssl.SSLContext | None, server_name: str) -> None:
        super().__init__()
        self._tls = tls
        self._server_name = server_name
        self._is_tls_pending = tls is not None
        self.has_received = False
        self._use_streams(streams)

    def _use_streams(self, streams: ConnectionStreams) -> None:
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
    denied: asyncio.Future[Exception]  # a permission of the user is missing; the server does not respond to the request

    async def record_error(self, exc: Exception) -> None:
        """Other errors reach the caller as exceptions."""
        if not self.denied.done() and _server_error(exc).code is ReasonCode.PERMISSION_DENIED:
            self.denied.set_result(exc)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NatsProbe(LoginProbe[_NatsSession]):
    token: str = ""
    credentials_file: PublicText = ""  # a .creds file with a JWT and its key
    jetstream: bool = False
    write: WriteTarget = ""  # a subject of a stream; implies jetstream
    tls: bool = False
    _seed: RotatingSecret = field(init=False, compare=False, default_factory=RotatingSecret)
    _thread: DaemonCall = field(init=False, compare=False, default_factory=lambda: DaemonCall("NATS credentials"))

    default_port: ClassVar = 4222
    tls_enabled_by: ClassVar = "tls = true"
    url_form: ClassVar = UrlForm(path=NO_PATH, query="")

    def __post_init__(self) -> None:
        self.url.reject_parts(self.url_form)
        username, password = self.credentials()
        if password and not username:
            raise OptionError("username", "is missing; the password needs it")
        if bool(self.token) + bool(username) + bool(self.credentials_file) > 1:
            option = "token" if self.token else "credentials_file"
            raise OptionError(option, "there are other credentials too; choose one way to log in")
        register_secret(self.token or ("" if password else username))
        if self.credentials_file:
            try:
                call_with_timeout(self._read_credentials, READ_TIMEOUT_S)
            except (CheckError, TimeoutError) as exc:
                raise OptionError("credentials_file", str(exc)) from exc
        if self.write and not _SUBJECT.fullmatch(self.write):
            text = "must be a subject without wildcards and spaces that does not begin with $JS or $SYS"
            raise OptionError("write", text)
        self.validate_connection()

    @property
    def uses_tls(self) -> bool:
        return self.tls

    async def open(self) -> _NatsSession:
        tls = await self.tls_context() if self.tls else None
        credentials = await self._load_credentials() if self.credentials_file else None
        endpoint = self.endpoint()
        streams = await open_streams(endpoint)  # TLS begins later
        client = Client()
        transport = _NatsTransport(streams, tls, self.server_name or endpoint.host)
        client._transport = transport  # otherwise the driver opens its own
        session = _NatsSession(client, transport, asyncio.get_running_loop().create_future())
        try:
            with step("log in"), self.abort_on_error(session):
                await client.connect(**self._driver_options(credentials), error_cb=session.record_error)
        except Exception as exc:  # noqa: BLE001  the driver raises many types for an invalid response
            raise self._translate_error(exc, session) from None
        return session

    async def _load_credentials(self) -> RawCredentials:
        with interrupts(READ_FILES_STEP):
            return await self._thread.call_in_turn(self._read_credentials)

    def _read_credentials(self) -> RawCredentials:
        credentials, seed = _read_credentials(self.credentials_file, file_version(self.credentials_file))
        self._seed.set(seed)
        return credentials

    def _driver_options(self, credentials: RawCredentials | None) -> dict[str, Any]:
        username, password = self.credentials()
        token = self.token
        if username and not password:  # nats://token@host
            username, token = "", username
        return {
            "servers": [f"nats://{self.endpoint()}"],
            "name": "svcnode",
            "user": username or None,
            "password": password or None,
            "token": token or None,
            "user_credentials": credentials,
            "tls": True,  # otherwise the driver makes a context; the transport has one
            "allow_reconnect": False,
            "connect_timeout": None,  # a timeout of the driver can swallow the cancellation of the check on Python 3.11
            "ping_interval": _NO_LIMIT_S,
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

    async def check_connection(self, connection: _NatsSession) -> Verdict | None:
        await _wait_for_reply(connection.client, connection.client.rtt(_NO_LIMIT_S))
        try:
            if self.jetstream or self.write:
                await _check_jetstream(connection)
            if self.write:
                with step("write"):
                    await _publish(connection, self.write)
        except CheckError as exc:
            if exc.code is ReasonCode.PERMISSION_DENIED:
                raise self._permission_error(exc) from None
            if exc.outcome is Outcome.FAILED:  # perhaps only of a reused connection
                raise
            return exc.verdict(self.url)
        return None

    def _permission_error(self, error: CheckError) -> CheckError:
        """With all permissions that are needed. The driver reports subjects in lower case, but case matters."""
        subjects = [_INFO_SUBJECT, _NAMES_SUBJECT, self.write] if self.write else [_INFO_SUBJECT]
        text = re.sub(r'"_inbox\.[^"]*"', '"_INBOX.>"', str(error))
        for subject in subjects:
            text = text.replace(f'"{subject.lower()}"', f'"{subject}"')
        option, needed = "write" if self.write else "jetstream", ", ".join(subjects)
        return CheckError(f"{text}; {option} needs: publish to {needed}; subscribe to _INBOX.>", error.code)

    async def disconnect(self, connection: _NatsSession) -> None:
        await connection.client.close()

    def reset_byte_count(self, connection: _NatsSession) -> None:
        connection.transport.streams.reset_byte_count()

    def transport(self, connection: _NatsSession) -> asyncio.BaseTransport:
        return connection.transport.streams.writer.transport

    def abort(self, connection: _NatsSession) -> None:
        connection.transport.close()
        for task in _client_tasks(connection.client):
            task.cancel()


def _not_nats() -> CheckError:
    return CheckError("the response is not NATS", ReasonCode.PROTOCOL_ERROR)


def _server_error(exc: Exception) -> CheckError:
    text = driver_error_text(re.sub(r"^(?:nats:|-ERR) '?|'?\s*$", "", str(exc)))
    return CheckError(text, _reason_code(exc, text.lower()))


def _reason_code(exc: Exception, text: str) -> ReasonCode:
    match exc:
        case CodedOSError():  # of the connection, which the driver stores as its last error
            return exc.code
        case AuthorizationError():
            return ReasonCode.AUTH_FAILED
        case ProtocolError():
            return ReasonCode.PROTOCOL_ERROR
        case StaleConnectionError() | ConnectionClosedError():
            return ReasonCode.CONNECTION_CLOSED
        case _:
            return next((code for part, code in _CODES_BY_TEXT if part in text), ReasonCode.SERVER_ERROR)


@lru_cache(maxsize=64)
def _read_credentials(file: str, _version: FileVersion) -> tuple[RawCredentials, str]:
    """The credentials and the seed, a secret. The driver's own reader loops forever if the file holds no JWT."""
    try:
        text = read_small_file(file, _MAX_CREDENTIALS_BYTES).decode()
    except OSError as exc:
        code = ReasonCode.FILE_NOT_FOUND if isinstance(exc, FileNotFoundError) else ReasonCode.FILE_NOT_READABLE
        raise _credentials_error(
            f"cannot read {file}: {os_error_text(exc)}", exc.code if isinstance(exc, CodedOSError) else code
        ) from None
    except ValueError:
        raise _credentials_error(f"cannot read {file}: not UTF-8 text", ReasonCode.FILE_NOT_READABLE) from None
    found = [re.search(rf"BEGIN {what}-+\s+(\S+)", text) for what in ("NATS USER JWT", "USER NKEY SEED")]
    try:
        jwt, seed = (one[1] for one in found if one)
        nkeys.from_seed(bytearray(seed.encode())).wipe()
    except Exception:  # noqa: BLE001  nkeys raises many types for an invalid key
        raise _credentials_error(
            f"cannot use {file}: it does not contain the JWT and the key of a NATS user", ReasonCode.FILE_NOT_READABLE
        ) from None
    return RawCredentials(f"BEGIN NATS USER JWT\n{jwt}\nBEGIN USER NKEY SEED\n{seed}\n"), seed


def _credentials_error(text: str, code: ReasonCode) -> CheckError:
    return CheckError(text, code, Outcome.UNKNOWN)


async def _wait_for_reply(
    client: Client, request: Coroutine[Any, Any, T], denied: asyncio.Future[Exception] | None = None
) -> T:
    """Wait for a reply while the driver reads; the driver itself waits forever after its reader task has ended."""
    reply = asyncio.ensure_future(request)
    others = [one for one in (client._reading_task, denied) if one is not None]
    try:
        await asyncio.wait((reply, *others), return_when=asyncio.FIRST_COMPLETED)
        if not reply.done() and denied is not None and denied.done():
            raise _server_error(denied.result())
        if not reply.done() or isinstance(reply.exception(), ConnectionClosedError):
            error = client.last_error
            raise _not_nats() if error is None else _server_error(error)
        return await reply
    finally:
        reply.cancel()


async def _check_jetstream(session: _NatsSession) -> None:
    """Raise a `CheckError` if JetStream does not work or has reached a limit of the account."""
    try:
        # Not `account_info`, which requires fields that only newer servers send.
        request = session.client.jetstream()._api_request(_INFO_SUBJECT, timeout=_NO_LIMIT_S)
        account = await _jetstream_request(session, request)
    except APIError as exc:
        raise _jetstream_error(exc) from None
    except ValueError:
        raise _invalid_account() from None
    _check_account_limits(account)


def _check_account_limits(account: Any) -> None:  # noqa: ANN401  any JSON value
    """An account has limits of its own, or limits per tier. A limit below 1 does not apply."""
    try:
        usages = [
            (each.get(name, 0), each["limits"].get(f"max_{name}", 0), name, code)
            for each in (account, *(account.get("tiers") or {}).values())
            for name, code in (("storage", ReasonCode.STORAGE_FULL), ("memory", ReasonCode.OUT_OF_MEMORY))
        ]
        reached = [usage for usage in usages if usage[0] >= usage[1] > 0]
    except (AttributeError, KeyError, TypeError):
        raise _invalid_account() from None
    for used, limit, name, code in reached:
        text = f"JetStream: the account uses {used} bytes of {name}, its limit is {limit}"
        raise CheckError(text, code, Outcome.NOT_READY)


def _invalid_account() -> CheckError:
    return CheckError("JetStream: invalid information about the account", ReasonCode.UNEXPECTED_RESPONSE)


async def _publish(session: _NatsSession, subject: str) -> None:
    """Store one message in the stream of the subject, or raise a `CheckError`."""
    jetstream = session.client.jetstream(timeout=_NO_LIMIT_S)
    try:
        await _jetstream_request(session, jetstream.publish(subject, _MESSAGE))
    except APIError as exc:
        raise _write_error(exc) from None
    except NoStreamResponseError:
        raise await _no_response_error(session, subject) from None


async def _no_response_error(session: _NatsSession, subject: str) -> CheckError:
    """A stream does not respond if it does not exist, and if it has no leader."""
    jetstream = session.client.jetstream(timeout=_NO_LIMIT_S)
    try:
        stream = await _jetstream_request(session, jetstream.find_stream_name_by_subject(subject))
    except NotFoundError:
        return CheckError(
            f'no stream has the subject "{subject}"; create one: nats stream add {subject.replace(".", "_")}'
            f" --subjects {subject} --storage file --max-msgs 1 --discard old --defaults",
            ReasonCode.NOT_FOUND,
        )
    except APIError as exc:
        return _jetstream_error(exc)
    text = f'the stream "{driver_error_text(stream)}" has no leader'
    return CheckError(text, ReasonCode.NO_QUORUM, Outcome.NOT_READY)


async def _jetstream_request(session: _NatsSession, request: Coroutine[Any, Any, T]) -> T:
    return await _wait_for_reply(session.client, request, session.denied)


def _jetstream_error(exc: APIError, default: ReasonCode = ReasonCode.UNHEALTHY) -> CheckError:
    if exc.description is None:  # no server responds to JetStream requests
        return CheckError("JetStream is not enabled", ReasonCode.NOT_SUPPORTED, Outcome.NOT_READY)
    code = _JETSTREAM_CODES.get(exc.err_code or 0, default)
    return CheckError(f"JetStream: {driver_error_text(exc.description)}", code, Outcome.NOT_READY)


def _write_error(exc: APIError) -> CheckError:
    error = _jetstream_error(exc, ReasonCode.WRITE_FAILED)
    if exc.err_code == _STORE_FAILED and any(part in str(error) for part in _STREAM_FULL_TEXTS):
        error.code = ReasonCode.STORAGE_FULL
    if error.code is ReasonCode.WRITE_FAILED:
        error.outcome = Outcome.FAILED
    return error


def _client_tasks(client: Client) -> list[asyncio.Task[Any]]:
    """The tasks that `close` would end, but only after sending to a server that may not read."""
    found: list[asyncio.Task[Any] | None] = [each._wait_for_msgs_task for each in client._subs.values()]
    found += [getattr(client, f"_{name}_task", None) for name in ("reading", "ping_interval", "flusher")]
    return [task for task in found if task is not None]
