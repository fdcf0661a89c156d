"""The arguments of commands that send requests to nodes, and the clients made from them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli._args import add_config_option, positive_duration_s
from svcnode.client import AsyncClient
from svcnode.core.address import PUBLIC_TWIN_PREFIX
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import DEFAULT_PREFIX
from svcnode.core.text import os_error_text
from svcnode.terminal.loop_lag import MAX_EXTENSION_S
from svcnode.terminal.snapshot import NodeSource

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from svcnode.cli._args import CommandParser

DEFAULT_PREFIXES = (DEFAULT_PREFIX, PUBLIC_TWIN_PREFIX)
MAX_LIST_CHARS = 1_000_000  # a longer file is not a list of nodes, and may be endless


def add_node_arguments(parser: CommandParser) -> None:
    add = parser.add_argument
    add(
        "urls",
        nargs="*",
        metavar="URL",
        help="a node: host:port, a URL, or unix:/path; the default scheme is http, the default node that of --config",
    )
    add_config_option(parser)
    add("--from", dest="file", metavar="FILE", help='file with one URL per line, comments after "#"; "-" is stdin')
    add("--prefix", metavar="PREFIX", help="path prefix of the interface (default: /svc, and /eigen if that is 404)")
    add("--version", metavar="VERSION", help="version of the interface to request")
    add("--timeout", default="10s", metavar="DURATION", help="limit for all requests to one node (default: 10s)")
    add("--ca", metavar="FILE", help="PEM file of the certificate authority to trust, instead of the system's")


def sources_from(arguments: argparse.Namespace) -> list[NodeSource]:
    """In the order given: the URLs of the command line, then those of the file."""
    if not arguments.urls and arguments.file is None:
        _use_configuration(arguments)
    prefixes = DEFAULT_PREFIXES if arguments.prefix is None else (arguments.prefix,)
    # The snapshot applies --timeout to a node as a whole, and extends it while this process is slow. The client's own
    # timeout comes after that.
    client_timeout_s = timeout_from(arguments) + MAX_EXTENSION_S
    sources = []
    for location, url in _node_urls(arguments):
        try:
            clients = [
                AsyncClient(url, prefix=prefix, version=arguments.version, timeout=client_timeout_s, ca=arguments.ca)
                for prefix in prefixes
            ]
        except InvalidValueError as exc:
            raise InvalidValueError(f"{location}{exc}") from exc
        sources.append(NodeSource(*clients))
    if not sources:
        arguments.parser.error(f"no node given: {arguments.file} has no URL")
    return sources


def _use_configuration(arguments: argparse.Namespace) -> None:
    from svcnode.cli.operator_url import configured_node

    url, prefix, certificate = configured_node(arguments.config)
    arguments.urls = [url]
    arguments.prefix = prefix if arguments.prefix is None else arguments.prefix
    arguments.ca = arguments.ca or certificate


def timeout_from(arguments: argparse.Namespace) -> float:
    return positive_duration_s("--timeout", arguments.timeout)


def _node_urls(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
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
        raise InvalidValueError(f"--from: {file} is longer than {MAX_LIST_CHARS:,} characters, so not a list of nodes")
    return text.removeprefix("\ufeff")
