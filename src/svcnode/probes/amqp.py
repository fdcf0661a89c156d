"""`amqp://user:password@host:port/vhost`, `amqps://…` with TLS: an AMQP 0-9-1 broker, such as RabbitMQ.

ready      connected, a channel opened, and `queue` is there where it is set
not ready  the certificate ends within `min_cert_days`
failed     any refusal, such as wrong credentials, no such vhost or queue, no connections left; refused, unreachable
unknown    no file descriptors or ports left here, or the resolver does not work
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import aiormq
from aiormq.connection import TransportFactory
from aiormq.exceptions import ChannelNotFoundEntity
from yarl import URL

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.probes.tools.connect import Endpoint
from svcnode.probes.tools.session import LoginProbe
from svcnode.probes.tools.steps import step
from svcnode.probes.tools.streams import Streams, open_streams

READY = Verdict.ready()
_DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}


class _Given(TransportFactory):
    """Hands the driver streams that are open already."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    async def create(self, url: URL, **_: Any) -> Streams:  # noqa: ANN401  as the driver has it
        return self._streams


@dataclass(frozen=True, slots=True)
class _Session:
    streams: Streams
    connection: aiormq.Connection


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class AmqpProbe(LoginProbe[_Session]):
    vhost: str = ""  # without it, the path of the URL, and without that "/"
    queue: str = ""  # must be there
    _endpoint: Endpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        path = self.url.path.removeprefix("/")
        if self.url.query or "/" in path:
            raise ProbeError("after the host stands at most a vhost, with %2F for a / in it")
        if path and self.vhost:
            raise OptionError("vhost", "stands in the URL as well; only one of the two can count")
        self.credentials()
        self.check_tls_options(is_used=self._speaks_tls)
        port = self.url.port or _DEFAULT_PORTS[self.url.scheme]
        object.__setattr__(self, "_endpoint", Endpoint.of(self.url.need_host(), port))

    @property
    def _speaks_tls(self) -> bool:
        return self.url.scheme == "amqps"

    async def open(self) -> _Session:
        tls = self.tls_context() if self._speaks_tls else None
        streams = await open_streams(self._endpoint, tls, self.server_name or self._endpoint.host)
        try:
            with step("log in"):
                return _Session(streams, await self._logged_in(streams))
        except BaseException:  # also when cancelled: nobody else knows the connection yet
            streams.abort()
            raise

    async def _logged_in(self, streams: Streams) -> aiormq.Connection:
        username, password = self.credentials()
        url = URL.build(
            scheme="amqp",  # whether there is TLS below is none of the driver's business
            user=username or "guest",
            password=password or "guest",
            host=self._endpoint.host,
            port=self._endpoint.port,
            query={"heartbeat": "0", "name": "svcnode"},
        )
        connection = aiormq.Connection(url, transport_factory=_Given(streams))
        connection.vhost = self.vhost or unquote(self.url.path.removeprefix("/")) or "/"
        await connection.connect()
        return connection

    async def ask(self, connection: _Session) -> Verdict:
        channel = await connection.connection.channel()
        if self.queue:
            try:
                await channel.queue_declare(self.queue, passive=True)
            except ChannelNotFoundEntity:
                return Verdict.failed(f'there is no queue "{self.queue}": {self.url}')
        await channel.close()
        expiring = self.expiry_verdict(connection.streams.writer.transport) if self._speaks_tls else None
        return expiring or READY

    async def leave(self, connection: _Session) -> None:
        await connection.connection.close()  # or the broker would log a client that was lost

    def drop(self, connection: _Session) -> None:
        for task in (connection.connection._reader_task, connection.connection._writer_task):
            task.cancel()  # what it still has to say goes nowhere
        connection.streams.abort()
