"""The settings of a node that runs on several machines: the table [sharing]."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from svcnode.config.reading import Tables
from svcnode.config.tables import NodeTable, SharingTable
from svcnode.config.values import replica_name
from svcnode.core.address import Address, RegistryAddress, is_loopback, parse_registry_url
from svcnode.core.errors import InvalidValueError
from svcnode.core.url import Url
from svcnode.net.tls import TlsOptions
from svcnode.probes.interpolate import interpolate_url, secret_file
from svcnode.sharing import SharingSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from svcnode.config.sources import Source
    from svcnode.config.tables import RegistryTable

REGISTRY_CACHE = "registry.json"
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


def registry_settings_from(source: Source) -> RegistrySettings:
    """Only what a connection needs; other tables are not read."""
    tables = Tables(source)
    sharing, node_name = tables.get(SharingTable), tables.get(NodeTable).name
    registry, tls = registry_address(sharing, "sharing", source), registry_tls(sharing, "sharing", source)
    source.raise_errors()
    assert registry is not None, "or an error was raised"
    return RegistrySettings(registry, tls, node_name)


def sharing_from(
    sharing: SharingTable, node: NodeTable, source: Source, listen: Sequence[Address], folder: Path | None
) -> SharingSettings | None:
    """None if there is an error. `folder` is the state folder of the node."""
    if node.name is None and node.is_right("name"):
        source.report(("sharing",), "all replicas of a node must have the same name; set name in [node]")
    replica = socket.gethostname() if sharing.replica is None else sharing.replica
    with source.reporting("sharing", "replica"):  # the host name may be invalid
        replica_name(replica)
    registry, tls = registry_address(sharing, "sharing", source), registry_tls(sharing, "sharing", source)
    if registry is None:
        return None
    return SharingSettings(
        registry=registry,
        tls=tls,
        replica=replica,
        observers=sharing.observers,
        lease_s=sharing.lease,
        url=_default_url(listen) if sharing.url is None else sharing.url,
        cache_path=None if folder is None else folder / REGISTRY_CACHE,
    )


def registry_address(table: RegistryTable, name: str, source: Source) -> RegistryAddress | None:
    """The address in the table with this name; None if there is an error."""
    if not table.is_right("registry"):
        return None
    with source.reporting(name, "registry"):
        if table.registry is None:
            raise InvalidValueError("is missing; write etcd://host1:2379,host2:2379/prefix")
        registry = registry_from(table.registry, source.environ)
        registry = registry._replace(url_file=secret_file(table.registry, source.environ))
        if table.password is None:
            return registry
        with source.reporting(name, "password"):
            if registry.password:
                raise InvalidValueError("registry has a password already; remove one of them")
            if not registry.username:
                raise InvalidValueError("needs a user name; write etcd://user@host in registry")
            password_file = secret_file(table.given["password"], source.environ)
            return registry._replace(password=table.password, password_file=password_file)
    return None


def registry_tls(table: RegistryTable, name: str, source: Source) -> TlsOptions | None:
    if not table.is_right("tls", "ca", "client_certificate", "client_key"):
        return None
    options = RegistryTlsOptions(
        Url(scheme="etcd"),
        ca=table.ca or "",
        client_certificate=table.client_certificate or "",
        client_key=table.client_key or "",
    )
    with source.reporting(name):
        options.validate_tls_options(uses_tls=table.tls)
    return options if table.tls else None


def _default_url(listen: Sequence[Address]) -> str:
    for address in listen:
        if address.scheme != "unix" and address.port and not is_loopback(address.host):
            host = socket.gethostname() if address.host in WILDCARD_HOSTS else address.host
            return str(address._replace(host=host))
    return ""
