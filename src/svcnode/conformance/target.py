"""The address of the node: parses a URL, the prefix of the interface and a CA file."""

from __future__ import annotations

import base64
import re
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import register_secret
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PREFIX = "/svc"
PUBLIC_TWIN_PREFIX = "/eigen"  # of the EigenLayer node API, which has the same endpoints
_ENDPOINT_PATTERN = "(/node(/health|/services(/[^/]+/health)?)?)?"
_EXAMPLE = "write it like http://127.0.0.1:8420"
_VISIBLE_ASCII = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetUrl:
    """The server that requests are sent to, and the path before the endpoints."""

    host: str
    port: int
    base: str
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    has_custom_ca: bool = False
    authorization: str = field(default="", repr=False)  # the header value; never shown

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = self.port == (80 if self.tls is None else 443)
        return host if is_default else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.netloc}{self.base}"


def parse_target(url: str, *, prefix: str = DEFAULT_PREFIX, ca: Path | None = None) -> TargetUrl:
    """Raises `InvalidValueError` for an unusable URL. The path of an endpoint at its end is removed."""
    if "?" in url or "#" in url:  # not repeated in the error: it may hold a password or a key
        raise InvalidValueError(f"the base URL of a node has no ? and no #; {_EXAMPLE}")
    parts = _split_url(url if "://" in url else f"http://{url}")
    if parts is None or "@" in parts.path:
        shown_url = f"…@{url.rpartition('@')[2]}" if "@" in url else url
        hint = "; percent-encode @ : / in a password" if "@" in url else ""
        raise InvalidValueError(f'"{shown_url}" is not the base URL of a node; {_EXAMPLE}{hint}')
    if not re.fullmatch(r"(/[^/?#\s]+)*/?", prefix):
        raise InvalidValueError(f'"{prefix}" is not a prefix; write it like /svc')
    tls = _ssl_context(ca) if parts.scheme == "https" else None
    if ca is not None and tls is None:
        raise InvalidValueError("a CA file needs an https URL; this one is http")
    path, prefix = parts.path.rstrip("/"), prefix.rstrip("/")
    if prefix == DEFAULT_PREFIX and _match_prefix(path, PUBLIC_TWIN_PREFIX):
        prefix = PUBLIC_TWIN_PREFIX
    base = f"{_base_path(path, prefix)}{prefix}"
    return TargetUrl(
        host=parts.host,
        port=parts.port,
        base=quote(base, safe=_VISIBLE_ASCII),
        tls=tls,
        has_custom_ca=ca is not None,
        authorization=parts.authorization,
    )


def _match_prefix(path: str, prefix: str) -> re.Match[str] | None:
    return re.fullmatch(f"(.*){re.escape(prefix)}{_ENDPOINT_PATTERN}", path)


def _base_path(path: str, prefix: str) -> str:
    match = _match_prefix(path, prefix) if prefix else None
    return match[1] if match else path


class _UrlParts(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str
    authorization: str


def _split_url(url: str) -> _UrlParts | None:
    try:
        split = urlsplit(url)
        host = (split.hostname or "").encode("ascii" if ":" in (split.hostname or "") else "idna").decode()
        port = split.port
    except ValueError:  # includes UnicodeError
        return None
    if split.scheme not in ("http", "https") or not host or not url.isprintable() or "\\" in url:
        return None
    login = _authorization(split.username or "", split.password or "")
    return _UrlParts(split.scheme, host, port or (443 if split.scheme == "https" else 80), split.path, login)


def _authorization(username: str, password: str) -> str:
    if not (username or password):
        return ""
    username, password = unquote(username), unquote(password)
    token = base64.b64encode(f"{username}:{password}".encode()).decode()
    register_secret(password or username)  # a user name without a password may be a token
    register_secret(token)
    return f"Basic {token}"


def _ssl_context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as exc:  # includes ssl.SSLError
        problem = os_error_text(exc) if not isinstance(exc, ssl.SSLError) else "no PEM certificate in it"
        raise InvalidValueError(f"cannot use the CA file {ca}: {problem}") from exc
