"""Reads the file, the environment and the options into one tree, and records the origin of each value."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.config.tables import TABLES
from svcnode.core.errors import ConfigError, OptionError, ProbeError, SvcnodeError
from svcnode.core.option_types import schema_of
from svcnode.core.text import closest_match, os_error_text
from svcnode.net.files import read_in_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from svcnode.config.keys import Key, KeyPath, Table
    from svcnode.config.toml_lines import TomlLines

ENVIRONMENT_PREFIX = "SVCNODE_"
SERVICES_VARIABLE = "SVCNODE_SERVICES"  # services without a file; between two of them is white space
# An id may contain "=", so it ends at the first "=" that is followed by a URL.
_SERVICE_PATTERN = re.compile(r"(?P<id>.+?)=(?P<url>(?:[A-Za-z][A-Za-z0-9+.-]*:|\$\{).*)", re.DOTALL)
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_KEY_PARTS = 64  # of a dotted key such as server.tls.certificate
BYTE_ORDER_MARK = "\ufeff"  # some editors write it at the start of a file; TOML does not allow it
# Strings may be parts of a key. One without its end extends to the end of the line or of the text, so that the time is
# linear; tomllib reports the error.
_STRING_OR_COMMENT = re.compile(
    r'''"""(?:[^"\\]|\\.|"{1,2}(?!"))*+(?:"{3,5}|\Z)|"(?:[^"\\\n]|\\.)*+"?'''
    r"""|'''(?:[^']|'{1,2}(?!'))*+(?:'{3,5}|\Z)|'[^'\n]*+'?|#[^\n]*+""",
    re.DOTALL,
)
_KEY_RUN = re.compile(r"[A-Za-z0-9_. \t-]++")
_KUBERNETES_SERVICE_VARIABLE = re.compile(
    r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT(_[0-9]+_(TCP|UDP|SCTP)(_\w+)?)?$"
)


class Override(NamedTuple):
    """A value from outside the file; origin is its option or environment variable."""

    path: KeyPath
    value: Any
    origin: str


class Origin(NamedTuple):
    """Where a value comes from: an option or environment variable, or a line of the file."""

    override: str = ""
    file: Path | None = None
    line: int | None = None

    def __str__(self) -> str:
        if self.file is None:
            return self.override
        return f"{self.file}:{self.line}" if self.line else str(self.file)


class NamedProbe(NamedTuple):
    """A service from --service or from the environment."""

    id: str
    url: str
    origin: str


