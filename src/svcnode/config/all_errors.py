"""All errors of a configuration. The parser stops at the first one.

The wrong value is replaced by a valid one, and the configuration is read again, until it is valid. An error that may be
the result of such a replacement is not reported: it is found again when the first error is fixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.config.schema import DURATION_KEYS, THRESHOLD_KEYS, TOLERANCE_KEYS
from svcnode.config.settings import settings_from
from svcnode.config.sources import Source
from svcnode.config.validate import validate_file
from svcnode.core.errors import ConfigError, OptionError
from svcnode.core.redaction import SecretScope
from svcnode.probes import scheme_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from svcnode.config.schema import KeyPath
    from svcnode.config.sources import NamedProbe, Override

MAX_ERRORS = 100  # each reads the whole configuration again
_POLICY_KEYS = (*DURATION_KEYS, *THRESHOLD_KEYS, *TOLERANCE_KEYS)
_HEARTBEAT, _PROBE = "heartbeat:30s", "tcp://127.0.0.1:1"
_VALID_VALUES = {
    ("server", "listen"): "127.0.0.1:0",
    ("security", "allow_exec"): True,  # otherwise each exec: probe would be an error
    ("security", "operator_token"): "a-valid-operator-token",  # trust_loopback may need it
}


def find_errors(
    file: Path | None,
    environ: Mapping[str, str],
    flags: Iterable[Override] = (),
    services: Iterable[NamedProbe] = (),
) -> list[ConfigError]:
    """In the order of the file; at most `MAX_ERRORS`."""
    errors: list[ConfigError] = []
    replaced: list[KeyPath] = []
    try:
        source = Source(file, environ, flags, services)
    except ConfigError as exc:
        return [exc]
    ids = _ids(source.data)
    while len(errors) < MAX_ERRORS:
        error = _first_error(source)
        if error is None or not error.path:
            errors += [error] if error else []
            break
        if not _may_follow_from(error, replaced):
            errors.append(_with_id(error, ids))
        if not _replace(source.data, error.path, is_first=error.path not in replaced):
            break
        replaced.append(error.path)
    return sorted(errors, key=lambda error: error.line or 0)


def _first_error(source: Source) -> ConfigError | None:
    try:
        settings_from(validate_file(source), source, SecretScope())
    except ConfigError as exc:
        return exc
    return None


def _ids(data: Mapping[str, Any]) -> list[object]:
    services = data.get("services")
    return [_id_of(service) for service in services] if isinstance(services, list) else []


def _with_id(error: ConfigError, ids: Sequence[object]) -> ConfigError:
    """Names a service by the id in the configuration, not by one that has replaced it."""
    match error.path:
        case ("services", int(index), *_) if error.key and _valid_id(index) in error.key:
            key = error.key.replace(_valid_id(index), str(ids[index]), 1)
            text = f"{key}{str(error).removeprefix(error.key)}"
            return ConfigError(text, key=key, path=error.path, file=error.file, line=error.line)
        case _:
            return error


def _valid_id(index: int) -> str:
    return f"\ufffd{index}"  # no other service has it


def _id_of(service: object) -> object:
    return service.get("id", "?") if isinstance(service, dict) else "?"


def _may_follow_from(error: ConfigError, replaced: Iterable[KeyPath]) -> bool:
    """Whether a value that was replaced may be the cause of the error."""
    path = error.path
    if len(path) == 2 and path[0] == "services":
        return any(_affects_service(other, path) for other in replaced)
    if any(other[: len(path)] == path or path[: len(other)] == other for other in replaced):
        return True
    is_about_option = isinstance(error.__cause__, OptionError) and not error.__cause__.is_about_value
    return is_about_option and any(other[:-1] == path[:-1] for other in replaced)


def _affects_service(other: KeyPath, path: KeyPath) -> bool:
    """An error about a service as a whole is about its probe, its status, or keys of its schedule and policy."""
    keys = ("probe", "status", *_POLICY_KEYS)
    return other[0] == "defaults" or (other[:2] == path and (len(other) == 2 or other[2] in keys))


# ---- replacement


def _replace(data: dict[str, Any], path: KeyPath, *, is_first: bool) -> bool:
    """Replaces the value at the path, or the table around it; False if that is not possible."""
    match path:
        case ("services", int(index), *rest):
            _replace_in_service(data, index, tuple(rest), is_first=is_first)
        case ("server", "tls", *_):
            server = data["server"]
            for key in ("tls", "listen", "operator_listen"):  # addresses may use TLS
                server.pop(key, None)
        case ("notify", "webhook" | "alertmanager" | "apprise" as key, int(index)) if is_first:
            scheme = "json" if key == "apprise" else "https"
            data["notify"][key][index] = f"{scheme}://host-{index}.invalid/"
        case (str(table), str(key), *_) if isinstance(data.get(table), dict) and key in data[table] and is_first:
            _replace_key(data[table], (table, key))
        case (str(table), *_) if table in data:
            del data[table]
        case _:
            return False
    return True


def _replace_key(table: dict[str, Any], path: tuple[str, str]) -> None:
    if path in _VALID_VALUES:
        table[path[1]] = _VALID_VALUES[path]
    else:
        del table[path[1]]


def _replace_in_service(data: dict[str, Any], index: int, path: KeyPath, *, is_first: bool) -> None:
    service = data["services"][index]
    valid_id = _valid_id(index)
    if not isinstance(service, dict) or not is_first:
        data["services"][index] = {"id": valid_id, "status": "Up"}
        return
    match path:
        case ():
            _replace_combination(data, service, valid_id)
        case ("id", *_):
            service["id"] = valid_id
        case ("probe", str(option)) if isinstance(service["probe"], dict) and option in service["probe"]:
            del service["probe"][option]  # other options may be wrong, too
            service["probe"].setdefault("url", _PROBE)
        case ("probe", *_):
            service["probe"] = _HEARTBEAT if scheme_of(service["probe"]) == "heartbeat" else _PROBE
        case ("status", *_):
            service["status"] = "Up"
        case _:
            service.pop(str(path[0]), None)


def _replace_combination(data: dict[str, Any], service: dict[str, Any], valid_id: str) -> None:
    """After an error about several keys of a service."""
    service.setdefault("id", valid_id)
    if "probe" in service and "status" in service:
        del service["status"]
    elif "probe" not in service and "status" not in service:
        service["probe"] = _PROBE
    elif not _remove_keys(service):
        _remove_keys(data.get("defaults", {}))


def _remove_keys(table: dict[str, Any]) -> bool:
    present = [key for key in _POLICY_KEYS if key in table]
    for key in present:
        del table[key]
    return bool(present)
