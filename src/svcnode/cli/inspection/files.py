"""Inspects who can read and change the files of the configuration, and what the configuration itself says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svcnode.cli.inspection.finding import Code, Finding, Level
from svcnode.config.permissions import VARIABLE, exposed_secret_line, others_can_read, others_can_write
from svcnode.config.sources import environment_keys
from svcnode.net.files import read_small_file
from svcnode.probes.interpolate import secret_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.cli.inspection.subject import Subject
    from svcnode.config.keys import KeyPath

KEY_OPTIONS = ("key", "client_key", "credentials")  # paths of private keys
MAX_ENVIRONMENT_FILE_BYTES = 1024 * 1024
SYSTEM_ENVIRONMENT_FILE = Path("/etc/default/svcnode")


def configuration_file(subject: Subject) -> Iterator[Finding]:
    file = subject.settings.file
    if file is None:
        return
    if others_can_write(file):
        yield Finding(
            code=Code.CONFIG_WRITABLE,
            level=Level.FAULT,
            place=str(file),
            what="other users of this machine can change the configuration",
            fix=f"Take that permission away: chmod o-w {file}",
        )
    if (line := exposed_secret_line(file, subject.settings.secrets, os.environ)) is not None:
        yield Finding(
            code=Code.CONFIG_READABLE,
            level=Level.WARNING,
            place=f"{file}:{line}",
            what="there is a secret in the configuration, and other users of this machine can read it",
            fix=f'Write the secret as "${{NAME}}" or {{ file = "…" }}, or: chmod o-r {file}',
        )


def notes(subject: Subject) -> Iterator[Finding]:
    """What is valid in the configuration, but may not be what was meant."""
    for text, code in subject.notes.items():
        if code != Code.CONFIG_READABLE:  # see above
            what, _, fix = text.partition("; ")
            fix = fix or "correct the name, or let a program register what it names"
            yield Finding(code=Code(code), level=Level.NOTE, what=what, fix=fix[0].upper() + fix[1:])


def secret_files(subject: Subject) -> Iterator[Finding]:
    """Files of secrets and of private keys that other users can read. Each file is named once."""
    seen: set[str] = set()
    for path, value in _leaves(subject.source.data):
        file = secret_file(value, subject.source.environ) if isinstance(value, dict) else ""
        code, what = Code.SECRET_FILE_READABLE, "a secret"
        if isinstance(value, str) and path[-1] in KEY_OPTIONS:
            file, code, what = value, Code.KEY_FILE_READABLE, "a private key"
        if file and file not in seen and others_can_read(Path(file)):
            seen.add(file)
            text = f"the file {file} holds {what}, and other users of this machine can read it"
            yield subject.finding(code, Level.WARNING, text, f"chmod o-r {file}", path)


def _leaves(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:  # noqa: ANN401  any TOML value
    """All values that are not tables or lists, and the tables { file = "…" }; [fleet] has a file of another kind."""
    if isinstance(value, dict) and not (value.keys() == {"file"} and path != ("fleet",)):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _leaves(inner, (*path, index))
    else:
        yield path, value


def environment_files(subject: Subject) -> Iterator[Finding]:
    """The usual files of variables, if they set one that the configuration uses, or one of ours that is a secret."""
    file = subject.settings.file
    used = {name for name, (_, key) in environment_keys().items() if key.is_secret}
    used.update(VARIABLE.findall(subject.source.text))
    beside = [] if file is None else [file.absolute().parent / name for name in (".env", "svcnode.env")]
    for candidate in (*beside, SYSTEM_ENVIRONMENT_FILE):
        if others_can_read(candidate) and (names := sorted(used & _variables_of(candidate))):
            yield Finding(
                code=Code.ENVIRONMENT_FILE_READABLE,
                level=Level.WARNING,
                place=str(candidate),
                what=f"the file sets {', '.join(names)}, and other users of this machine can read it",
                fix=f"chmod o-r {candidate}",
            )


def _variables_of(file: Path) -> set[str]:
    try:
        text = read_small_file(file, MAX_ENVIRONMENT_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return set()
    names = (line.removeprefix("export ").partition("=")[0] for line in map(str.strip, text.splitlines()))
    return {name.strip() for name in names}
