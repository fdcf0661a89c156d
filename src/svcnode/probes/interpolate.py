"""Replaces `${NAME}` by an environment variable and `{ file = "…" }` by the content of a file; both become secrets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import register_secret
from svcnode.core.text import os_error_text
from svcnode.net.files import read_in_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

MAX_FILE_BYTES = 64 * 1024
# Parts of a secret URL that are at least this long may be keys; shorter ones are usually names.
MIN_KEY_CHARS = 8

# "$${" is an escaped "${". The last alternative is a "${" without its "}".
_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(?P<name>(?:(?!\$\{)[^}])*)\}|\$\{")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Values are inserted as they are in the host, and percent-encoded before and after it.
_URL_PARTS = re.compile(r"([^:/?#]*:)(//(?:[^/?#]*@)?)?([^/?#]*)(.*)", re.DOTALL)


def interpolate(value: Any, environ: Mapping[str, str]) -> Any:  # noqa: ANN401  any TOML value
    """Replace variables and files in a value, at any depth."""
    try:
        _require_variables(value, environ)
        return _interpolate(value, environ)
    except RecursionError:
        raise InvalidValueError("nested too deeply") from None


def _interpolate(value: Any, environ: Mapping[str, str]) -> Any:  # noqa: ANN401  any TOML value
    match value:
        case str():
            return _require_utf8(_substitute(value, environ, is_secret=True), "the value")
        case {"file": str(path), **others} if not others:
            return _read_secret_file(_substitute(path, environ, is_secret=False))
        case dict():
            return {key: _interpolate(inner, environ) for key, inner in value.items()}
        case list() | tuple():
            return [_interpolate(inner, environ) for inner in value]
        case _:
            return value


def secret_file(value: object, environ: Mapping[str, str]) -> str:
    """The path in `{ file = "…" }`; empty for any other value."""
    match value:
        case {"file": str(path)}:
            return _substitute(path, environ, is_secret=False)
        case _:
            return ""


def interpolate_url(value: object, environ: Mapping[str, str]) -> str:
    """Replace variables in a URL, or read the whole URL from a variable or a file."""
    _require_variables(value, environ)
    if is_from_file := isinstance(value, dict):
        value = interpolate(value, environ)
    if not isinstance(value, str):
        raise InvalidValueError('a probe URL must be a string or { file = "/path/to/file" }')
    if is_from_file:
        value = _literal_url(value)
    elif value.startswith("${"):  # the variable holds the whole URL, or its scheme and host
        variable, brace, rest = value.partition("}")
        value = _literal_url(_substitute(variable + brace, environ, is_secret=True)) + rest
    parts = _URL_PARTS.fullmatch(value)
    if parts is None:
        return value  # not a URL; Url.parse reports it
    scheme, user, host, rest = (part or "" for part in parts.groups())
    if parts[2] is None:  # no authority
        host, rest = "", host + rest
    return (
        scheme
        + _substitute(user, environ, is_secret=True, encode=_percent_encode)
        + _substitute(host, environ, is_secret=False)
        + _substitute(rest, environ, is_secret=True, encode=_percent_encode)
    )


def _literal_url(text: str) -> str:
    """Escape a URL that comes from a variable or a file, so that it is not interpolated again; register its keys."""
    if parts := _URL_PARTS.fullmatch(text):
        for part in re.split(r"[/?&=#\s]", parts[4] if parts[2] else parts[3] + parts[4]):
            if len(part) >= MIN_KEY_CHARS:
                register_secret(part)
                register_secret(unquote(part))
    return text.replace("${", "$${")


def _unset_variable_text(name: str) -> str:
    if _VARIABLE_NAME.fullmatch(name):
        return f"environment variable {name} is not set"
    # Not shown: it may be a secret, such as the default in the shell's ${NAME:-default}.
    return "${…} must contain the name of an environment variable; defaults such as ${NAME:-default} are not supported"


def _require_variables(value: object, environ: Mapping[str, str]) -> None:
    """Raises one error for all variables of a value, if several are not set."""
    names = (found["name"] for text in _texts_in(value) for found in _PLACEHOLDER.finditer(text))
    unset = dict.fromkeys(name for name in names if name and name not in environ)
    if len(unset) > 1 and all(map(_VARIABLE_NAME.fullmatch, unset)):
        raise InvalidValueError(f"environment variables {', '.join(unset)} are not set")


def _texts_in(value: object) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for inner in value.values():
                yield from _texts_in(inner)
        case list() | tuple():
            for inner in value:
                yield from _texts_in(inner)
        case _:
            pass


def _require_utf8(text: str, subject: str) -> str:
    """Python represents bytes that are not UTF-8 as surrogates, which cannot be encoded."""
    if any("\ud800" <= char < "\ue000" for char in text):
        raise InvalidValueError(f"{subject} is not UTF-8 text")
    return text


def _percent_encode(text: str) -> str:
    return quote(text, safe="")


def _substitute(text: str, environ: Mapping[str, str], *, is_secret: bool, encode: Callable[[str], str] = str) -> str:
    def replace(found: re.Match[str]) -> str:
        name = found["name"]
        if found[0] == "$${":
            return "${"
        if name is None:  # the text is not shown: it may contain a secret
            raise InvalidValueError("${ without }; write ${NAME}, or $${ for a literal ${")
        if name not in environ:
            raise InvalidValueError(_unset_variable_text(name))
        value = _require_utf8(environ[name], f"environment variable {name}")
        if is_secret:
            register_secret(value)
        return encode(value)

    return _PLACEHOLDER.sub(replace, text)


def _read_secret_file(name: str) -> str:
    try:
        text = read_in_time(name, MAX_FILE_BYTES).decode("utf-8").rstrip("\r\n")
    except OSError as exc:
        raise InvalidValueError(f"cannot read {name}: {os_error_text(exc)}") from None
    except UnicodeDecodeError:
        raise InvalidValueError(f"cannot read {name}: not UTF-8 text") from None
    register_secret(text)
    return text
