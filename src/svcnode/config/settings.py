"""What the rest of the program sees of the configuration: frozen, complete and checked."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from svcnode.config.tables import DURATION_KEYS
from svcnode.core.address import Address, address_from
from svcnode.core.errors import DuplicateServiceError, InvalidValueError
from svcnode.core.model import Status, check_service_id, check_text, check_version
from svcnode.core.units import duration_s
from svcnode.definition import Definition, ServiceWords, define
from svcnode.probes import make_probe
from svcnode.spec import PREFIX, prefixes_from
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from svcnode.config.sources import Source
    from svcnode.config.tables import FileTable, KeyPath, ServerTable, ServiceTable, StoreTable, TlsTable
    from svcnode.probes import Probe

    MakeProbe = Callable[[str | Mapping[str, Any]], Probe]

DEFAULT_LISTEN = "127.0.0.1:8420"

_POLICY_KEYS = (*DURATION_KEYS, "rise", "fall")
_WORDS_AS_THEY_ARE = ("name", "description")


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
    node, server, log = table.get("node", {}), table.get("server", {}), table.get("log", {})
    node_name = node.get("name", socket.gethostname())
    node_version = node.get("version", f"v{__version__}")
    with source.blaming("store", "path"):
        store_path = _store_path(table.get("store", {}), environ)
    with source.blaming("node", "name"):
        check_text("the name", node_name)
    with source.blaming("node", "version"):
        check_version("a version", node_version)
    with source.blaming("server", "prefix"):
        prefixes = prefixes_from(_listed(server.get("prefix", PREFIX)))
    with source.blaming("server", "drain"):
        drain_s = duration_s(server["drain"]) if "drain" in server else None
    with source.blaming("server", "listen"):
        listen = _addresses(server)
    defaults = _policy_words(table.get("defaults", {}), ("defaults",), source)
    make = partial(make_probe, environ=environ, allowed=_allowed(table))
    services = tuple(_services(table, defaults, make, source))
    return Settings(
        node_name=node_name,
        node_version=node_version,
        listen=listen,
        prefixes=prefixes,
        drain_s=drain_s,
        tls=_tls(server["tls"], source) if "tls" in server else None,
        store_path=store_path,
        log_level=log.get("level", "info"),
        log_format=log.get("format", "auto"),
        services=services or (_store_service(defaults, source, store_path),),
        uses_store=not services,
    )


def _listed(value: str | list[str]) -> list[str]:
    """One, several, or (as the environment has it) several with commas between them."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _addresses(server: ServerTable) -> tuple[Address, ...]:
    has_tls = "tls" in server
    addresses = tuple(address_from(text, has_tls=has_tls) for text in _listed(server.get("listen", DEFAULT_LISTEN)))
    if not addresses:
        raise InvalidValueError("at least one address is needed")
    if has_tls and all(address.scheme != "https" for address in addresses):
        raise InvalidValueError("[server.tls] is set, but no address here would speak TLS")
    # With port 0 any free one is taken, so there what is spoken may differ.
    places = [address.place if address.port or address.path else address for address in addresses]
    if len(set(places)) < len(places):
        raise InvalidValueError("an address is named twice")
    return addresses


def _tls(tls: TlsTable, source: Source) -> TlsSettings:
    with source.blaming("server", "tls", "certificate"):
        certificate = _readable(tls["certificate"])
    with source.blaming("server", "tls", "key"):
        key = _readable(tls["key"])
    return TlsSettings(certificate=certificate, key=key)


def _readable(name: str) -> Path:
    check_text("the path", name)
    path = Path(name)
    try:
        path.open("rb").close()
    except OSError as exc:
        raise InvalidValueError(f"cannot read {path}: {exc.strerror}") from exc
    return path


def _allowed(table: FileTable) -> frozenset[str]:
    return frozenset(key for key, is_allowed in table.get("security", {}).items() if is_allowed)


def _services(table: FileTable, defaults: ServiceWords, make: MakeProbe, source: Source) -> Iterator[ServiceSettings]:
    seen: set[str] = set()
    for place, service in enumerate(table.get("services", [])):
        with source.blaming("services", place, "id"):
            check_service_id(service["id"])
            if service["id"] in seen:
                raise DuplicateServiceError(service["id"])
        seen.add(service["id"])
        yield _service(service, ("services", place), defaults, make, source)


def _service(
    service: ServiceTable, here: KeyPath, defaults: ServiceWords, make: MakeProbe, source: Source
) -> ServiceSettings:
    if ("probe" in service) == ("status" in service):
        which = "both" if "probe" in service else "neither"
        raise source.error(here, f'a service has exactly one of "probe" and "status"; this one has {which}')
    words = defaults | _policy_words(service, here, source)
    words |= cast("ServiceWords", {key: value for key, value in service.items() if key in _WORDS_AS_THEY_ARE})
    if "probe" in service:
        with source.blaming(*here, "probe"):
            words["probe"] = make(service["probe"])
    with source.blaming(*here):
        definition = define(service["id"], **words)
    return ServiceSettings(definition=definition, status=Status(service["status"]) if "status" in service else None)


def _policy_words(said: Mapping[str, object], path: KeyPath, source: Source) -> ServiceWords:
    """What a table says about weighing, looking and judging, each word checked where it stands."""
    words = {key: said[key] for key in ("impact", *_POLICY_KEYS) if key in said}
    for key, value in words.items():
        with source.blaming(*path, key):
            _check_policy_word(key, value)
    return cast("ServiceWords", words)


def _check_policy_word(key: str, value: Any) -> None:  # noqa: ANN401  its kind was checked with the shape
    if key == "impact":
        return  # its words were checked with the shape
    if key in ("rise", "fall"):
        if value < 1:
            raise InvalidValueError(f"counts looks in a row, so it is at least 1, not {value}")
    elif not duration_s(value) and key != "start_period":
        raise InvalidValueError(f'must be more than 0, not "{value}"')


def _store_service(defaults: ServiceWords, source: Source, store_path: Path) -> ServiceSettings:
    from svcnode.probes.sqlite import STORE_APPLICATION_ID, SqliteProbe

    with source.blaming("defaults"):
        definition = define(
            "store",
            **defaults
            | {
                "name": "Embedded store",
                "description": "SQLite store of this node",
                "probe": SqliteProbe.at(store_path, STORE_APPLICATION_ID),
            },
        )
    return ServiceSettings(definition=definition)


def _store_path(store: StoreTable, environ: Mapping[str, str]) -> Path:
    """Where the file says, the service manager says, or the desktop conventions say."""
    if "path" in store:
        check_text("the path", store["path"])
        return Path(store["path"])
    if managed := environ.get("STATE_DIRECTORY"):
        return Path(managed.split(":")[0]) / "store.db"
    state_home = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME", ".")) / ".local" / "state"
    return Path(state_home) / "svcnode" / "store.db"
