"""Settings from a TOML file, the environment and the command line; each overrides the one before.

tables.py      declares every key: type, bounds, default, meaning, and whether it is a secret
values.py      the types of the keys
keys.py        how a table is declared
reading.py     reads the tables of a source
sources.py     reads the three sources, records the origin of each value, and collects the errors
service_tables.py  the services
settings.py    checks the rules about several keys, and builds the settings that the rest of the program uses
sharing.py     the same for [sharing]; loaded late
fleet.py       the same for [fleet]; loaded late
public.py      the same for [public]; loaded late
registration.py  a service that is registered through the control socket
reference.py   the declarations as rows for the docs
json_schema.py  the JSON Schema of the file, for editors
toml_lines.py  finds the line of a key, for error messages
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from svcnode.config.service_tables import ServiceSettings
from svcnode.config.settings import (
    ControlSettings,
    HistorySettings,
    OperatorSettings,
    Settings,
    TlsSettings,
    configured_service,
    control_from,
    embedded_notify_from,
    history_from,
    node_history_from,
    notify_from,
    settings_from,
)
from svcnode.config.sources import NamedProbe, Override, Source
from svcnode.core.redaction import SecretScope

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcnode.config.sharing import RegistrySettings
    from svcnode.core.model import Identity
    from svcnode.notify.notifier import NotifySettings

__all__ = [
    "ControlSettings",
    "HistorySettings",
    "NamedProbe",
    "OperatorSettings",
    "Override",
    "ServiceSettings",
    "Settings",
    "TlsSettings",
    "embedded_history",
    "embedded_notify",
    "find_file",
    "find_node_file",
    "load",
    "load_control",
    "load_history",
    "load_notify",
    "load_registry",
    "load_service",
    "node_environ",
]

DEFAULT_FILE = Path("svcnode.toml")
# Of the nodes that systemd runs: svcnode.service reads svcnode.toml, and its folders are named svcnode.
# svcnode@NAME.service reads NAME.toml, and its folders are named svcnode@NAME.
SYSTEM_FOLDER = Path("/etc/svcnode")
SYSTEM_FILE = SYSTEM_FOLDER / "svcnode.toml"
SYSTEM_DIRECTORIES = {"RUNTIME_DIRECTORY": Path("/run"), "STATE_DIRECTORY": Path("/var/lib")}


def find_file(file: Path | None) -> Path | None:
    """The given file, or `svcnode.toml` in this folder if it exists."""
    return DEFAULT_FILE if file is None and _may_exist(DEFAULT_FILE) else file


def find_node_file(file: Path | None) -> Path | None:
    """For commands about a node: the file that `find_file` finds, or the one of the node that systemd runs."""
    found = find_file(file)
    return SYSTEM_FILE if found is None and _may_exist(SYSTEM_FILE) else found


def _may_exist(file: Path) -> bool:
    """If that cannot be determined, as in a folder without read permission, the file counts as existing.

    Reading it then reports the error. Without this, a node would start without its services and be healthy.
    """
    try:
        file.lstat()
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def load(
    file: Path | None,
    environ: Mapping[str, str],
    flags: Iterable[Override] = (),
    services: Iterable[NamedProbe] = (),
) -> Settings:
    """Raises a `ConfigError` for the first error: key, file, line and fix. Its `others` are the other errors."""
    # If it fails, its secrets stay hidden: the error may quote them.
    with SecretScope() as secrets:
        source = Source(file, environ, flags, services)
        return settings_from(source, secrets)


def node_environ(file: Path | None, environ: Mapping[str, str]) -> Mapping[str, str]:
    """The environment for commands about a node, with the node's folders if this is the file that systemd runs."""
    if file is None or environ.keys() & SYSTEM_DIRECTORIES.keys() or not _is_of_system(file):
        return environ
    name = "svcnode" if file.name == SYSTEM_FILE.name else f"svcnode@{file.stem}"
    folders = {variable: folder / name for variable, folder in SYSTEM_DIRECTORIES.items()}
    return {**environ, **{variable: str(folder) for variable, folder in folders.items() if folder.is_dir()}}


def _is_of_system(file: Path) -> bool:
    try:
        return file.suffix == ".toml" and file.parent.samefile(SYSTEM_FOLDER)  # also from within the folder
    except OSError:
        return False


def load_control(file: Path | None, environ: Mapping[str, str]) -> ControlSettings | None:
    """Reads only [node] and [control], as `load_notify` does; for clients."""
    return control_from(Source(file, node_environ(file, environ), ()))


def load_history(file: Path | None, environ: Mapping[str, str]) -> HistorySettings:
    """Reads only [node] and [history], as `load_notify` does."""
    return node_history_from(Source(file, node_environ(file, environ), ()))


def load_notify(file: Path | None, environ: Mapping[str, str]) -> tuple[Identity, NotifySettings | None]:
    """Reads only [node], [operator] and [notify]: other tables may be invalid, and the secrets of services missing."""
    return notify_from(Source(file, environ, ()))


def load_registry(file: Path | None, environ: Mapping[str, str], flags: Iterable[Override] = ()) -> RegistrySettings:
    """Reads only [node] and [sharing], as `load_notify` does."""
    from svcnode.config.sharing import registry_settings_from  # few nodes are shared

    return registry_settings_from(Source(file, environ, flags))


def load_service(file: Path | None, environ: Mapping[str, str], service_id: str) -> ServiceSettings:
    """Reads only this service, as `load_notify` does with its tables."""
    return configured_service(Source(file, environ, ()), service_id)


def embedded_history(options: Mapping[str, Any]) -> HistorySettings:
    """The keys of [history], given by an embedding program. Raises `ConfigError`."""
    return history_from(Source.of_data({"history": dict(options)}, {}))


def embedded_notify(options: Mapping[str, Any], environ: Mapping[str, str]) -> NotifySettings:
    """The keys of [notify], given by an embedding program. Raises `ConfigError`."""
    return embedded_notify_from(Source.of_data({"notify": dict(options)}, environ))
