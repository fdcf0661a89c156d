"""`amqp://user:password@host:port/vhost`, `amqps://…` with TLS: an AMQP 0-9-1 broker, such as RabbitMQ.

ready      the login succeeds, a channel opens, `queue` exists if it is set, and the broker confirms a message if
           `write` is set
not ready  the broker blocks this connection because of an alarm of its memory or disk, which RabbitMQ reports only to a
           client that publishes, so with `write`; the certificate expires within `min_cert_days`
failed     the broker reports an error, such as wrong credentials, unknown vhost or queue, too many connections; it does
           not accept or not confirm the message; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer
"""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import unquote

import aiormq
from aiormq.channel import EXCEPTION_MAPPING as CHANNEL_ERRORS
from aiormq.connection import EXCEPTION_MAPPING as CONNECTION_ERRORS
from aiormq.connection import FrameReceiver, TransportFactory
from aiormq.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelAccessRefused,
    ChannelNotFoundEntity,
    DeliveryError,
    ProtocolSyntaxError,
    PublishError,
)
from pamqp.commands import Basic
from pamqp.commands import Connection as ConnectionFrames
from yarl import URL

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome
from svcnode.core.option_types import PublicText
from svcnode.core.url import UrlForm
from svcnode.net.connect import TcpEndpoint
from svcnode.net.trace import step
from svcnode.probes.base import CheckError
from svcnode.probes.options import DEFAULT_WRITE_TARGET, WriteTarget
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from aiormq.abc import AbstractChannel
    from aiormq.connection import ReceivedFrame
    from pamqp.base import Frame
    from pamqp.frame import FrameTypes

    from svcnode.net.streams import ConnectionStreams

_MAX_NAME_BYTES = 255
_ACCESS_REFUSED, _NOT_FOUND, _NOT_ALLOWED = 403, 404, 530
# By AMQP reply code. The driver keeps the code of some errors only as the type of the exception.
_CODES = {
    320: ReasonCode.SHUTTING_DOWN,  # connection forced
    402: ReasonCode.NOT_FOUND,  # invalid path
    _ACCESS_REFUSED: ReasonCode.PERMISSION_DENIED,
    _NOT_FOUND: ReasonCode.NOT_FOUND,
    405: ReasonCode.LOCKED,
    406: ReasonCode.WRITE_FAILED,  # precondition failed: the queue of the write exists with other arguments
    540: ReasonCode.NOT_SUPPORTED,
}
_REPLY_CODES: dict[type, int] = {error: code for code, error in (*CONNECTION_ERRORS.items(), *CHANNEL_ERRORS.items())}
# RabbitMQ uses one reply code, 530, for these; only its text distinguishes them.
_NOT_ALLOWED_CODES = (
    ("connection limit", ReasonCode.TOO_MANY_CONNECTIONS),
    (" not found", ReasonCode.NOT_FOUND),
    (" is down", ReasonCode.UNHEALTHY),
)
# Parts of the reason of connection.blocked, such as "low on memory & disk".
_ALARM_CODES = (("disk", ReasonCode.STORAGE_FULL), ("memory", ReasonCode.OUT_OF_MEMORY))
# Of the queue that the check declares. A broker rejects a second declaration with other arguments, so that a change
# breaks the checks of older versions.
_WRITE_QUEUE_ARGUMENTS: Any = {"x-expires": 60_000, "x-max-length": 1}  # ms without a check; messages
# A durable queue stays on its home node, and cannot be used while that is down. The other nodes of a cluster then use
# another queue.
_WRITE_QUEUE_SUFFIXES = ("", ".2", ".3")
_WRITE_TTL_MS = "1000"
# A broker with an alarm does not read from a connection that publishes, and notices that it was closed only when a
# heartbeat cannot be sent, after half of this time.
_WRITE_HEARTBEAT_S = 4


class _OpenStreamsFactory(TransportFactory):
    """Gives the driver streams that are already open."""

    def __init__(self, streams: ConnectionStreams) -> None:
        self._streams = streams

    async def create(self, url: URL, **_: Any) -> ConnectionStreams:  # noqa: ANN401  the driver's signature
        return self._streams


