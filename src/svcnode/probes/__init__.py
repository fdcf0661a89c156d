"""Probes, one file per kind.

A kind is a frozen dataclass: its first field is the URL, its other fields are its options, and `check()` returns a
verdict. `KINDS` lists the kinds of this package; each is imported on first use. Other packages add kinds through the
entry-point group `svcnode.probes`, in the same format.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

from svcnode.core.errors import InvalidValueError, OptionError, ProbeError
from svcnode.core.text import suggestion
from svcnode.probes.base import Probe
from svcnode.version import install_command

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from svcnode.core.url import Url

# scheme: "module:Class [extra]"; the extra of this package installs the driver of the kind
KINDS = {
    "amqp": "svcnode.probes.amqp:AmqpProbe [amqp]",
    "amqps": "svcnode.probes.amqp:AmqpProbe [amqp]",
    "beacon+http": "svcnode.probes.beacon:BeaconProbe",
    "beacon+https": "svcnode.probes.beacon:BeaconProbe",
    "bitcoin+http": "svcnode.probes.bitcoin:BitcoinProbe",
    "bitcoin+https": "svcnode.probes.bitcoin:BitcoinProbe",
    "clock": "svcnode.probes.clock:ClockProbe",
    "cometbft+http": "svcnode.probes.cometbft:CometbftProbe",
    "cometbft+https": "svcnode.probes.cometbft:CometbftProbe",
    "disk": "svcnode.probes.disk:DiskProbe",
    "dns": "svcnode.probes.dns:DnsProbe [dns]",
    "etcd": "svcnode.probes.etcd:EtcdProbe",
    "ethereum+http": "svcnode.probes.ethereum:EthereumProbe",
    "ethereum+https": "svcnode.probes.ethereum:EthereumProbe",
    "ethereum+unix": "svcnode.probes.ethereum:UnixEthereumProbe",
    "ethereum+ws": "svcnode.probes.ethereum_ws:EthereumSubscriptionProbe [websocket]",
    "ethereum+wss": "svcnode.probes.ethereum_ws:EthereumSubscriptionProbe [websocket]",
    "exec": "svcnode.probes.exec:ExecProbe",
    "file": "svcnode.probes.file:FileProbe",
    "grpc": "svcnode.probes.grpc:GrpcProbe [grpc]",
    "grpcs": "svcnode.probes.grpc:GrpcProbe [grpc]",
    "heartbeat": "svcnode.probes.heartbeat:HeartbeatProbe",
    "http": "svcnode.probes.http:HttpProbe",
    "http+unix": "svcnode.probes.http:UnixHttpProbe",
    "https": "svcnode.probes.http:HttpProbe",
    "icmp": "svcnode.probes.icmp:IcmpProbe",
    "ipfs+http": "svcnode.probes.ipfs:IpfsProbe",
    "ipfs+https": "svcnode.probes.ipfs:IpfsProbe",
    "jsonrpc+http": "svcnode.probes.jsonrpc:JsonRpcProbe",
    "jsonrpc+https": "svcnode.probes.jsonrpc:JsonRpcProbe",
    "jsonrpc+unix": "svcnode.probes.jsonrpc:UnixJsonRpcProbe",
    "mariadb": "svcnode.probes.mysql:MysqlProbe [mysql]",
    "memcached": "svcnode.probes.memcached:MemcachedProbe",
    "metrics+http": "svcnode.probes.metrics:MetricsProbe",
    "metrics+https": "svcnode.probes.metrics:MetricsProbe",
    "mevboost+http": "svcnode.probes.mevboost:MevBoostProbe",
    "mevboost+https": "svcnode.probes.mevboost:MevBoostProbe",
    "mysql": "svcnode.probes.mysql:MysqlProbe [mysql]",
    "nats": "svcnode.probes.nats:NatsProbe [nats]",
    "opnode+http": "svcnode.probes.opnode:OpNodeProbe",
    "opnode+https": "svcnode.probes.opnode:OpNodeProbe",
    "postgres": "svcnode.probes.postgresql:PostgresqlProbe [postgresql]",
    "postgresql": "svcnode.probes.postgresql:PostgresqlProbe [postgresql]",
    "redis": "svcnode.probes.redis:RedisProbe [redis]",
    "redis+sentinel": "svcnode.probes.redis_sentinel:RedisSentinelProbe [redis]",
    "rediss": "svcnode.probes.redis:RedisProbe [redis]",
    "solana+http": "svcnode.probes.solana:SolanaProbe",
    "solana+https": "svcnode.probes.solana:SolanaProbe",
    "sqlite": "svcnode.probes.sqlite:SqliteProbe",
    "substrate+http": "svcnode.probes.substrate:SubstrateProbe",
    "substrate+https": "svcnode.probes.substrate:SubstrateProbe",
    "svc+http": "svcnode.probes.svc:SvcProbe",
    "svc+https": "svcnode.probes.svc:SvcProbe",
    "systemd": "svcnode.probes.systemd:SystemdProbe [systemd]",
    "tcp": "svcnode.probes.tcp:TcpProbe",
    "tls": "svcnode.probes.tcp:TcpProbe",
    "valkey": "svcnode.probes.redis:RedisProbe [redis]",
    "valkeys": "svcnode.probes.redis:RedisProbe [redis]",
    "web3signer+http": "svcnode.probes.web3signer:Web3SignerProbe",
    "web3signer+https": "svcnode.probes.web3signer:Web3SignerProbe",
}
ENTRY_POINT_GROUP = "svcnode.probes"

_TARGET_PATTERN = re.compile(r"(?P<module>[\w.]+):(?P<name>\w+)(?:\s*\[(?P<extra>[\w-]+)\])?")


class ProbeKind(Protocol):
    permission: str

    def __call__(self, url: Url, **options: Any) -> Probe: ...  # noqa: ANN401  each kind has other options


def make_probe(
    config: str | Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
    allowed: Collection[str] = (),
) -> Probe:
    """Make a probe from a URL, or from a table with a URL and options.

    `${NAME}` and `{ file = "…" }` are replaced. A kind with a `permission`, such as exec, must be in `allowed`.
    """
    from svcnode.core.url import Url
    from svcnode.probes.interpolate import interpolate_url

    environ = os.environ if environ is None else environ
    given = {"url": config} if isinstance(config, str) or config.keys() == {"file"} else dict(config)
    if "url" not in given:
        raise ProbeError('a probe needs a url, as in { url = "http://127.0.0.1:8080/health" }')
    try:
        url = Url.parse(interpolate_url(given.pop("url"), environ))
    except InvalidValueError as exc:
        error = ProbeError(str(exc))
        error.others = _errors_beside_the_url(scheme_of(config), given, environ)
        raise error from exc
    kind = _load_kind(url.scheme)
    _check_permission(kind, url.scheme, allowed)
    return kind(url, **_parse_options(kind, given, environ))


def _errors_beside_the_url(scheme: str, given: dict[str, Any], environ: Mapping[str, str]) -> tuple[ProbeError, ...]:
    """Of a probe with a wrong URL, such as one with a variable that is not set: a missing driver and wrong options."""
    if scheme not in KINDS:
        return ()
    try:
        _parse_options(_load_kind(scheme), given, environ)
    except ProbeError as exc:
        return (exc, *exc.others)
    return ()


def scheme_of(config: object) -> str:
    """The scheme of a probe as it is written; empty if there is none."""
    url = config.get("url") if isinstance(config, dict) else config
    return url.partition(":")[0].lower() if isinstance(url, str) else ""


def option_names(scheme: str) -> tuple[str, ...]:
    """The options of a kind; none if there is no such kind, or its driver is missing."""
    try:
        kind: Any = _load_kind(scheme)
    except ProbeError:
        return ()
    return tuple(field.name for field in fields(kind) if field.init and field.name != "url")


def is_loaded(scheme: str) -> bool:
    """Whether the module of a kind of this package is imported. Of another package: False."""
    return KINDS.get(scheme, "").partition(":")[0] in sys.modules


def missing_driver(scheme: str) -> str:
    """The command that installs the driver of a kind of this package; empty if it has its driver or needs none."""
    found = _TARGET_PATTERN.fullmatch(KINDS.get(scheme, ""))
    if found is None or not found["extra"]:
        return ""
    try:
        import_module(found["module"])
    except ModuleNotFoundError:
        return install_command(found["extra"])
    return ""


def load_kinds(schemes: Iterable[str]) -> None:
    """Import them; `make_probe` raises the errors."""
    for scheme in schemes:
        with suppress(ProbeError):
            _load_kind(scheme)


def _parse_options(kind: Any, given: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:  # noqa: ANN401
    from svcnode.probes.interpolate import interpolate, interpolate_url
    from svcnode.probes.options import URL_OPTIONS, parse_options, raise_first

    unreadable: dict[str | int, OptionError] = {}
    for name, value in given.items():
        try:
            given[name] = (interpolate_url if name in URL_OPTIONS else interpolate)(value, environ)
        except InvalidValueError as exc:
            unreadable[name] = OptionError(name, str(exc))
    errors, parsed = [*unreadable.values()], {}
    try:
        parsed = parse_options(kind, {name: value for name, value in given.items() if name not in unreadable})
    except OptionError as exc:
        found = [error for error in (exc, *exc.others) if isinstance(error, OptionError)]
        errors += [error for error in found if error.option not in unreadable]  # such as that it is missing
    raise_first(errors)
    return parsed


def _check_permission(kind: Any, scheme: str, allowed: Collection[str]) -> None:  # noqa: ANN401  a ProbeKind
    permission = kind.permission
    if permission and permission not in allowed:
        raise ProbeError(
            f"{scheme} probes run programs on this machine; to allow them, set {permission} = true in [security] "
            f"or use --{permission.replace('_', '-')}; in a program, pass an {kind.__name__}"
        )


def _load_kind(scheme: str) -> ProbeKind:
    target = KINDS.get(scheme) or _entry_point_kinds().get(scheme)
    if target is None:
        raise ProbeError(f'unknown scheme "{scheme}"{_suggested_scheme(scheme)}')
    found = _TARGET_PATTERN.fullmatch(target)
    if found is None:
        raise ProbeError(f'invalid entry point "{target}" for the scheme {scheme}: must be "module:Class"')
    try:
        kind: Any = getattr(import_module(found["module"]), found["name"])
    except ModuleNotFoundError as exc:
        raise ProbeError(_missing_module_text(scheme, found["extra"], exc)) from exc
    except Exception as exc:
        raise ProbeError(f"cannot load the kind of the scheme {scheme}: {type(exc).__name__}: {exc}") from exc
    is_probe_class = isinstance(kind, type) and issubclass(kind, Probe) and is_dataclass(kind)
    if not is_probe_class:
        raise ProbeError(
            f'invalid entry point "{target}" for the scheme {scheme}: must be a dataclass derived from svcnode.Probe'
        )
    if missing := sorted(kind.__abstractmethods__):
        raise ProbeError(f'invalid entry point "{target}" for the scheme {scheme}: it lacks {", ".join(missing)}()')
    return cast("ProbeKind", kind)


def _suggested_scheme(scheme: str) -> str:
    over_http = f"{scheme}+http"  # the most common of the schemes of a kind such as ethereum
    known = [*KINDS, *_entry_point_kinds()]
    return suggestion(scheme, [over_http] if over_http in known else known)


def _missing_module_text(scheme: str, extra: str | None, exc: ModuleNotFoundError) -> str:
    if extra and scheme in KINDS:
        return f"{scheme} probes need a driver: {install_command(extra)}"
    return f"cannot import {exc.name}, which the scheme {scheme} needs"


def _entry_point_kinds() -> dict[str, str]:
    """Read only for schemes of other packages: it takes several milliseconds."""
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)}
