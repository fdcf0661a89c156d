"""Values that stand elsewhere: `${NAME}` in the environment, `{ file = "…" }` in a file. None is ever shown."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import register_secret
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_FILE_BYTES = 64 * 1024
# In a URL that is a secret as a whole, what could be a key; a shorter word is more often a name.
MIN_KEY_CHARS = 8

# "$${" stands for a plain "${"; a "${" alone has no end, or none before the next one begins.
_PLACEHOLDER = re.compile(r"\$\$\{|\$\{(?P<name>(?:(?!\$\{)[^}])*)\}|\$\{")
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Where what stands decides how it is put in: raw in the host, in %-form in the user's part and after the host.
_URL_PARTS = re.compile(r"([^:/?#]*:)(//(?:[^/?#]*@)?)?([^/?#]*)(.*)", re.DOTALL)


def interpolate(value: Any, environ: Mapping[str, str]) -> Any:  # noqa: ANN401  whatever TOML can hold
    """The value with everything put in its place that stands elsewhere."""
    match value:
        case str():
            return _require_utf8(_substitute(value, environ, is_secret=True), "it")
        case {"file": str(path), **others} if not others:
            return _read_secret_file(_substitute(path, environ, is_secret=False))
        case dict():
            return {key: interpolate(inner, environ) for key, inner in value.items()}
        case list() | tuple():
            return [interpolate(inner, environ) for inner in value]
        case _:
            return value


def interpolate_url(value: object, environ: Mapping[str, str]) -> str:
    """A URL of which any part, or all of it, stands elsewhere."""
    if is_in_file := isinstance(value, dict):
        value = interpolate(value, environ)
    if not isinstance(value, str):
        raise InvalidValueError('a probe URL is a string, or { file = "…" } that names the file it stands in')
    if is_in_file:
        value = _literal_url(value)
    elif value.startswith("${"):  # all of it, or its beginning with scheme and host
        beginning, brace, rest = value.partition("}")
        value = _literal_url(_substitute(beginning + brace, environ, is_secret=True)) + rest
    parts = _URL_PARTS.fullmatch(value)
    if parts is None:
        return value  # not a URL, and whoever parses it says so
    scheme, user, host, rest = (part or "" for part in parts.groups())
    if parts[2] is None:  # no authority: all is the rest
        host, rest = "", host + rest
    return (
        scheme
        + _substitute(user, environ, is_secret=True, encode=_percent_encode)
        + _substitute(host, environ, is_secret=False)
        + _substitute(rest, environ, is_secret=True, encode=_percent_encode)
    )


def _literal_url(text: str) -> str:
    """A URL that stands elsewhere: taken as it is, with nothing put into it, and no key in it is shown."""
    if parts := _URL_PARTS.fullmatch(text):
        for word in re.split(r"[/?&=#\s]", parts[4] if parts[2] else parts[3] + parts[4]):
            if len(word) >= MIN_KEY_CHARS:
                register_secret(word)
                register_secret(unquote(word))
    return text.replace("${", "$${")


def _unset_variable_text(name: str) -> str:
    if _VARIABLE_NAME.fullmatch(name):
        return f"the environment variable {name} is not set"
    # What is no name may be a secret, such as the default in the shell's ${NAME:-default}, so it is not shown.
    return "what stands in ${…} is not the name of an environment variable; there is no form with a default"


def _require_utf8(text: str, what: str) -> str:
    """The system hands on bytes that are no text as halves of characters, which nothing further on could take."""
    if any("\ud800" <= char < "\ue000" for char in text):
        raise InvalidValueError(f"{what} is not UTF-8 text")
    return text


def _percent_encode(text: str) -> str:
    return quote(text, safe="")


def _substitute(text: str, environ: Mapping[str, str], *, is_secret: bool, encode: Callable[[str], str] = str) -> str:
    def fill(found: re.Match[str]) -> str:
        name = found["name"]
        if found[0] == "$${":
            return "${"
        if name is None:  # what follows may be a secret, so it is not shown
            raise InvalidValueError("a ${ lacks its }; write ${NAME}, or $${ for a plain ${")
        if name not in environ:
            raise InvalidValueError(_unset_variable_text(name))
        value = _require_utf8(environ[name], f"the environment variable {name}")
        if is_secret:
            register_secret(value)
        return encode(value)

    return _PLACEHOLDER.sub(fill, text)


def _read_secret_file(name: str) -> str:
    path = Path(name)
    try:
        text = _read_small_file(path).decode("utf-8").rstrip("\r\n")
    except OSError as exc:
        raise InvalidValueError(f"cannot read {path}: {os_error_text(exc)}") from None
    except UnicodeDecodeError:
        raise InvalidValueError(f"cannot read {path}: not UTF-8 text") from None
    register_secret(text)
    return text


def _read_small_file(path: Path) -> bytes:
    try:
        about = path.stat()
    except ValueError:  # a null character in it
        raise InvalidValueError(f"cannot read {path}: no file has such a name") from None
    if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE_BYTES:
        raise InvalidValueError(f"not a file of at most {MAX_FILE_BYTES // 1024} KiB: {path}")
    return path.read_bytes()