class _AmqpConnection(aiormq.Connection):
    """Reports why the broker rejects a login or blocks the connection; the driver only reports an unexpected frame."""

    alarm: CheckError | None = None
    streams: ConnectionStreams

    @staticmethod
    async def _rpc(
        request: Frame, writer: asyncio.StreamWriter, frame_receiver: FrameReceiver, wait_response: bool = True
    ) -> FrameTypes | None:
        return await aiormq.Connection._rpc(request, writer, _CloseFrameReceiver(frame_receiver), wait_response)

    async def _Connection__handle_connection_blocked(self, frame: ConnectionFrames.Blocked) -> None:  # noqa: N802
        """Called by the driver, which would only log it. Every call that waits for the broker gets the exception."""
        text = _one_line(frame.reason)
        code = next((code for part, code in _ALARM_CODES if part in text), ReasonCode.WRITE_FAILED)
        self.alarm = CheckError(f"the broker accepts no messages: {text}", code, Outcome.NOT_READY)
        self.streams.abort()  # the broker does not read, so it would not respond to a close
        raise self.alarm


class _CloseFrameReceiver(FrameReceiver):
    def __init__(self, frames: FrameReceiver) -> None:
        super().__init__(frames.reader)
        self._frames = frames

    async def get_frame(self) -> ReceivedFrame:
        received = await self._frames.get_frame()
        if isinstance(received[2], ConnectionFrames.Close):
            raise _broker_error(received[2].reply_code, received[2].reply_text, is_login=True)
        return received


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AmqpProbe(LoginProbe[_AmqpConnection]):
    vhost: PublicText = ""  # without it, the path of the URL, and without that "/"
    queue: PublicText = ""  # must exist
    write: WriteTarget = ""  # a queue

    tls_schemes: ClassVar = ("amqps",)
    url_form: ClassVar = UrlForm(path="(/[^/?#]*)?", query="")

    def __post_init__(self) -> None:
        path = self.url.path.removeprefix("/")
        if self.url.query or "/" in path:
            raise ProbeError("only a vhost may follow the host, with %2F for a / in its name: amqp://host:port/vhost")
        if path and self.vhost:
            raise OptionError("vhost", "is also set in the URL; remove one of the two")
        for name, text in (("vhost", self.vhost or unquote(path)), ("queue", self.queue), ("write", self.write)):
            if len(text.encode()) > _MAX_NAME_BYTES:
                raise OptionError(name, f"is longer than {_MAX_NAME_BYTES} bytes, the limit of AMQP")
        self.credentials()
        self.validate_connection()

    def endpoint(self) -> TcpEndpoint:
        return TcpEndpoint.of(self.url.require_host(), self.url.port or (5671 if self.uses_tls else 5672))

    @property
    def _vhost(self) -> str:
        return self.vhost or unquote(self.url.path.removeprefix("/")) or "/"

    @property
    def _user(self) -> str:
        return self.credentials()[0] or "guest"

    async def open(self) -> _AmqpConnection:
        streams = await self.open_streams()
        try:
            with step("log in"), _translated_errors(streams):
                return await self._log_in(streams)
        except BaseException:  # on cancellation too: nothing else closes the connection
            streams.abort()
            raise

    async def _log_in(self, streams: ConnectionStreams) -> _AmqpConnection:
        _, password = self.credentials()
        url = URL.build(
            scheme="amqp",  # the streams already use TLS if they should
            user=self._user,
            password=password or "guest",
            host=self.endpoint().host,
            port=self.endpoint().port,
            query={"heartbeat": str(_WRITE_HEARTBEAT_S if self.write else 0), "name": "svcnode"},
        )
        connection = _AmqpConnection(url, transport_factory=_OpenStreamsFactory(streams))
        connection.streams = streams
        connection.vhost = self._vhost
        await connection.connect()
        connection.server_properties.setdefault("capabilities", {})  # the driver needs it; not every broker sends it
        return connection

    async def check_connection(self, connection: _AmqpConnection) -> None:
        try:
            with _translated_errors(connection.streams):
                await self._exchange(connection)
        except Exception:
            if connection.alarm is not None:
                raise connection.alarm from None
            raise

    async def _exchange(self, connection: _AmqpConnection) -> None:
        if self.write and not connection.publisher_confirms:
            raise CheckError("the broker does not support publisher confirms", ReasonCode.NOT_SUPPORTED)
        channel = await connection.channel(publisher_confirms=bool(self.write))
        if self.queue:
            await channel.queue_declare(self.queue, passive=True)
        if self.write:
            with step("write"):
                try:
                    channel = await self._write(connection, channel)
                except ChannelAccessRefused as exc:
                    text = f"{_one_line(exc.args[-1])}; {self._write_permissions()}"
                    raise CheckError(text, ReasonCode.PERMISSION_DENIED) from None
        await channel.close()

    async def _write(self, connection: _AmqpConnection, channel: AbstractChannel) -> AbstractChannel:
        """Publish one message. The channel, or another one if the broker closed it."""
        queue = self.write
        if queue == DEFAULT_WRITE_TARGET:
            channel, queue = await _declare_queue(connection, channel)
        # Persistent, so that it is confirmed when it is on disk. With a body: a broker with an alarm confirms a message
        # without one.
        properties = Basic.Properties(delivery_mode=2, expiration=_WRITE_TTL_MS)
        try:
            await channel.basic_publish(b"svcnode", routing_key=queue, properties=properties, mandatory=True)
        except PublishError:  # returned
            raise CheckError(f'no queue "{queue}"; declare it', ReasonCode.NOT_FOUND) from None
        except DeliveryError:
            raise CheckError(f'the broker rejected a message to the queue "{queue}"', ReasonCode.WRITE_FAILED) from None
        return channel

    def _write_permissions(self) -> str:
        is_own = self.write == DEFAULT_WRITE_TARGET  # declared by the check
        needed = f'configure on "{self.write}", and ' if is_own else ""
        patterns = f"^{self.write}" if is_own else "^$", r"^amq\.default$", "^$"
        command = shlex.join(["rabbitmqctl", "set_permissions", "-p", self._vhost, self._user, *patterns])
        return f'write needs the permissions {needed}write on "amq.default": {command} (replaces those of the user)'

    async def disconnect(self, connection: _AmqpConnection) -> None:
        await connection.close()  # otherwise the broker logs a lost client

    def reset_byte_count(self, connection: _AmqpConnection) -> None:
        connection.streams.reset_byte_count()

    def transport(self, connection: _AmqpConnection) -> asyncio.BaseTransport:
        return connection.streams.writer.transport

    def abort(self, connection: _AmqpConnection) -> None:
        for task in (connection._reader_task, connection._writer_task):
            task.cancel()
        connection.streams.abort()


