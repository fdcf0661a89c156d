"""From the arguments that name nodes to clients that ask them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli._args import positive_duration_s
from svcnode.client import AsyncClient
from svcnode.core.errors import InvalidValueError
from svcnode.core.text import os_error_text
from svcnode.terminal.loop_lag import MAX_EXTENSION_S

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

MAX_LIST_CHARS = 1_000_000  # what is larger is something else, and may have no end


def clients_from(arguments: argparse.Namespace) -> list[AsyncClient]:
    """In the order given: those of the command line, then those of the file."""
    # The timeout is for all that a node is asked, and heeds whether we keep up: that is for whoever looks.
    last_resort_s = timeout_from(arguments) + MAX_EXTENSION_S
    clients = []
    for place, url in _node_urls(arguments):
        try:
            client = AsyncClient(
                url, prefix=arguments.prefix, version=arguments.version, timeout=last_resort_s, ca=arguments.ca
            )
        except InvalidValueError as exc:
            raise InvalidValueError(f"{place}{exc}") from exc
        clients.append(client)
    if not clients:
        arguments.parser.error("name at least one node: a URL, or a file of them with --from")
    return clients


def timeout_from(arguments: argparse.Namespace) -> float:
    return positive_duration_s("--timeout", arguments.timeout)


def _node_urls(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Each with where it stands, to be told when it is wrong."""
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
        raise InvalidValueError(f"--from: {file} is no list of nodes: it is longer than {MAX_LIST_CHARS:,} characters")
    return text.removeprefix("\ufeff")
