"""The settings of a node that runs on several machines: the table [sharing], and who checks a service."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from svcnode.core.address import Address, RegistryAddress, is_loopback, parse_node_address, parse_registry_url
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import MAX_ID_CHARS, validate_text
from svcnode.core.redaction import register_secret
from svcnode.core.units import parse_duration_s
from svcnode.core.url import Url
from svcnode.net.tls import TlsOptions
from svcnode.probes.interpolate import interpolate, interpolate_url
from svcnode.sharing import SharingSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from svcnode.config.schema import FileTable, RegistryTable
    from svcnode.config.sources import Source

DEFAULT_LEASE, MIN_LEASE_S, MAX_LEASE_S = "10s", 2.0, 600.0
MAX_OBSERVERS = 7
WILDCARD_HOSTS = ("0.0.0.0", "::")  # noqa: S104  compared, not bound


class RegistrySettings(NamedTuple):
    """How a client connects to the registry. A replica has `SharingSettings`."""

    registry: RegistryAddress
    tls: TlsOptions | None  # None: without TLS
    node_name: str | None  # of the configuration


class RegistryTlsOptions(TlsOptions):
    __slots__ = ()
    tls_enabled_by: ClassVar[str] = "tls = true"


def registry_from(value: object, environ: Mapping[str, str]) -> RegistryAddress:
    """The registry of a URL with `${NAME}`, or in a file: `{ file = "…" }`. Raises `InvalidValueError`."""
    if not isinstance(value, str) and not (isinstance(value, dict) and value.keys() == {"file"}):
        raise InvalidValueError('must be a URL, or { file = "/path/to/file" } with a URL')
    return parse_registry_url(interpolate_url(value, environ))


def registry_settings_from(table: FileTable, source: Source) -> RegistrySettings:
    """Only what a connection needs."""
    sharing = table.get("sharing", {})
    return RegistrySettings(
        registry_address(sharing, "sharing", source),
        registry_tls(sharing, "sharing", source),
        table.get("node", {}).get("name"),
    )


def sharing_from(table: FileTable, source: Source, listen: Sequence[Address]) -> SharingSettings:
    sharing = table["sharing"]
    if "name" not in table.get("node", {}):
        raise source.error(("sharing",), "the replicas of a node have the same name; set name in [node]")
    replica = sharing.get("replica", socket.gethostname())
    with source.error_context("sharing", "replica"):
        validate_replica_name(replica)
    observers = sharing.get("observers", 1)
    with source.error_context("sharing", "observers"):
        _check_observers(observers)
    with source.error_context("sharing", "lease"):
        lease_s = parse_duration_s(sharing.get("lease", DEFAULT_LEASE))
        if not MIN_LEASE_S <= lease_s <= MAX_LEASE_S:
            raise InvalidValueError("must be from 2s to 10m")
    with source.error_context("sharing", "url"):
        url = _checked_url(sharing["url"]) if "url" in sharing else _default_url(listen)
    return SharingSettings(
        registry=registry_address(sharing, "sharing", source),
        tls=registry_tls(sharing, "sharing", source),
        replica=replica,
        observers=observers,
        lease_s=lease_s,
        url=url,
    )


def registry_address(table: RegistryTable, name: str, source: Source) -> RegistryAddress:
    """Of the table with this name."""
    with source.error_context(name, "registry"):
        if "registry" not in table:
            raise InvalidValueError("is missing; write etcd://host1:2379,host2:2379/prefix")
        registry = registry_from(table["registry"], source.environ)
    if "password" not in table:
        return registry
    with source.error_context(name, "password"):
        password = interpolate(table["password"], source.environ)
        if not isinstance(password, str) or not password:
            raise InvalidValueError('must be a string, "${NAME}", or { file = "…" }')
        register_secret(password)
        if registry.password:
            raise InvalidValueError("registry has a password already; remove one of them")
        if not registry.username:
            raise InvalidValueError("needs a user name; write etcd://user@host in registry")
    return registry._replace(password=password)


def registry_tls(table: RegistryTable, name: str, source: Source) -> TlsOptions | None:
    uses_tls = table.get("tls", False)
    options = RegistryTlsOptions(
        Url(scheme="etcd"),
        ca=table.get("ca", ""),
        client_certificate=table.get("client_certificate", ""),
        client_key=table.get("client_key", ""),
    )
    with source.error_context(name):
        options.validate_tls_options(uses_tls=uses_tls)
    return options if uses_tls else None


def _checked_url(text: str) -> str:
    if not text:
        return ""
    if not text.startswith(("http://", "https://")):
        raise InvalidValueError('must be the URL of this node for others, such as "http://10.0.0.5:8420", or empty')
    address = parse_node_address(text)
    if address.url.username or address.url.password:
        raise InvalidValueError("must have no user name and no password: all replicas can read it")
    return f"{address.origin}{address.url.path}"


def _default_url(listen: Sequence[Address]) -> str:
    for address in listen:
        if address.scheme != "unix" and address.port and not is_loopback(address.host):
            host = socket.gethostname() if address.host in WILDCARD_HOSTS else address.host
            return str(address._replace(host=host))
    return ""


def validate_replica_name(name: str) -> None:
    validate_text("the name of a replica", name)
    if len(name) > MAX_ID_CHARS:
        raise InvalidValueError(f"the name of a replica has at most {MAX_ID_CHARS} characters, not {len(name)}")


def check_observer_key(key: str, service: Mapping[str, Any]) -> None:
    """`observers` or `checked_by` of a service. Raises `InvalidValueError`."""
    replicas = service.get("checked_by")
    if key == "checked_by":
        _check_replicas(service[key])
        return
    _check_observers(service[key])
    if replicas is not None and service[key] > len(replicas):
        raise InvalidValueError(f"must be at most the number of replicas in checked_by, {len(replicas)}")


def _check_observers(observers: int) -> None:
    if not 1 <= observers <= MAX_OBSERVERS:
        raise InvalidValueError(f"must be from 1 to {MAX_OBSERVERS} replicas, not {observers}")


def _check_replicas(names: Sequence[str]) -> None:
    if not names:
        raise InvalidValueError("needs at least one replica; remove it if every replica may check the service")
    for name in names:
        validate_replica_name(name)
    if len(set(names)) < len(names):
        raise InvalidValueError("duplicate replica")
