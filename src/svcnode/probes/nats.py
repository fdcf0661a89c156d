"""`nats://user:password@host:port`: a NATS server that lets us in.

ready      connected, and a flush came back; JetStream answers where `jetstream` is set
not ready  JetStream was asked for and does not answer; the certificate ends within `min_cert_days`
failed     any refusal, such as wrong credentials or no connections left; refused, unreachable, not trusted
unknown    no file descriptors or ports left here, or the resolver does not work
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import NoRespondersError
from nats.js.errors import APIError

from svcnode.core.errors import OptionError
from svcnode.core.model import Verdict
from svcnode.core.redaction import keep_secret
from svcnode.probes.tools.connect import Endpoint
from svcnode.probes.tools.session import LoginProbe, told
from svcnode.probes.tools.steps import step
from svcnode.probes.tools.streams import Streams, open_streams, upgraded

if TYPE_CHECKING:
    import asyncio
    import ssl

READY = Verdict.ready()
_NO_LIMIT_S = 86_400  # the driver wants one, but the deadline is the look's


class _Transport(TcpTransport):
    """The driver's transport, over streams that are open already."""

    def __init__(self, streams: Streams, server_name: str) -> None:
        super().__init__()
        self._server_name = server_name
        self._is_under_tls = False
        self._take(streams)

    def _take(self, streams: Streams) -> None:
        self.streams = streams
        self._io_reader, self._io_writer = self._bare_io_reader, self._bare_io_writer = streams

    async def connect(self, *_: object, **__: object) -> None:
        pass

    async def connect_tls(self, uri: object, ssl_context: ssl.SSLContext, *_: object, **__: object) -> None:
        self._take(await upgraded(self.streams, ssl_context, self._server_name))
        self._is_under_tls = True

    def check_tls(self) -> None:
        """Whether there is TLS is the server's to say, and the driver goes along."""
        if not self._is_under_tls:
            raise ConnectionError("it does not offer TLS")

    def close(self) -> None:
        self.streams.abort()

    async def wait_closed(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Session:
    client: Client
    transport: _Transport


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class NatsProbe(LoginProbe[_Session]):
    token: str = ""
    credentials_file: str = ""  # a .creds file with a JWT and its key
    jetstream: bool = False
    tls: bool = False
    _endpoint: Endpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        self.url.refuse_path()
        username, _ = self.credentials()
        if bool(self.token) + bool(username) + bool(self.credentials_file) > 1:
            raise OptionError(
                "token" if self.token else "credentials_file", "stands beside other credentials; only one can count"
            )
        keep_secret(self.token)
        if self.credentials_file and not Path(self.credentials_file).is_file():
            raise OptionError("credentials_file", f"there is no file {self.credentials_file}")
        self.check_tls_options(is_used=self.tls)
        object.__setattr__(self, "_endpoint", Endpoint.of(self.url.need_host(), self.url.port or 4222))

    async def open(self) -> _Session:
        streams = await open_streams(self._endpoint)
        client = Client()
        transport = _Transport(streams, self.server_name or self._endpoint.host)
        client._transport = transport  # it would open one of its own
        session = _Session(client, transport)
        try:
            with step("log in"):
                await client.connect(**self._words())
                if self.tls:
                    transport.check_tls()
        except BaseException:  # also when cancelled: nobody else knows the connection yet
            self.drop(session)
            raise
        return session

    def _words(self) -> dict[str, Any]:
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
            "user_credentials": self.credentials_file or None,
            "tls": self.tls_context() if self.tls else None,
            "allow_reconnect": False,
            "connect_timeout": _NO_LIMIT_S,
            "ping_interval": _NO_LIMIT_S,
            "error_cb": _ignored,
        }

    async def ask(self, connection: _Session) -> Verdict:
        client = connection.client
        await client.flush(_NO_LIMIT_S)
        if not client.is_connected:  # the driver takes it for flushed, too, when nobody is left to answer
            raise ConnectionError("it closed the connection")
        if self.jetstream and (fault := await _fault_of_jetstream(client)):
            return Verdict.not_ready(f"JetStream: {fault}: {self.url}")
        expiring = self.expiry_verdict(connection.transport.streams.writer.transport) if self.tls else None
        return expiring or READY

    async def leave(self, connection: _Session) -> None:
        await connection.client.close()

    def drop(self, connection: _Session) -> None:
        connection.transport.close()
        for task in _tasks_of(connection.client):
            task.cancel()


async def _fault_of_jetstream(client: Client) -> str | None:
    try:
        await client.jetstream(timeout=_NO_LIMIT_S).account_info()
    except NoRespondersError:
        return "nobody answers for it"
    except APIError as exc:
        return told(Exception(exc.description or f"error {exc.code}"))
    return None


def _tasks_of(client: Client) -> list[asyncio.Task[Any]]:
    """What closing would end, but only after a last word to a server that may not listen."""
    found: list[asyncio.Task[Any] | None] = [each._wait_for_msgs_task for each in client._subs.values()]
    found += [getattr(client, f"_{name}_task", None) for name in ("reading", "ping_interval", "flusher")]
    return [task for task in found if task is not None]


async def _ignored(exc: Exception) -> None:
    """Whoever waits gets it as well."""