class Source:
    """The values of all sources merged in `data`, their origins, and the errors that are found in them."""

    def __init__(
        self,
        file: Path | None,
        environ: Mapping[str, str],
        flags: Iterable[Override],
        services: Iterable[NamedProbe] = (),
    ) -> None:
        self.file = file
        self.environ = environ
        self._origins: dict[KeyPath, str] = {}
        self.text = ""
        self._lines: TomlLines | None = None
        self._reported: list[tuple[KeyPath, str]] = []
        self.data: dict[str, Any] = {} if file is None else self._read(file)
        for override in (*_from_environment(environ), *flags):
            self._put(override)
        in_environment = environ.get(SERVICES_VARIABLE, "").split()
        for service in (*named_probes(in_environment, f"environment variable {SERVICES_VARIABLE}"), *services):
            self._put_service(service)

    @classmethod
    def of_data(cls, data: dict[str, Any], environ: Mapping[str, str]) -> Source:
        """Tables that do not come from a file."""
        source = cls(None, {}, ())
        source.environ, source.data = environ, data
        return source

    def value_at(self, path: KeyPath) -> Any:  # noqa: ANN401  any TOML value
        value: Any = self.data
        for key in path:
            value = value[key]
        return value

    def origin_of(self, path: KeyPath) -> Origin:
        for length in range(len(path), 0, -1):
            if override := self._origins.get(path[:length]):
                return Origin(override=override)
        if self.file is None:
            return Origin()
        if self._lines is None:
            from svcnode.config.toml_lines import TomlLines  # needed only for error messages

            self._lines = TomlLines(self.text)
        return Origin(file=self.file, line=self._lines.line_of(path))

    def file_of(self, path: KeyPath) -> Path | None:
        """The file that has this value; None if an option or environment variable sets it."""
        return None if path in self._origins else self.file

    def set_by(self, table: str, key: str) -> str | None:
        """The option, environment variable or key that sets the value; None if it is not set."""
        if origin := self._origins.get((table, key)):
            return origin.removeprefix("environment variable ")
        return f"{key} in [{table}]" if key in self.data.get(table, {}) else None

    def display_path(self, path: KeyPath) -> str:
        """Such as `services.db.probe`: a service by its id, any other list element by its index, as in `listen[1]`."""
        text = ""
        for length, key in enumerate(path, start=1):
            service_id = _id_of(self.value_at(path[:length])) if isinstance(key, int) else None
            if isinstance(service_id, str) and service_id:
                text += f".{service_id}"
            else:
                text += f"[{key}]" if isinstance(key, int) else f".{key}"
        return text.removeprefix(".") or "configuration"

    # ---- errors

    def report(self, path: KeyPath, text: str) -> None:
        """`raise_errors` raises it, with all others."""
        self._reported.append((path, text))

    def reporting(self, *path: str | int) -> _Reporting:
        """Reports an error inside the block at this path, and goes on after the block."""
        return _Reporting(self, path)

    def raise_errors(self) -> None:
        """Raises the first error in the file, if any, with the `others`."""
        # Made only now: an error may quote a value that is known as a secret only since a later table was read.
        errors = sorted((self._error(*reported) for reported in self._reported), key=lambda error: error.line or 0)
        if errors:
            errors[0].others = tuple(errors[1:])
            raise errors[0]

    @contextmanager
    def error_context(self, *path: str | int) -> Iterator[None]:
        """Raises an error inside the block as an error at this path."""
        with self.reporting(*path):
            yield
        self.raise_errors()

    def _error(self, path: KeyPath, text: str) -> ConfigError:
        key, origin = self.display_path(path), self.origin_of(path)
        location = f" ({origin})" if str(origin) else ""
        return ConfigError(f"{key}: {text}{location}", key=key, path=path, file=origin.file, line=origin.line)

    # ---- reading

    def _read(self, file: Path) -> dict[str, Any]:
        import tomllib

        try:
            self.text = read_in_time(file, MAX_FILE_BYTES).decode("utf-8").removeprefix(BYTE_ORDER_MARK)
            _reject_deep_keys(self.text, file)
            return tomllib.loads(self.text)
        except OSError as exc:
            raise ConfigError(f"cannot read the configuration file: {os_error_text(exc)} ({file})", file=file) from exc
        except UnicodeDecodeError as exc:
            raise ConfigError(f"invalid TOML: not UTF-8 at byte {exc.start} ({file})", file=file) from exc
        except tomllib.TOMLDecodeError as exc:
            from svcnode.config.toml_errors import toml_error

            raise toml_error(file, self.text, str(exc)) from exc
        except (RecursionError, ValueError) as exc:
            raise ConfigError(
                f"invalid TOML: nested too deeply, or a number with too many digits ({file})", file=file
            ) from exc

    def _put(self, override: Override) -> None:
        *tables, last = override.path
        inner = self.data
        for key in tables:
            inner = inner.setdefault(str(key), {})
            if not isinstance(inner, dict):
                return  # the file has another type there; the parser reports it
        inner[str(last)] = override.value
        self._origins[override.path] = override.origin

    def _put_service(self, service: NamedProbe) -> None:
        """Adds a service, or replaces the probe of a service in the file."""
        services = self.data.setdefault("services", [])
        if not isinstance(services, list):
            return  # see above
        index = next((index for index, table in enumerate(services) if _id_of(table) == service.id), len(services))
        if index == len(services):
            services.append({"id": service.id})
            self._origins["services", index] = service.origin
        services[index].pop("status", None)
        services[index]["probe"] = service.url
        self._origins["services", index, "probe"] = service.origin


