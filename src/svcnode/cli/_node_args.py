"""The arguments of commands that send requests to nodes, and the clients made from them."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli._args import add_config_option, add_registry_option, positive_duration_s
from svcnode.cli.terminal.loop_lag import MAX_EXTENSION_S
from svcnode.cli.terminal.snapshot import NodeSource, RegistryEntry
from svcnode.client import AsyncClient
from svcnode.core.address import PUBLIC_TWIN_PREFIX
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, RegistryError, SvcnodeError, UnreachableError
from svcnode.core.model import DEFAULT_PREFIX
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import AsyncIterator, Iterator

    from svcnode.cli._args import CommandParser
    from svcnode.client import BackingService, Health, Identity
    from svcnode.core.address import RegistryAddress
    from svcnode.sharing.client import NodeReplicas
    from svcnode.sharing.etcd import EtcdClient

DEFAULT_PREFIXES = (DEFAULT_PREFIX, PUBLIC_TWIN_PREFIX)
MAX_LIST_CHARS = 1_000_000  # a longer file is not a list of nodes, and may be endless


def add_node_arguments(parser: CommandParser) -> None:
    add = parser.add_argument
    add(
        "urls",
        nargs="*",
        metavar="URL",
        help="a node to ask: host:port, a URL, or unix:/path (default: the node of the configuration)",
    )
    add_config_option(parser)
    add(
        "--from",
        dest="file",
        metavar="FILE",
        help='ask the nodes in this file, one URL per line, with comments after "#"; "-" reads stdin',
    )
    add(
        "--prefix",
        metavar="PREFIX",
        help="path in front of the four endpoints (default: /svc, or /eigen if that is not found)",
    )
    add("--version", metavar="VERSION", help="version of the interface to request")
    add(
        "--timeout", default="10s", metavar="DURATION", help="how long all requests to one node may take (default: 10s)"
    )
    add("--ca", metavar="FILE", help="PEM file of the certificate authority to trust instead of the system's")
    add_registry_option(parser, "ask all replicas of all nodes in this registry")


async def sources_from(arguments: Namespace, registry: RegistryNodes | None) -> list[NodeSource]:
    """In the order given: the URLs of the command line, then those of the file, then those of the registry.

    If none is named, the node of the configuration.
    """
    if not arguments.urls and arguments.file is None and arguments.registry is None:
        _use_configuration(arguments)
    sources = [_source(arguments, location, url) for location, url in _node_urls(arguments)]
    if registry is not None:
        entries = await registry.read()
        if not entries:
            raise SvcnodeError(f"there is no node in {registry.address}")
        sources += map(registry.source, entries)
    if not sources:
        arguments.parser.error(f"no node to ask: {arguments.file or arguments.registry} has no URL")
    return sources


def _source(arguments: Namespace, location: str, url: str, in_registry: RegistryEntry | None = None) -> NodeSource:
    """`location` says where the URL was found, for error messages."""
    prefixes = DEFAULT_PREFIXES if arguments.prefix is None else (arguments.prefix,)
    # The snapshot applies --timeout to a node as a whole, and extends it while this process is slow. The client's own
    # timeout comes after that.
    client_timeout_s = timeout_from(arguments) + MAX_EXTENSION_S
    try:
        clients = [
            AsyncClient(url, prefix=prefix, version=arguments.version, timeout=client_timeout_s, ca=arguments.ca)
            for prefix in prefixes
        ]
    except InvalidValueError as exc:
        raise InvalidValueError(f"{location}{exc}") from exc
    return NodeSource(*clients, in_registry=in_registry)


def _use_configuration(arguments: Namespace) -> None:
    from svcnode.cli.operator_url import configured_node

    url, prefix, arguments.ca = configured_node(arguments.config, arguments.ca)
    arguments.urls = [url]
    arguments.prefix = prefix if arguments.prefix is None else arguments.prefix


def timeout_from(arguments: Namespace) -> float:
    return positive_duration_s("--timeout", arguments.timeout)


def _node_urls(arguments: Namespace) -> Iterator[tuple[str, str]]:
    """Each URL with its file and line, for error messages."""
    for url in arguments.urls:
        yield "", url
    if arguments.file is None:
        return
    for number, line in enumerate(_read_list(arguments.file).splitlines(), start=1):
        url = line.partition("#")[0].strip()
        if url:
            yield f"{arguments.file}:{number}: ", url


def _read_list(file: str) -> str:
    if file == "-" and sys.stdin is None:
        raise InvalidValueError("--from: stdin is closed")
    try:
        if file == "-":
            text = sys.stdin.read(MAX_LIST_CHARS + 1)
        else:
            with Path(file).open(encoding="utf-8") as opened:
                text = opened.read(MAX_LIST_CHARS + 1)
    except OSError as exc:
        raise InvalidValueError(f"--from: cannot read {file}: {os_error_text(exc)}") from exc
    except ValueError:
        raise InvalidValueError(f"--from: {file} is not UTF-8 text") from None
    if len(text) > MAX_LIST_CHARS:
        raise InvalidValueError(
            f"--from: {file} has more than {MAX_LIST_CHARS:,} characters, so it cannot be a list of nodes"
        )
    return text.removeprefix("\ufeff")


# ---- nodes of a registry


class RegistryNodes:
    """All live replicas in a registry, and the nodes that have no replica which can be asked."""

    def __init__(self, arguments: Namespace, etcd: EtcdClient, address: RegistryAddress) -> None:
        self._arguments = arguments
        self._etcd = etcd
        self.address = address

    async def read(self) -> list[RegistryEntry]:
        from svcnode.sharing.client import read_replicas

        try:
            nodes = await read_replicas(self._etcd, self.address.prefix)
        except RegistryError as exc:
            raise SvcnodeError(f"registry: {exc}") from exc
        return [entry for name, node in nodes.items() for entry in _entries_of_node(name, node)]

    def source(self, entry: RegistryEntry) -> NodeSource:
        if not entry.url:
            return NodeSource(_NodeWithoutUrl(str(self.address)), in_registry=entry)
        return _source(self._arguments, f"--registry: replica {entry.replica}: ", entry.url, entry)


@asynccontextmanager
async def open_registry_nodes(arguments: Namespace) -> AsyncIterator[RegistryNodes | None]:
    """None without --registry."""
    if arguments.registry is None:
        yield None
        return
    from svcnode.cli._registry_args import open_registry

    async with open_registry(arguments) as (etcd, settings):
        yield RegistryNodes(arguments, etcd, settings.registry)


def _entries_of_node(name: str, node: NodeReplicas) -> Iterator[RegistryEntry]:
    """An entry for each replica with a URL or, if there is none, one entry that says so."""
    replicas = sorted(node.live)
    known = f"services: {node.service_count}, live replicas: {', '.join(replicas) or 'none'}"
    urls = {replica: getattr(node.live[replica], "url", "") for replica in replicas}
    for replica, url in urls.items():
        if url:
            yield RegistryEntry(name, replica, url, f"this is the replica {replica}; in the registry: {known}")
    if not any(urls.values()):
        yield RegistryEntry(name, "", "", f"in the registry: {known}")


class _NodeWithoutUrl:
    """Stands in for the client of a node that only the registry knows; nobody can ask for its health."""

    deviations = ()

    def __init__(self, registry: str) -> None:
        self.url = self.root = registry

    async def identity(self) -> Identity:
        raise self._error()

    async def health(self) -> Health:
        raise self._error()

    async def services(self) -> tuple[BackingService, ...]:
        raise self._error()

    async def aclose(self) -> None:
        pass

    def _error(self) -> UnreachableError:
        return UnreachableError("no live replica of this node has a URL", url=self.url, code=ReasonCode.NO_EVIDENCE)
