"""`redis://user:password@host:port/db`, `valkey://…`, and `rediss://…`, `valkeys://…` with TLS: Redis or Valkey.

ready      the server responds to PING; if it is a replica, its link to the primary is up; with `write`, it stores a key
not ready  the server is loading its data; it is a replica whose link to the primary is down, or that has heard
           nothing from it for longer than `max_lag`; it does not have the expected `role`; it reports that it refuses
           writes: no memory left, too few replicas, cluster down, cannot save its data, with `write` also read-only;
           the certificate expires within `min_cert_days`
failed     any other error, such as wrong credentials or too many connections; the write does not end in time or is
           refused for another reason; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer

Whether a server refuses writes is known from INFO, which is sent together with PING. A member of a Redis Cluster is
also asked for CLUSTER INFO. CONFIG GET and INFO keyspace are sent only if the first responses do not decide. A user
without the permission for CLUSTER INFO or CONFIG GET can still check the rest.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from redis.asyncio.connection import AbstractConnection
from redis.exceptions import (
    AskError,
    AuthenticationError,
    InvalidResponse,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.url import UrlForm
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.trace import step
from svcnode.probes.base import CheckError
from svcnode.probes.options import Count, Role, Seconds, WriteTarget
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from svcnode.net.streams import ConnectionStreams

_SECTIONS = ("server", "replication", "memory", "cluster")  # in one request, Redis 6 accepts only one section
_IS_SENTINEL = "this is a Sentinel; to check its master, write redis+sentinel://host:port/NAME_OF_THE_MASTER"
_WRITE_TTL_MS = 60_000
_SLOTS = 16_384  # of a Redis Cluster
_TAGS, _TAGS_PER_BATCH = 1024, 64  # a primary with 16 neighbouring slots has at least one of the tags
# By the first word of an error.
_CODES = {
    "NOAUTH": ReasonCode.AUTH_REQUIRED,
    "WRONGPASS": ReasonCode.AUTH_FAILED,
    "NOPERM": ReasonCode.PERMISSION_DENIED,
    "DENIED": ReasonCode.CLIENT_NOT_ALLOWED,  # protected mode
    "BUSY": ReasonCode.UNHEALTHY,
}
_NOT_READY_CODES = {
    "LOADING": ReasonCode.STARTING,
    "MASTERDOWN": ReasonCode.REPLICATION_STOPPED,
    "CLUSTERDOWN": ReasonCode.CLUSTER_DOWN,
    "MISCONF": ReasonCode.WRITE_FAILED,  # refuses writes, and PING, because it cannot save its data
    "OOM": ReasonCode.OUT_OF_MEMORY,
    "NOREPLICAS": ReasonCode.TOO_FEW_REPLICAS,
    "READONLY": ReasonCode.READ_ONLY,
}
# The first word of these is only ERR.
_CODES_BY_TEXT = (
    ("max number of clients", ReasonCode.TOO_MANY_CONNECTIONS),
    ("DB index is out of range", ReasonCode.NOT_FOUND),
    ("invalid DB index", ReasonCode.NOT_FOUND),
    ("unknown command", ReasonCode.NOT_SUPPORTED),
)


class RedisConnection(AbstractConnection):
    """The driver's connection over streams that are already open."""

    def __init__(self, streams: ConnectionStreams, **options: object) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.streams = streams

    async def _connect(self) -> None:
        self._reader, self._writer = self.streams

    def repr_pieces(self) -> list[tuple[str, str]]:
        return []

    def _host_error(self) -> str:
        return "the server"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RedisProbe(LoginProbe[RedisConnection]):
    role: Role = ""
    db: Count | None = None  # without it, the path of the URL, and without that 0
    write: WriteTarget = ""  # a key
    max_lag: Seconds | None = None  # of a replica
    _slot_keys: list[str] = field(init=False, compare=False, default_factory=list)  # of a cluster; the last one served

    default_port: ClassVar = 6379
    tls_schemes: ClassVar = ("rediss", "valkeys")
    url_form: ClassVar = UrlForm(path="(/[0-9]*)?", query="")

    def __post_init__(self) -> None:
        database = self.database_in_url
        if self.url.query or (database and not (database.isascii() and database.isdigit())):
            raise ProbeError(f"only a database number may follow {self.database_follows}0")
        if database and self.db is not None:
            raise OptionError("db", "is also set in the URL; remove one of the two")
        if self.write and self.role == "replica":
            raise OptionError("write", 'cannot be used with role = "replica"')
        self.credentials()
        self.validate_connection()

    @property
    def database_in_url(self) -> str:
        return self.url.path.removeprefix("/")

    @property
    def database_follows(self) -> str:
        return f"the host: {self.url.scheme}://host:port/"

    @property
    def database(self) -> int:
        return self.db if self.db is not None else int(self.database_in_url or 0)

    async def open(self) -> RedisConnection:
        return await self.log_in(*self.credentials(), self.database)

    async def log_in(self, username: str, password: str, database: int) -> RedisConnection:
        connection = RedisConnection(
            await self.open_streams(),
            username=username or None,
            password=password or None,
            db=database,
            protocol=2,
            driver_info=None,
            socket_timeout=None,  # the check has a deadline
            socket_connect_timeout=None,
        )
        with step("log in"), self.abort_on_error(connection):
            await connection.connect()
        return connection

    async def check_connection(self, connection: RedisConnection) -> Verdict | None:
        await _send(connection, ("PING",), *(("INFO", section) for section in _SECTIONS))
        if await _read(connection) != b"PONG":
            return self.failed("the response to PING is not PONG", ReasonCode.UNEXPECTED_RESPONSE)
        info: dict[str, str] = {}
        try:
            for _ in _SECTIONS:
                info |= _parse_info(await _read(connection))
        except NoPermissionError:
            return self.failed("no permission to run INFO; grant +info", ReasonCode.PERMISSION_DENIED)
        if info.get("redis_mode") == "sentinel":
            raise CheckError(_IS_SENTINEL, ReasonCode.PROTOCOL_ERROR)
        if "role" not in info:
            return self.failed("the response to INFO has no role", ReasonCode.UNEXPECTED_RESPONSE)
        verdict = self._role_verdict(info) or await self._availability_verdict(connection, info)
        if verdict is None and self.write:
            verdict = await self._write_verdict(connection, info)
        return verdict

    def _role_verdict(self, info: dict[str, str]) -> Verdict | None:
        is_replica = info["role"] == "slave"
        if is_replica and info.get("master_link_status") != "up":
            return self.not_ready("the link of this replica to its primary is down", ReasonCode.REPLICATION_STOPPED)
        if is_replica and (verdict := self._lag_verdict(info)) is not None:
            return verdict
        if self.role and is_replica != (self.role == "replica"):
            text = f'the server is a {"replica" if is_replica else "primary"}, but role is "{self.role}"'
            return self.not_ready(text, ReasonCode.WRONG_ROLE)
        return None

    def _lag_verdict(self, info: dict[str, str]) -> Verdict | None:
        """A primary that is frozen keeps its link up until repl-timeout, 60 s by default."""
        if self.max_lag is None:
            return None
        silent_s = int(info.get("master_last_io_seconds_ago", -1))
        if silent_s < 0:
            text = "this replica does not report when it last heard from its primary"
            return self.not_ready(text, ReasonCode.REPLICATION_STOPPED)
        if silent_s <= self.max_lag:
            return None
        text = f"this replica has heard nothing from its primary for {silent_s} s, but max_lag is {self.max_lag:g} s"
        return self.not_ready(text, ReasonCode.LAGGING)

    # ---- whether it serves, as it reports itself

    async def _availability_verdict(self, connection: RedisConnection, info: dict[str, str]) -> Verdict | None:
        if _is_in_cluster(info) and await _cluster_state(connection) not in ("ok", None):
            return self.not_ready("the state of the cluster is not ok", ReasonCode.CLUSTER_DOWN)
        if info["role"] == "slave":  # only its primary writes to it, without these limits
            return None
        if _is_over_maxmemory(info) and not await _has_evictable_keys(connection, info):
            text = "maxmemory is reached and there is nothing to evict, so writes are refused"
            return self.not_ready(text, ReasonCode.OUT_OF_MEMORY)
        good_replicas = info.get("min_slaves_good_slaves")  # only if a minimum is set
        if good_replicas is not None and int(good_replicas) < await _required_replicas(connection, int(good_replicas)):
            text = f"{good_replicas} good replicas are fewer than min-replicas-to-write, so writes are refused"
            return self.not_ready(text, ReasonCode.TOO_FEW_REPLICAS)
        return None

    # ---- the write

    async def _write_verdict(self, connection: RedisConnection, info: dict[str, str]) -> Verdict | None:
        if info["role"] == "slave" and info.get("slave_read_only") != "0":  # in a cluster, it redirects every write
            return self.not_ready("the server is a read-only replica, and write is set", ReasonCode.READ_ONLY)
        try:
            with step("write"):
                if _is_in_cluster(info):
                    return await self._write_in_cluster(connection)
                return await self._set(connection, self.write)
        except NoPermissionError:
            text = f"no permission to write; grant +set +exists ~{self.write}*"
            return self.failed(text, ReasonCode.PERMISSION_DENIED)
        except ResponseError as exc:
            raise server_error(exc, ReasonCode.WRITE_FAILED) from exc

    async def _set(self, connection: RedisConnection, key: str) -> Verdict | None:
        if await _execute(connection, "SET", key, "svcnode", "PX", str(_WRITE_TTL_MS)) != b"OK":
            return self.failed("the response to SET is not OK", ReasonCode.UNEXPECTED_RESPONSE)
        return None

    async def _write_in_cluster(self, connection: RedisConnection) -> Verdict | None:
        """Write a key in a slot of this member: another slot is redirected, which tells nothing about this member."""
        for key in self._slot_keys:
            try:
                return await self._set(connection, key)
            except AskError:
                break  # another member has the slot now
        key = await self._find_slot_key(connection)
        self._slot_keys[:] = filter(None, [key])
        if not key:
            text = "this member of the cluster has no slots, so it takes no writes"
            return self.not_ready(text, ReasonCode.WRITE_FAILED)
        return await self._set(connection, key)

    async def _find_slot_key(self, connection: RedisConnection) -> str:
        """A key in a slot of this member; "" if it has none."""
        keys = [f"{self.write}{{{tag}}}" for tag in _slot_tags()]
        for start in range(0, len(keys), _TAGS_PER_BATCH):
            connection.streams.reset_byte_count()
            batch = keys[start : start + _TAGS_PER_BATCH]
            await _send(connection, *(("EXISTS", key) for key in batch))
            served = [key for key in batch if await _is_served(connection)]
            if served:
                return served[0]
        return ""

    def reset_byte_count(self, connection: RedisConnection) -> None:
        connection.streams.reset_byte_count()

    def transport(self, connection: RedisConnection) -> asyncio.BaseTransport:
        return connection.streams.writer.transport

    def abort(self, connection: RedisConnection) -> None:
        connection.streams.abort()
        connection._reader = connection._writer = None  # otherwise the driver warns in __del__

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if isinstance(exc.__context__, OSError):  # the driver does not set it as the cause
            return verdict_for_os_error(exc.__context__, str(self.url))
        if isinstance(exc, RedisError) and not isinstance(exc, InvalidResponse):
            exc = server_error(exc)
        elif not isinstance(exc, CheckError):
            exc = CheckError("the response is not Redis", ReasonCode.PROTOCOL_ERROR)
        return exc.verdict(self.url)


