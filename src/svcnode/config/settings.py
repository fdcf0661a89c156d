"""What the rest of the program sees of the configuration: frozen, complete and checked."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from svcnode.config.tables import DURATION_KEYS, FileTable, ServerTable, ServiceTable
from svcnode.core.address import Address, address_from
from svcnode.core.errors import DuplicateServiceError, InvalidValueError
from svcnode.core.model import Status, check_text, check_version
from svcnode.core.units import duration_s
from svcnode.definition import Definition, ServiceWords, define
from svcnode.probes import probe_from_url
from svcnode.spec import prefixes_from
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from svcnode.config.sources import Source

_POLICY_KEYS = (*DURATION_KEYS, "rise", "fall")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    definition: Definition
    status: Status | None = None  # fixed, for a service that no probe looks at

    @property
    def id(self) -> str:
        return self.definition.service.id


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    node_name: str
    node_version: str
    listen: tuple[Address, ...]
    prefixes: tuple[str, ...]
    drain_s: float | None  # None: as long as suits where the program runs
    tls: TlsSettings | None
    store_path: Path
    log_level: str
    log_format: str
    services: tuple[ServiceSettings, ...]
    uses_store: bool  # no service was named, so the node's own store is the one it has


def settings_from(table: FileTable, source: Source, environ: Mapping[str, str]) -> Settings:
    store_path = Path(table.store.path) if table.store.path else _default_store_path(environ)
    node_name = socket.gethostname() if table.node.name is None else table.node.name
    node_version = f"v{__version__}" if table.node.version is None else table.node.version
    with source.blaming("node", "name"):
        check_text("the name", node_name)
    with source.blaming("node", "version"):
        check_version("a version", node_version)
    with source.blaming("server", "prefix"):
        prefixes = prefixes_from(table.server.prefix)
    with source.blaming("server", "drain"):
        drain_s = None if table.server.drain is None else duration_s(table.server.drain)
    with source.blaming("server", "listen"):
        listen = _addresses(table.server)
    services = tuple(_services(table, source)) or (_store_service(table, source, store_path),)
    return Settings(
        node_name=node_name,
        node_version=node_version,
        listen=listen,
        prefixes=prefixes,
        drain_s=drain_s,
        tls=_tls(table.server, source),
        store_path=store_path,
        log_level=table.log.level,
        log_format=table.log.format,
        services=services,
        uses_store=not table.services,
    )


def _addresses(server: ServerTable) -> tuple[Address, ...]:
    texts = server.listen.split(",") if isinstance(server.listen, str) else server.listen
    addresses = tuple(address_from(text.strip(), has_tls=server.tls is not None) for text in texts)
    if not addresses:
        raise InvalidValueError("at least one address is needed")
    if server.tls is not None and all(address.scheme != "https" for address in addresses):
        raise InvalidValueError("[server.tls] is set, but no address here would speak TLS")
    places = [address.place for address in addresses if address.port or address.path]
    if len(set(places)) < len(places):
        raise InvalidValueError("an address is named twice")
    return addresses


def _tls(server: ServerTable, source: Source) -> TlsSettings | None:
    if server.tls is None:
        return None
    for key in ("certificate", "key"):
        with source.blaming("server", "tls", key):
            _check_readable(Path(getattr(server.tls, key)))
    return TlsSettings(certificate=Path(server.tls.certificate), key=Path(server.tls.key))


def _check_readable(path: Path) -> None:
    try:
        path.open("rb").close()
    except OSError as exc:
        raise InvalidValueError(f"cannot read {path}: {exc.strerror}") from exc


def _services(table: FileTable, source: Source) -> Iterator[ServiceSettings]:
    seen: set[str] = set()
    for place, service in enumerate(table.services):
        with source.blaming("services", place, "id"):
            if service.id in seen:
                raise DuplicateServiceError(service.id)
        seen.add(service.id)
        yield _service(service, place, table, source)


def _service(service: ServiceTable, place: int, table: FileTable, source: Source) -> ServiceSettings:
    here = ("services", place)
    if (service.probe is None) == (service.status is None):
        which = "neither" if service.probe is None else "both"
        raise source.error(here, f'a service has exactly one of "probe" and "status"; this one has {which}')
    words: ServiceWords = {"description": service.description or ""}
    if service.name is not None:
        words["name"] = service.name
    if service.impact is not None:
        words["impact"] = service.impact
    if service.probe is not None:
        with source.blaming(*here, "probe"):
            words["probe"] = probe_from_url(service.probe)
        words |= _policy_words(service, place, table, source)
    with source.blaming(*here):
        definition = define(service.id, **words)
    return ServiceSettings(definition=definition, status=None if service.status is None else Status(service.status))


def _policy_words(service: ServiceTable | None, place: int, table: FileTable, source: Source) -> ServiceWords:
    """The service's own words, and those of [defaults] where it has none; each checked where it stands."""
    words: dict[str, str | int] = {}
    for key in _POLICY_KEYS:
        own = getattr(service, key, None)
        value = getattr(table.defaults, key) if own is None else own
        if value is None:
            continue
        with source.blaming(*(("defaults",) if own is None else ("services", place)), key):
            _check_policy_word(key, value)
        words[key] = value
    return cast("ServiceWords", words)  # the keys are those of the tables


def _check_policy_word(key: str, value: str | int) -> None:
    if key in DURATION_KEYS:
        duration_s(value)
    elif isinstance(value, int) and value < 1:
        raise InvalidValueError(f"counts looks in a row, so it is at least 1, not {value}")


def _store_service(table: FileTable, source: Source, store_path: Path) -> ServiceSettings:
    from svcnode.probes.sqlite import SqliteProbe

    words = _policy_words(None, 0, table, source)
    with source.blaming("defaults"):
        definition = define(
            "store",
            **words
            | {
                "name": "Embedded store",
                "description": "SQLite store of this node",
                "probe": SqliteProbe(store_path),
            },
        )
    return ServiceSettings(definition=definition)


def _default_store_path(environ: Mapping[str, str]) -> Path:
    """Where the service manager says state belongs, or where the desktop conventions do."""
    if managed := environ.get("STATE_DIRECTORY"):
        return Path(managed.split(":")[0]) / "store.db"
    state_home = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", ".")) / ".local" / "state"
    return Path(state_home) / "svcnode" / "store.db"