async def _declare_queue(connection: _AmqpConnection, channel: AbstractChannel) -> tuple[AbstractChannel, str]:
    """The first queue whose home node is available, and an open channel."""
    for suffix in _WRITE_QUEUE_SUFFIXES:
        if channel.is_closed:
            channel = await connection.channel()
        queue = f"{DEFAULT_WRITE_TARGET}{suffix}"
        try:
            await channel.queue_declare(queue, durable=True, arguments=_WRITE_QUEUE_ARGUMENTS)
        except ChannelNotFoundEntity as exc:
            error = exc
        else:
            return channel, queue
    raise error


@contextmanager
def _translated_errors(streams: ConnectionStreams) -> Iterator[None]:
    """The driver's errors derive from OSError, but carry no errno."""
    try:
        yield
    except Exception as exc:  # noqa: BLE001  the driver raises many types for invalid frames
        raise _translate_error(exc, streams) from None


def _translate_error(exc: Exception, streams: ConnectionStreams) -> Exception:
    match exc:
        case AuthenticationError():
            return CheckError("the broker does not offer login by user name and password", ReasonCode.AUTH_FAILED)
        case AMQPError(__cause__=OSError() | EOFError() as cause):
            return cause
        case AMQPError(args=[*numbers, text]) if not isinstance(exc, ProtocolSyntaxError):
            return _broker_error(numbers[0] if numbers else _REPLY_CODES.get(type(exc)), text)
        case OSError() | MemoryError() | CheckError():
            return exc
        case _ if streams.reader.at_eof() and not isinstance(exc, ProtocolSyntaxError):
            return EOFError()
        case _:
            return CheckError("the response is not AMQP 0-9-1", ReasonCode.PROTOCOL_ERROR)


def _broker_error(reply_code: int | None, text: str, *, is_login: bool = False) -> CheckError:
    return CheckError(_one_line(text), _reason_code(reply_code, text, is_login=is_login))


def _reason_code(reply_code: int | None, text: str, *, is_login: bool) -> ReasonCode:
    if reply_code == _ACCESS_REFUSED and is_login:
        return ReasonCode.AUTH_FAILED
    if reply_code == _NOT_ALLOWED:
        return next((code for part, code in _NOT_ALLOWED_CODES if part in text), ReasonCode.PERMISSION_DENIED)
    if reply_code is None:
        return ReasonCode.CONNECTION_CLOSED
    return _CODES.get(reply_code, ReasonCode.SERVER_ERROR)


def _one_line(text: object) -> str:
    return driver_error_text(text).rstrip(".")
