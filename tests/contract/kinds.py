"""The kinds that the contract suite checks, by the table of kinds.

Almost everything follows from the class of a kind: whether its URL may have a login, whether it uses TLS, whether it
sends HTTP. `ROWS` has only what cannot be derived. A kind without a row is checked as one that opens a connection.
"""

from __future__ import annotations

import dataclasses
import socket
import sqlite3
import ssl
import struct
import sys
from contextlib import suppress
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any
from unittest import mock

from pamqp import commands
from pamqp.frame import marshal

from svcnode.core.errors import ProbeError
from svcnode.core.model import Outcome
from svcnode.net.http1 import Http1Client
from svcnode.probes import KINDS, _load_kind, make_probe
from tests.support.datagrams import UdpBackend, sntp_answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.support.backends import Peer

PASSWORD = "correct-horse-battery"  # in the URL of every kind that can have one; must never be shown
LOGIN = f"reader:{PASSWORD}@"
ADDRESS = "127.0.0.1:1"
ALLOWED = ("allow_exec",)
HTTP_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
NATS_INFO = b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576}\r\n'
MYSQL_TLS = 1 << 11


def mysql_greeting(capabilities: int = 0) -> bytes:
    low, high = (0x8200 | capabilities) & 0xFFFF, 1 << 3  # that of 4.1 with secure passwords and plugins
    head = b"\x0a8.0.30\0" + struct.pack("<I", 7) + b"saltsalt\0" + struct.pack("<HBHHB", low, 45, 2, high, 21)
    payload = head + bytes(10) + b"saltsaltsalt\0mysql_native_password\0"
    return struct.pack("<I", len(payload))[:3] + b"\0" + payload


def _upgrade_nats(peer: Peer) -> None:
    peer.send(b'INFO {"tls_required": true}\r\n')


def _upgrade_mysql(peer: Peer) -> None:
    peer.send(mysql_greeting(MYSQL_TLS))
    peer.sock.recv(36, socket.MSG_WAITALL)


def _upgrade_postgresql(peer: Peer) -> None:
    peer.sock.recv(8, socket.MSG_WAITALL)
    peer.send(b"S")


def _database(folder: Path) -> Path:
    path = folder / "ledger.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE IF NOT EXISTS ledger (x)")
    database.close()
    return path


@cache
def _time_server() -> UdpBackend:
    """Until the process ends."""
    return UdpBackend(lambda request: [sntp_answer(request)]).__enter__()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What cannot be derived from the class of a kind."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # without which it is ready too early
    path: str = ""  # that its URL requires
    beginnings: tuple[bytes, ...] = ()  # of what a correct server sends
    lie: bytes = b""  # a length that is not true, or that would need all memory
    upgrade: Callable[[Peer], object] | None = None  # how the server offers TLS, if the handshake is not the beginning
    reads_body: bool = True  # of an HTTP response
    has_own_tls: bool = False  # the driver makes the handshake, and tells less about it
    local: Callable[[Path], dict[str, Any]] | None = None  # a probe of this machine
    outcomes: tuple[Outcome, ...] = (Outcome.READY,)  # that it may have


