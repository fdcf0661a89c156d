"""From a TOML file, the environment and the command line to settings; later ones win.

tables.py     the shape of the file, as types: a new key is a new field there
sources.py    reads the three sources, and remembers where each value came from
shape.py      holds what was read against the shape, and words what does not fit
settings.py   what the rest of the program sees; checks what a type cannot say
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.config.settings import (
    HistorySettings,
    OperatorSettings,
    ServiceSettings,
    Settings,
    TlsSettings,
    notify_from,
    settings_from,
)
from svcnode.config.sources import NamedProbe, Override, Source
from svcnode.config.validate import validate_file, validate_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcnode.core.model import Identity
    from svcnode.notify.settings import NotifySettings

__all__ = [
    "HistorySettings",
    "NamedProbe",
    "OperatorSettings",
    "Override",
    "ServiceSettings",
    "Settings",
    "TlsSettings",
    "find_file",
    "load",
    "load_notify",
]

DEFAULT_FILE = Path("svcnode.toml")


def find_file(named: Path | None) -> Path | None:
    """The file that was named, or `svcnode.toml` in this folder where there is one.

    Where nobody can tell, as in a folder that we may not look into, there is one: to read it says what is wrong, and
    no node is healthy for want of the services that it was to look at.
    """
    if named is not None:
        return named
    try:
        DEFAULT_FILE.lstat()
    except FileNotFoundError:
        return None
    except OSError:
        pass
    return DEFAULT_FILE


def load(
    file: Path | None,
    environ: Mapping[str, str],
    flags: Iterable[Override] = (),
    services: Iterable[NamedProbe] = (),
) -> Settings:
    """Raises `ConfigError` with one line that says what is wrong, where, and how to mend it."""
    source = Source(file, environ, flags, services)
    return settings_from(validate_file(source), source, environ)


def load_notify(file: Path | None, environ: Mapping[str, str]) -> tuple[Identity, NotifySettings | None]:
    """Who is told of changes, and in whose name. All else may be wrong, and the secrets of services not at hand."""
    source = Source(file, environ, ())
    return notify_from(validate_keys(source, {"node": None, "notify": None}), source, environ)