def server_error(exc: RedisError, other: ReasonCode = ReasonCode.SERVER_ERROR) -> CheckError:
    """`other` is the code of an error without a code of its own."""
    text = driver_error_text(exc).rstrip(".")
    word = exc.status_code or text.partition(" ")[0]  # the driver removes the word if it knows it
    if word == "MISCONF" and "No space left on device" in text:  # only if it writes an append-only file
        return CheckError(text, ReasonCode.STORAGE_FULL, Outcome.NOT_READY)
    if word in _NOT_READY_CODES:
        return CheckError(text, _NOT_READY_CODES[word], Outcome.NOT_READY)
    return CheckError(text, _CODES.get(word) or _code_by_text(exc, text, other))


def _code_by_text(exc: RedisError, text: str, other: ReasonCode) -> ReasonCode:
    if isinstance(exc, AuthenticationError):
        return ReasonCode.AUTH_FAILED
    if isinstance(exc, RedisConnectionError) and exc.status_code is None:  # an error of the driver, not of the server
        return ReasonCode.CONNECTION_CLOSED
    return next((code for part, code in _CODES_BY_TEXT if part in text), other)


# ---- INFO and similar


def _parse_info(info: bytes) -> dict[str, str]:
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _is_in_cluster(info: dict[str, str]) -> bool:
    return info.get("cluster_enabled") == "1"


