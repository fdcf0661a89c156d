"""`redis://user:password@host:port/db`, `valkey://…`, and `rediss://…`, `valkeys://…` with TLS: Redis or Valkey.

ready      the server responds to PING; if it is a replica, its link to the primary is up
not ready  the server is loading its data; it is a replica whose link to the primary is down; it does not have the
           expected `role`; the certificate expires within `min_cert_days`
failed     any other error, such as wrong credentials or too many connections; connection refused, host unreachable,
           certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer
"""

from __future__ import annotations

from dataclasses import dataclass, field

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import AuthenticationError, InvalidResponse, NoPermissionError, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.net.connect import TcpEndpoint
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.streams import Streams, open_streams
from svcnode.net.trace import step
from svcnode.probes.base import CheckError
from svcnode.probes.options import Count, Role
from svcnode.probes.session import LoginProbe, driver_error_text

READY = Verdict.ready()
# By the first word of an error.
_CODES = {
    "NOAUTH": ReasonCode.AUTH_REQUIRED,
    "WRONGPASS": ReasonCode.AUTH_FAILED,
    "NOPERM": ReasonCode.PERMISSION_DENIED,
    "DENIED": ReasonCode.CLIENT_NOT_ALLOWED,  # protected mode
    "LOADING": ReasonCode.STARTING,
    "MASTERDOWN": ReasonCode.REPLICATION_STOPPED,
    "CLUSTERDOWN": ReasonCode.UNHEALTHY,
    "MISCONF": ReasonCode.UNHEALTHY,
    "BUSY": ReasonCode.UNHEALTHY,
    "OOM": ReasonCode.UNHEALTHY,
    "READONLY": ReasonCode.READ_ONLY,
}
_NOT_READY = ("LOADING", "MASTERDOWN")
# The first word of these is only ERR.
_CODES_BY_TEXT = (
    ("max number of clients", ReasonCode.TOO_MANY_CONNECTIONS),
    ("DB index is out of range", ReasonCode.NOT_FOUND),
    ("invalid DB index", ReasonCode.NOT_FOUND),
    ("unknown command", ReasonCode.NOT_SUPPORTED),
)


class _RedisConnection(AbstractConnection):
    """The driver's connection over streams that are already open."""

    def __init__(self, streams: Streams, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
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
            raise ProbeError(f"only a database number may follow the host: {self.url.scheme}://host:port/0")
        if path and self.db is not None:
            raise OptionError("db", "is also set in the URL; remove one of the two")
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
            socket_timeout=None,  # the check has a deadline
            socket_connect_timeout=None,
        )
        try:
            with step("log in"):
                await connection.connect()
        except BaseException:  # on cancellation too: nothing else closes the connection
            self.abort(connection)
            raise
        return connection

    async def check_connection(self, connection: _RedisConnection) -> Verdict:
        if await _execute(connection, "PING") != b"PONG":
            return self._failed("the response to PING is not PONG", ReasonCode.UNEXPECTED_RESPONSE)
        try:
            info = _parse_info(await _execute(connection, "INFO", "replication"))
        except NoPermissionError:
            return self._failed("no permission to run INFO replication; grant +info", ReasonCode.PERMISSION_DENIED)
        if "role" not in info:
            return self._failed("the response to INFO has no role", ReasonCode.UNEXPECTED_RESPONSE)
        verdict = self._role_verdict(info)
        if verdict is None and self._uses_tls:
            verdict = self.certificate_verdict(connection.streams.writer.transport)
        return verdict or READY

    def _failed(self, text: str, code: ReasonCode) -> Verdict:
        return Verdict.failed(f"{text}: {self.url}", code=code)

    def _role_verdict(self, info: dict[str, str]) -> Verdict | None:
        is_replica = info["role"] == "slave"
        if is_replica and info.get("master_link_status") != "up":
            return Verdict.not_ready(
                f"the link of this replica to its primary is down: {self.url}", code=ReasonCode.REPLICATION_STOPPED
            )
        if self.role and is_replica != (self.role == "replica"):
            return Verdict.not_ready(
                f'the server is a {"replica" if is_replica else "primary"}; role is "{self.role}": {self.url}',
                code=ReasonCode.WRONG_ROLE,
            )
        return None

    def reset_byte_count(self, connection: _RedisConnection) -> None:
        connection.streams.reset_byte_count()

    def abort(self, connection: _RedisConnection) -> None:
        connection.streams.abort()
        connection._reader = connection._writer = None  # otherwise the driver warns in __del__

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if isinstance(exc.__context__, OSError):  # the driver does not set it as the cause
            return verdict_for_os_error(exc.__context__, str(self.url))
        if isinstance(exc, RedisError) and not isinstance(exc, InvalidResponse):
            exc = _server_error(exc)
        elif not isinstance(exc, CheckError):
            exc = CheckError("the response is not Redis", ReasonCode.PROTOCOL_ERROR)
        return exc.verdict(self.url)


def _server_error(exc: RedisError) -> CheckError:
    text = driver_error_text(exc).rstrip(".")
    word = exc.status_code or text.partition(" ")[0]  # the driver removes the word if it knows it
    outcome = Outcome.NOT_READY if word in _NOT_READY else Outcome.FAILED
    return CheckError(text, _CODES.get(word) or _code_by_text(exc, text), outcome)


def _code_by_text(exc: RedisError, text: str) -> ReasonCode:
    if isinstance(exc, AuthenticationError):
        return ReasonCode.AUTH_FAILED
    if isinstance(exc, RedisConnectionError) and exc.status_code is None:  # an error of the driver, not of the server
        return ReasonCode.CONNECTION_CLOSED
    return next((code for part, code in _CODES_BY_TEXT if part in text), ReasonCode.SERVER_ERROR)


async def _execute(connection: _RedisConnection, *arguments: str) -> bytes:
    await connection.send_command(*arguments)
    response = await connection.read_response()
    if not isinstance(response, bytes):
        raise TypeError(f"the response to {arguments[0]} is not a string")
    return response


def _parse_info(info: bytes) -> dict[str, str]:
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