_AMQP_START = marshal(commands.Connection.Start(mechanisms="AMQPLAIN PLAIN"), 0)
_AMQP_TUNE = marshal(commands.Connection.Tune(2047, 131_072, 0), 0)
_AMQP = Row(beginnings=(_AMQP_START, _AMQP_START[:-9], _AMQP_START + _AMQP_TUNE), lie=b"\x01\x00\x00\x7f\xff\xff\xff")
_GRPC = Row(
    beginnings=(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00", b"\0\0\0\x04\0\0\0\0\0"),
    lie=b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
)
_DNS = Row(
    options={"tcp": True},
    path="/example.org",
    beginnings=(b"\x00\x20", b"\x00\x1d\x00\x00\x84\x00\x00\x01\x00\x00\x00\x00\x00\x00"),
    lie=b"\xff\xff",
)
_HTTP = Row(options={"json": {"/status": "ok"}})
_METRICS = Row(options={"require": ["up == 1"]})
_MYSQL = Row(
    beginnings=(b"\x4a\0\0\0\x0a8.0.36\0", mysql_greeting(), mysql_greeting() + b"\x07\0\0\x02\0\0\0\x02\0\0\0"),
    lie=b"\xff\xff\xff\x00",
    upgrade=_upgrade_mysql,
)
_POSTGRESQL = Row(
    beginnings=(b"R\0\0\0\x08", b"R\0\0\0\x08\0\0\0\0", b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I", b"E\0\0\0\x20"),
    lie=b"R\x7f\xff\xff\xff",
    upgrade=_upgrade_postgresql,
    has_own_tls=True,
)
_REDIS = Row(beginnings=(b"$100\r\nredis_version", b"*2\r\n", b"+OK\r\n"), lie=b"*999999999\r\n$999999999999\r\n")
_SVC = Row(reads_body=False)
_TCP = Row(options={"send": "hello\n", "expect": "a text that no server of these tests sends"})

ROWS = {
    "amqp": _AMQP,
    "amqps": _AMQP,
    "clock": Row(local=lambda _: {"url": "clock:", "server": _time_server().address, "kernel": False}),
    "disk": Row(local=lambda folder: {"url": f"disk:{folder}", "min_free": "1B"}),
    "dns": _DNS,
    "exec": Row(local=lambda _: {"url": "exec:", "argv": [sys.executable, "-c", ""]}),
    "file": Row(local=lambda folder: {"url": f"file:{_database(folder)}"}),
    "grpc": _GRPC,
    "grpcs": _GRPC,
    "heartbeat": Row(local=lambda _: {"url": "heartbeat:30s"}, outcomes=(Outcome.UNKNOWN,)),
    "http": _HTTP,
    "http+unix": _HTTP,
    "https": _HTTP,
    # Unknown where the kernel does not allow it.
    "icmp": Row(local=lambda _: {"url": "icmp:127.0.0.1"}, outcomes=(Outcome.READY, Outcome.UNKNOWN)),
    "mariadb": _MYSQL,
    "memcached": Row(beginnings=(b"VERSION 1.6.18", b"ERROR "), lie=b"VALUE svcnode 0 999999999999\r\n"),
    "metrics+http": _METRICS,
    "metrics+https": _METRICS,
    "mysql": _MYSQL,
    "nats": Row(
        beginnings=(NATS_INFO, b"INFO ", NATS_INFO + b"PONG\r\n", NATS_INFO + b"-ERR "),
        lie=NATS_INFO + b"PONG\r\nMSG a 1 999999999999\r\n",
        upgrade=_upgrade_nats,
    ),
    "postgres": _POSTGRESQL,
    "postgresql": _POSTGRESQL,
    "redis": _REDIS,
    "redis+sentinel": dataclasses.replace(_REDIS, path="/main"),
    "rediss": _REDIS,
    "sqlite": Row(local=lambda folder: {"url": f"sqlite:{_database(folder)}"}),
    "svc+http": _SVC,
    "svc+https": _SVC,
    "systemd": Row(
        local=lambda folder: {"url": "systemd:svcnode", "bus": f"{folder}/no-bus"}, outcomes=(Outcome.UNKNOWN,)
    ),
    "tcp": _TCP,
    "tls": _TCP,
    "valkey": _REDIS,
    "valkeys": _REDIS,
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """A scheme, with the options that select or omit TLS."""

    scheme: str
    tls_options: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return "-".join([self.scheme, *map(str, self.tls_options)])

    @property
    def row(self) -> Row:
        return ROWS.get(self.scheme, Row())

    @cached_property
    def probe_class(self) -> Any:
        return _load_kind(self.scheme)

    @cached_property
    def options(self) -> dict[str, Any]:
        """With a value for each option that is required."""
        fields = dataclasses.fields(self.probe_class)
        has_default = {f.name for f in fields if (f.default, f.default_factory) != (dataclasses.MISSING,) * 2}
        required = {f.name: "status" for f in fields if f.init and f.name not in {"url", *has_default}}
        return {**required, **self.row.options, **self.tls_options}

    @property
    def is_unix(self) -> bool:
        """Its address is the path of a socket."""
        return self.scheme.endswith("+unix")

    @property
    def is_http(self) -> bool:
        return issubclass(self.probe_class, Http1Client)

    @property
    def has_own_client(self) -> bool:
        """The HTTP kinds share a client, so some faults are tried with one of them only."""
        return not self.is_http or self.scheme in {"http", "https"}

    @cached_property
    def uses_tls(self) -> bool:
        """A kind without TLS rejects its options."""
        return is_accepted(self.config(ADDRESS, server_name="localhost"))

    @cached_property
    def login(self) -> str:
        return LOGIN if is_accepted(self._config(LOGIN, ADDRESS)) else ""

    @property
    def option_names(self) -> set[str]:
        return {field.name for field in dataclasses.fields(self.probe_class) if field.init}

    def config(self, address: str, **options: Any) -> dict[str, Any]:
        """A probe of the server at this address, with a password where the kind has one."""
        return self._config(self.login, address, **options)

    def without_login(self, address: str, **options: Any) -> dict[str, Any]:
        return self._config("", address, **options)

    def _config(self, login: str, address: str, **options: Any) -> dict[str, Any]:
        url = f"{self.scheme}://{login}{address}{self.row.path}"
        return {"url": url, **self.options, **options}


def is_accepted(config: dict[str, Any]) -> bool:
    """Without reading the authorities of the system, which takes longer than everything else."""
    with suppress(ProbeError), mock.patch.object(ssl.SSLContext, "set_default_verify_paths"):
        make_probe(config, allowed=ALLOWED)
        return True
    return False


def _variants(scheme: str) -> Iterator[Kind]:
    plain = Kind(scheme)
    names = plain.option_names
    if "tls" in names:
        yield plain
        yield Kind(scheme, {"tls": True})
    elif "sslmode" in names:
        yield Kind(scheme, {"sslmode": "disable"})
        yield Kind(scheme, {"sslmode": "verify-full"})
    else:
        yield plain


NETWORK_KINDS = [kind for scheme in KINDS if ROWS.get(scheme, Row()).local is None for kind in _variants(scheme)]


def network_kinds(*, uses_tls: bool) -> list[Kind]:
    """One of each class: mariadb stands for mysql too, which has the same class."""
    found: dict[type, Kind] = {}
    for kind in NETWORK_KINDS:
        if kind.uses_tls is uses_tls and not kind.is_unix:
            found.setdefault(kind.probe_class, kind)
    return [*found.values()]


PLAIN_KINDS = network_kinds(uses_tls=False)
TLS_KINDS = network_kinds(uses_tls=True)
UNIX_KINDS = [kind for kind in NETWORK_KINDS if kind.is_unix]
LOCAL_SCHEMES = [scheme for scheme in KINDS if ROWS.get(scheme, Row()).local is not None]