async def _cluster_state(connection: RedisConnection) -> str | None:
    try:
        return _parse_info(await _execute(connection, "CLUSTER", "INFO")).get("cluster_state", "unknown")
    except NoPermissionError:
        return None


def _is_over_maxmemory(info: dict[str, str]) -> bool:
    """As the server decides before each command that needs memory."""
    used_bytes = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
    return 0 < int(info.get("maxmemory", 0)) < used_bytes


async def _has_evictable_keys(connection: RedisConnection, info: dict[str, str]) -> bool:
    policy = info.get("maxmemory_policy", "")
    if policy == "noeviction":
        return False
    counted = "expires=" if policy.startswith("volatile-") else "keys="
    databases = _parse_info(await _execute(connection, "INFO", "keyspace")).values()  # keys=2,expires=1,avg_ttl=0
    return any(
        int(part.removeprefix(counted)) for text in databases for part in text.split(",") if part.startswith(counted)
    )


async def _required_replicas(connection: RedisConnection, good_replicas: int) -> int:
    """At least 1; the number is read only if it matters, and if the user may run CONFIG GET."""
    if good_replicas:
        try:
            response = await call(connection, "CONFIG", "GET", "min-replicas-to-write")
        except ResponseError:  # no permission, or the provider has removed the command
            response = []
        if isinstance(response, list) and len(response) == 2:
            return int(response[1])
    return 1