class _Reporting:
    def __init__(self, source: Source, path: KeyPath) -> None:
        self._source = source
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> bool:
        if isinstance(exc, ConfigError):
            return False  # it has a path
        if isinstance(exc, ProbeError):
            for error in (exc, *exc.others):
                if isinstance(error, OptionError):
                    self._source.report((*self._path, error.option), error.text)
                else:
                    self._source.report(self._path, str(error))
        elif isinstance(exc, SvcnodeError):
            self._source.report(self._path, str(exc))
        return isinstance(exc, SvcnodeError)


def named_probes(texts: Iterable[str], origin: str) -> list[NamedProbe]:
    """From texts such as db=postgresql://127.0.0.1/ledger; `origin` is their option or environment variable."""
    probes: dict[str, NamedProbe] = {}
    for text in texts:
        match = _SERVICE_PATTERN.fullmatch(text)
        if match is None:
            raise ConfigError(f"{origin}: must be ID=URL, such as db=postgresql://monitor@127.0.0.1/ledger")
        service_id, url = match.groups()
        if service_id in probes:
            raise ConfigError(f'{origin}: two services have the id "{service_id}"')
        probes[service_id] = NamedProbe(service_id, url, f"{origin} {service_id}=…")
    return list(probes.values())


def _id_of(table: object) -> object:
    return table.get("id") if isinstance(table, dict) else None


def _reject_deep_keys(text: str, file: Path) -> None:
    """tomllib takes minutes for a key with many parts."""
    for run in _KEY_RUN.finditer(_STRING_OR_COMMENT.sub("s", text)):
        if run[0].count(".") >= MAX_KEY_PARTS:
            raise ConfigError(f"invalid TOML: a key has more than {MAX_KEY_PARTS} parts ({file})", file=file)


def _from_environment(environ: Mapping[str, str]) -> Iterator[Override]:
    variables = {name: value for name, value in environ.items() if name.startswith(ENVIRONMENT_PREFIX)}
    if not variables:
        return
    keys = environment_keys()
    # An unknown variable is an error only if it begins with the name of a table or SVCNODE_SERVICE, and never if
    # Kubernetes sets it: for a service called svcnode-server it sets SVCNODE_SERVER_SERVICE_HOST and others.
    tables = tuple(f"{ENVIRONMENT_PREFIX}{path[0]}_".upper() for path, _ in keys.values())
    known = (*tables, SERVICES_VARIABLE.removesuffix("S"))
    for name, value in sorted(variables.items()):
        if name in keys:
            path, key = keys[name]
            yield Override(path, _parse_value(value, key), f"environment variable {name}")
        elif name != SERVICES_VARIABLE and name.startswith(known) and not _KUBERNETES_SERVICE_VARIABLE.search(name):
            near = closest_match(name, (*keys, SERVICES_VARIABLE))
            hint = f"; did you mean {near}?" if near else ""
            raise ConfigError(f"unknown environment variable {name}{hint}")


def _parse_value(text: str, key: Key) -> str | int | bool:
    """The text as a value of the type; text that does not fit stays a string, and the parser reports it."""
    match schema_of(key.parse).get("type"):
        case "integer" if re.fullmatch("-?[0-9]{1,9}", text):
            return int(text)
        case "boolean" if text in ("true", "false"):
            return text == "true"
        case _:
            return text


def environment_keys() -> dict[str, tuple[KeyPath, Key]]:
    """The path and the key of every environment variable."""
    return {
        ENVIRONMENT_PREFIX + "_".join(map(str, path)).upper(): (path, key)
        for name, table in TABLES.items()
        for path, key in _text_keys(table, (name,))
    }


def _text_keys(table: type[Table], path: KeyPath) -> Iterator[tuple[KeyPath, Key]]:
    """The keys whose value can be a text: all but tables."""
    for name, key in table.keys.items():
        if key.table is not None:
            yield from _text_keys(key.table, (*path, name))
        elif not key.is_free_table:
            yield (*path, name), key
