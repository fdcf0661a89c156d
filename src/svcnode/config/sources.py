"""Reads the file, the environment and the flags into one tree, and knows where each value came from."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints, is_typeddict

from svcnode.config.schema import FileTable, KeyPath
from svcnode.core.errors import ConfigError, OptionError, SvcnodeError
from svcnode.core.text import closest_match, os_error_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

ENVIRONMENT_PREFIX = "SVCNODE_"
MAX_FILE_BYTES = 4 * 1024 * 1024
BYTE_ORDER_MARK = "\ufeff"  # with which some editors begin a file; TOML knows no such thing
_KUBERNETES_SERVICE_VARIABLE = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)?$"
)


@dataclass(frozen=True, slots=True)
class Override:
    """A value from outside the file, with the name under which its author knows it."""

    path: KeyPath
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class NamedProbe:
    """A service that was named on the command line."""

    id: str
    url: str
    origin: str


class Source:
    """What was said, by whom."""

    def __init__(
        self,
        file: Path | None,
        environ: Mapping[str, str],
        flags: Iterable[Override],
        services: Iterable[NamedProbe] = (),
    ) -> None:
        self._file = file
        self._origins: dict[KeyPath, str] = {}
        self._text = ""
        self.data: dict[str, Any] = {} if file is None else self._read(file)
        for override in (*_from_environment(environ), *flags):
            self._put(override)
        for named in services:
            self._put_service(named)

    def value_at(self, path: KeyPath) -> Any:  # noqa: ANN401  whatever the file holds
        value: Any = self.data
        for key in path:
            value = value[key]
        return value

    def origin_of(self, path: KeyPath) -> str:
        """Where a value came from, as the end of a sentence."""
        for length in range(len(path), 0, -1):
            if origin := self._origins.get(path[:length]):
                return f" ({origin})"
        if self._file is None:
            return ""
        from svcnode.config.toml_lines import TomlLines  # only a fault needs to know the line

        line = TomlLines(self._text).line_of(path)
        return f" ({self._file})" if line is None else f" ({self._file}:{line})"

    def set_by(self, table: str, key: str) -> str | None:
        """What to change to have another value; None where nothing was said."""
        if origin := self._origins.get((table, key)):
            return origin.removeprefix("environment variable ")
        return f"{key} in [{table}]" if key in self.data.get(table, {}) else None

    def display_path(self, path: KeyPath) -> str:
        """A path as a person would say it: a service by its id, and what has none also by its place in the list."""
        words, place = [], ""
        for length, key in enumerate(path, start=1):
            service_id = _id_of(self.value_at(path[:length])) if isinstance(key, int) else None
            if isinstance(service_id, str) and service_id:
                words.append(service_id)
                continue
            words.append(str(key))
            if isinstance(key, int):
                place = f" (the {_ordinal(key + 1)})"
        return (".".join(words) or "the configuration") + place

    def error(self, path: KeyPath, text: str) -> ConfigError:
        return ConfigError(f"{self.display_path(path)}: {text}{self.origin_of(path)}")

    @contextmanager
    def error_context(self, *path: str | int) -> Iterator[None]:
        """Whatever is refused inside is the fault of the value at this path."""
        try:
            yield
        except ConfigError:
            raise
        except OptionError as exc:
            raise self.error((*path, exc.option), exc.text) from exc
        except SvcnodeError as exc:
            raise self.error(path, str(exc)) from exc

    def _read(self, file: Path) -> dict[str, Any]:
        import tomllib

        try:
            self._text = _read_regular_file(file).decode("utf-8").removeprefix(BYTE_ORDER_MARK)
            return tomllib.loads(self._text)
        except OSError as exc:
            raise ConfigError(f"cannot read the configuration: {os_error_text(exc)} ({file})") from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"not UTF-8 text, as TOML must be, from byte {exc.start} on ({file})") from exc
        except tomllib.TOMLDecodeError as exc:
            raise ConfigError(_toml_error(file, str(exc))) from exc
        except (RecursionError, ValueError) as exc:
            raise ConfigError(
                f"not usable as TOML: nested too deeply, or a number has too many digits ({file})"
            ) from exc

    def _put(self, override: Override) -> None:
        *tables, last = override.path
        inner = self.data
        for key in tables:
            inner = inner.setdefault(str(key), {})
            if not isinstance(inner, dict):
                return  # the file has something else there, and the check of its shape will say so
        inner[str(last)] = override.value
        self._origins[override.path] = override.origin

    def _put_service(self, named: NamedProbe) -> None:
        """Another service, or another probe for one that the file has."""
        services = self.data.setdefault("services", [])
        if not isinstance(services, list):
            return  # as above
        place = next((place for place, one in enumerate(services) if _id_of(one) == named.id), len(services))
        if place == len(services):
            services.append({"id": named.id})
            self._origins["services", place] = named.origin
        services[place].pop("status", None)
        services[place]["probe"] = named.url
        self._origins["services", place, "probe"] = named.origin


def _id_of(table: object) -> object:
    return table.get("id") if isinstance(table, dict) else None


def _read_regular_file(file: Path) -> bytes:
    """Not what could keep us waiting for ever, or fill the memory."""
    about = file.stat()
    if stat.S_ISDIR(about.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE_BYTES:
        raise ConfigError(f"not a file of at most {MAX_FILE_BYTES // 1024} KiB, as a configuration is ({file})")
    return file.read_bytes()


def _ordinal(number: int) -> str:
    is_teen = number // 10 % 10 == 1
    return f"{number}{'th' if is_teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def _toml_error(file: Path, text: str) -> str:
    """tomllib's words with the line where all our errors have it; without one, the fault is at the end."""
    found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", text, re.DOTALL)
    if found is None:
        return f"not valid TOML: {text} ({file})"
    what, line, column = found.groups()
    return f"not valid TOML: {what}, at column {column} ({file}:{line})"


def _from_environment(environ: Mapping[str, str]) -> Iterator[Override]:
    ours = {name: value for name, value in environ.items() if name.startswith(ENVIRONMENT_PREFIX)}
    if not ours:
        return
    keys = environment_keys()
    # Strange names are refused only where they begin like one of our tables, and never those that a cluster sets by
    # itself when something there is called svcnode or svcnode-server.
    tables = tuple(f"{ENVIRONMENT_PREFIX}{path[0]}_".upper() for path, _ in keys.values())
    for name, value in sorted(ours.items()):
        if name in keys:
            path, hint = keys[name]
            yield Override(path, _parse_value(value, hint), f"environment variable {name}")
        elif name.startswith(tables) and not _KUBERNETES_SERVICE_VARIABLE.search(name):
            near = closest_match(name, keys)
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"unknown environment variable {name}{hint}")


def _parse_value(text: str, hint: object) -> str | int | bool:
    """What TOML would have made of it; what does not fit stays text, and the check of the shape says so."""
    if hint is int and re.fullmatch("-?[0-9]{1,9}", text):
        return int(text)
    if hint is bool and text in ("true", "false"):
        return text == "true"
    return text


def environment_keys() -> dict[str, tuple[KeyPath, Any]]:
    """Every single value of the file by its name in the environment, and its type."""
    return {
        ENVIRONMENT_PREFIX + "_".join(map(str, path)).upper(): (path, hint)
        for path, hint in _scalar_keys(FileTable, ())
    }


def _scalar_keys(table: type, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, hint in get_type_hints(table).items():
        if is_typeddict(hint):
            yield from _scalar_keys(hint, (*path, key))
        elif path:  # what stands at the top is tables, and the list of services
            yield (*path, key), hint
