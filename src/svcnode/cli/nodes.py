"""From the arguments that name nodes to clients that ask them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.client import AsyncClient
from svcnode.core.errors import InvalidValueError
from svcnode.core.units import duration_s

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


def clients_from(arguments: argparse.Namespace) -> list[AsyncClient]:
    """In the order given: those of the command line, then those of the file."""
    timeout_s = timeout_from(arguments)
    clients = []
    for place, url in _urls(arguments):
        try:
            client = AsyncClient(
                url, prefix=arguments.prefix, version=arguments.version, timeout=timeout_s, ca=arguments.ca
            )
        except InvalidValueError as exc:
            raise InvalidValueError(f"{place}{exc}") from exc
        clients.append(client)
    if not clients:
        arguments.parser.error("name at least one node: a URL, or a file of them with --from")
    return clients


def timeout_from(arguments: argparse.Namespace) -> float:
    return positive_s("--timeout", arguments.timeout)


def positive_s(flag: str, text: str) -> float:
    try:
        seconds = duration_s(text)
    except InvalidValueError as exc:
        raise InvalidValueError(f"{flag}: {exc}") from exc
    if not seconds:
        raise InvalidValueError(f'{flag}: must be more than 0, not "{text}"')
    return seconds


def _urls(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Each with where it stands, to be told when it is wrong."""
    for url in arguments.urls:
        yield "", url
    if arguments.file is None:
        return
    for number, line in enumerate(_read(arguments.file).splitlines(), start=1):
        url = line.partition("#")[0].strip()
        if url:
            yield f"{arguments.file}:{number}: ", url


def _read(file: str) -> str:
    if file == "-" and sys.stdin is None:
        raise InvalidValueError("--from: stdin is closed")
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise InvalidValueError(f"--from: cannot read {file}: {exc.strerror}") from exc
    except ValueError:
        raise InvalidValueError(f"--from: {file} is not UTF-8 text") from None
