"""`redis://user:password@host:port/db`, `valkey://…`, and `rediss://…`, `valkeys://…` with TLS: Redis or Valkey.

ready      PING is answered; if it is a replica, its link to the primary is up
not ready  it is loading its data; it is a replica whose link to the primary is down; it does not have the `role` that
           it should; the certificate ends within `min_cert_days`
failed     any other refusal, such as wrong credentials or no connections left; refused, unreachable, not trusted
unknown    no file descriptors or ports left here, or the resolver does not work
"""

from __future__ import annotations

from dataclasses import dataclass, field

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import BusyLoadingError, InvalidResponse, MasterDownError, NoPermissionError, RedisError

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.streams import Streams, open_streams
from svcnode.net.trace import step
from svcnode.probes.options import Count, Role
from svcnode.probes.session import LoginProbe, driver_error_text

READY = Verdict.ready()


class _RedisConnection(AbstractConnection):
    """The driver's connection, over streams that are open already."""

    def __init__(self, streams: Streams, **words: object) -> None:
        super().__init__(**words)  # type: ignore[arg-type]
        self.streams = streams

    async def _connect(self) -> None:
        self._reader, self._writer = self.streams

    def repr_pieces(self) -> list[tuple[str, str]]:
        return []

    def _host_error(self) -> str:
        return "the server"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RedisProbe(LoginProbe[_RedisConnection]):
    role: Role = ""
    db: Count | None = None  # without it, the path of the URL, and without that 0
    _endpoint: TcpEndpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        path = self.url.path.removeprefix("/")
        if self.url.query or (path and not (path.isascii() and path.isdigit())):
            raise ProbeError(f"after the host stands at most the number of a database: {self.url.scheme}://host:port/0")
        if path and self.db is not None:
            raise OptionError("db", "stands in the URL as well; only one of the two can count")
        self.credentials()
        self.validate_tls_options(uses_tls=self._uses_tls)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), self.url.port or 6379))

    @property
    def _uses_tls(self) -> bool:
        return self.url.scheme in ("rediss", "valkeys")

    @property
    def _db(self) -> int:
        return self.db if self.db is not None else int(self.url.path.removeprefix("/") or 0)

    async def open(self) -> _RedisConnection:
        tls = self.tls_context() if self._uses_tls else None
        streams = await open_streams(self._endpoint, tls, self.server_name or self._endpoint.host)
        username, password = self.credentials()
        connection = _RedisConnection(
            streams,
            username=username or None,
            password=password or None,
            db=self._db,
            protocol=2,
            driver_info=None,
            socket_timeout=None,  # the deadline is the look's
            socket_connect_timeout=None,
        )
        try:
            with step("log in"):
                await connection.connect()
        except BaseException:  # also when cancelled: nobody else knows the connection yet
            self.abort(connection)
            raise
        return connection

    async def check_connection(self, connection: _RedisConnection) -> Verdict:
        if await _execute(connection, "PING") != b"PONG":
            return Verdict.failed(f"it did not answer PING with PONG: {self.url}")
        try:
            about = _parse_info(await _execute(connection, "INFO", "replication"))
        except NoPermissionError:
            return Verdict.failed(f"may not see whether it is in step with its primary; grant it +info: {self.url}")
        if "role" not in about:
            return Verdict.failed(f"it does not say whether it is a replica: {self.url}")
        is_replica = about["role"] == "slave"
        if is_replica and about.get("master_link_status") != "up":
            return Verdict.not_ready(f"a replica whose link to its primary is down: {self.url}")
        if self.role and is_replica != (self.role == "replica"):
            return Verdict.not_ready(f"a {'replica' if is_replica else 'primary'}, not the {self.role}: {self.url}")
        expiring = self.certificate_verdict(connection.streams.writer.transport) if self._uses_tls else None
        return expiring or READY

    def reset_byte_count(self, connection: _RedisConnection) -> None:
        connection.streams.reset_byte_count()

    def abort(self, connection: _RedisConnection) -> None:
        connection.streams.abort()
        connection._reader = connection._writer = None  # or it would complain when it is collected

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if isinstance(exc.__context__, OSError):  # the driver does not name it as the cause
            return verdict_for_os_error(exc.__context__, str(self.url))
        if not isinstance(exc, RedisError) or isinstance(exc, InvalidResponse):
            return Verdict.failed(f"what came back is not Redis: {self.url}")
        words = driver_error_text(exc).rstrip(".")
        if isinstance(exc, BusyLoadingError | MasterDownError):
            return Verdict.not_ready(f"{words}: {self.url}")
        return Verdict.failed(f"{words}: {self.url}")


async def _execute(connection: _RedisConnection, *words: str) -> bytes:
    await connection.send_command(*words)
    answer = await connection.read_response()
    if not isinstance(answer, bytes):
        raise TypeError(f"it answered {words[0]} with what is no text")
    return answer


def _parse_info(info: bytes) -> dict[str, str]:
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
