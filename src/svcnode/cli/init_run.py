"""What `svcnode init` does: looks, writes, and says what it found."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.cli.showing import show, show_as_file
from svcnode.core.errors import InvalidValueError, SvcnodeError
from svcnode.core.wording import one_line, suggestion, system_words
from svcnode.discovery.choice import Choice, choose
from svcnode.discovery.document import document, free_port, name_from
from svcnode.discovery.known import KNOWN
from svcnode.discovery.search import Search, search

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

DEFAULT_FILE = Path("svcnode.toml")


def initialize(file: Path | None, ports: Iterable[str], *, prints: bool) -> int:
    looked_at = ports_from(ports)
    if prints:
        if file is not None:
            raise InvalidValueError("--stdout: prints the configuration, so no file can be named beside it")
        seen, choices = asyncio.run(_survey(looked_at))
        show_as_file(_text(choices).encode(), sys.stdout)
        show("\n".join(report(seen, choices)), sys.stderr)
        return 0
    file = file or DEFAULT_FILE
    if os.path.lexists(file):
        raise _exists(file)
    seen, choices = asyncio.run(_survey(looked_at))
    write_new(file, _text(choices))
    show("\n".join([*report(seen, choices), *_next_steps(file)]), sys.stdout)
    return 0


async def _survey(ports: Mapping[str, Collection[int]]) -> tuple[Search, list[Choice]]:
    seen = await search(ports)
    return seen, await choose(seen.found)


def _text(choices: Sequence[Choice]) -> str:
    return document(name_from(socket.gethostname()), free_port(), choices)


def ports_from(given: Iterable[str]) -> dict[str, list[int]]:
    """By kind, from KIND=PORT."""
    kinds = {name: known.kind for known in KNOWN for name in (known.kind, *known.aliases)}
    ports: dict[str, list[int]] = {}
    for text in given:
        name, _, port = text.partition("=")
        if name not in kinds:
            raise InvalidValueError(f'--port: unknown kind "{name}"{suggestion(name, kinds)}')
        if not (re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) <= 65535):
            raise InvalidValueError(
                f"--port: write a kind, =, and a port from 1 to 65535, such as {name}={_usual(name)}"
            )
        of_kind = ports.setdefault(kinds[name], [])
        if int(port) not in of_kind:
            of_kind.append(int(port))
    return ports


def _usual(name: str) -> int:
    return next(known.ports[0] for known in KNOWN if name in (known.kind, *known.aliases))


# ---- the file


def write_new(file: Path, text: str) -> None:
    """All of it or nothing; what exists, be it only a link that leads nowhere, is left as it is."""
    try:
        with file.open("xb") as opened:
            try:
                opened.write(text.encode())
                opened.flush()
            except BaseException:
                file.unlink()
                raise
    except FileExistsError:
        raise _exists(file) from None
    except (OSError, ValueError) as exc:  # a null character in a path is a ValueError
        raise SvcnodeError(f"cannot write {file}: {system_words(exc) if isinstance(exc, OSError) else exc}") from exc


def _exists(file: Path) -> SvcnodeError:
    return SvcnodeError(f"{file} exists already, and is left as it is; name another file, or move it away")


# ---- what is told


def report(seen: Search, choices: Sequence[Choice]) -> Iterator[str]:
    if choices:
        yield "Found on this host:"
        yield from _table([_row(choice) for choice in choices])
    else:
        yield "No known service was found on this host, so the node will answer for its own embedded store."
    if seen.unconfirmed:
        yield "Not confirmed, and not written:"
        yield from (f"  {one_line(str(one))}" for one in seen.unconfirmed)


def _row(choice: Choice) -> tuple[str, str, str]:
    return choice.found.known.title, one_line(choice.probe), one_line(_told(choice))


def _told(choice: Choice) -> str:
    if choice.missing:
        return f"shows only that something listens: {choice.missing}"
    assert choice.verdict is not None, "either a probe could not be made, or it has looked"
    said = choice.verdict.outcome.value.replace("_", " ")
    if choice.verdict.reason:
        said += f": {choice.verdict.reason}"
    return f"shows only that something listens; a closer look {said}" if choice.better else said


def _table(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return (f"  {title:{first}}  {probe:{second}}  {told}" for title, probe, told in rows)


def _next_steps(file: Path) -> Iterator[str]:
    option = "" if file == DEFAULT_FILE else f" --config {shlex.quote(str(file))}"
    yield f"Written: {one_line(str(file))}. Look it over, set the version of your node, and then: svcnode serve{option}"