async def _is_served(connection: RedisConnection) -> bool:
    """Whether the server has the slot of the key in the request; the other response is MOVED or ASK."""
    try:
        await connection.read_response()
    except AskError:
        return False
    return True


@cache
def _slot_tags() -> tuple[str, ...]:
    """Hash tags, evenly distributed over the slots, also in each beginning of the list."""
    by_part: dict[int, str] = {}
    number = 0
    while len(by_part) < _TAGS:
        tag = str(number)
        by_part.setdefault(binascii.crc_hqx(tag.encode(), 0) % _SLOTS * _TAGS // _SLOTS, tag)
        number += 1
    return tuple(by_part[part] for part in _spread(_TAGS))


def _spread(size: int) -> Iterator[int]:
    """The numbers below a power of two, by their reversed bits: 0, 4, 2, 6, 1, 5, 3, 7."""
    bits = size.bit_length() - 1
    return (int(f"{number:0{bits}b}"[::-1], 2) for number in range(size))


# ---- requests


async def _send(connection: RedisConnection, *requests: tuple[str, ...]) -> None:
    await connection.send_packed_command(connection.pack_commands(requests))


async def _read(connection: RedisConnection) -> bytes:
    response = await connection.read_response()
    if not isinstance(response, bytes):
        raise TypeError("the response is not a string")
    return response


async def _execute(connection: RedisConnection, *request: str) -> bytes:
    await _send(connection, request)
    return await _read(connection)


async def call(connection: RedisConnection, *request: str) -> object:
    """As `_execute`, for a response of any type."""
    await _send(connection, request)
    return await connection.read_response()
