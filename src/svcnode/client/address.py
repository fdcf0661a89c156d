"""The address of a node: `host`, `host:port`, `https://host/base`, `unix:/path`."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from svcnode.core.address import UNIX_PREFIX, parse_address
from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import MASK, register_secret

DEFAULT_PREFIX = "/svc"
PUBLIC_TWIN_PREFIX = "/eigen"  # of the EigenLayer node API, which has the same endpoints
_ENDPOINT_PATTERN = "(/node(/health|/services(/[^/]+/health)?)?)?"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    origin: str  # scheme, host and port
    base: str = ""  # the path before the prefix
    prefix: str = DEFAULT_PREFIX
    socket_path: str | None = None  # set for a Unix socket
    redacted_login: str = ""  # without the password
    authorization: str = field(default="", repr=False)  # the value of the header

    @property
    def uses_tls(self) -> bool:
        return self.origin.startswith("https:")

    @property
    def root(self) -> str:
        """The URL to which the paths of the interface are appended."""
        return f"{self.origin}{self.base}{self.prefix}"

    def __str__(self) -> str:
        """Without the password and the prefix."""
        if self.socket_path is not None:
            return f"{UNIX_PREFIX}{self.socket_path}"
        scheme, _, netloc = self.origin.partition("://")
        return f"{scheme}://{self.redacted_login}{netloc}{self.base}"


def parse_node_address(url: str, prefix: str = DEFAULT_PREFIX) -> NodeAddress:
    """A prefix or an endpoint of the interface at the end of the URL is removed."""
    require_str("url", url)
    require_str("prefix", prefix)
    prefix = _normalize_prefix(prefix)
    text = url.strip()
    if text.startswith(UNIX_PREFIX):
        path = parse_address(text, has_tls=False).path
        return NodeAddress(origin="http://localhost", prefix=prefix, socket_path=path)
    if not text or any(char <= " " or char == "\x7f" or "\ud800" <= char < "\ue000" for char in text):
        raise _invalid_url_error(text, "it is empty, or has a character that a URL cannot have")
    if "\\" in text:
        raise _invalid_url_error(text, "it has a backslash; use a slash")
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _invalid_url_error(text, "a port is a number up to 65535; an IPv6 address needs brackets") from None
    if parts.scheme not in ("http", "https"):
        raise _invalid_url_error(text, "the scheme must be http or https")
    if not host or parts.netloc.rpartition("@")[2].startswith(":"):
        raise _invalid_url_error(text, "the host is missing")
    if parts.query or parts.fragment or "@" in parts.path:
        raise _invalid_url_error(text, "a query or fragment is not allowed; percent-encode @ : / ? # in a password")
    if prefix == DEFAULT_PREFIX and _match_prefix(parts.path, PUBLIC_TWIN_PREFIX):
        prefix = PUBLIC_TWIN_PREFIX
    netloc = f"[{host}]" if ":" in host else host
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    return NodeAddress(
        origin=f"{parts.scheme}://{netloc}" + (f":{port}" if port is not None else ""),
        base=_base_path(parts.path, prefix),
        prefix=prefix,
        redacted_login=_redacted_login(username, password),
        authorization=_authorization(username, password),
    )


def require_str(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidValueError(f"{name}: must be a string, not {type(value).__name__}")


def _normalize_prefix(prefix: str) -> str:
    if prefix and not prefix.startswith("/"):
        raise InvalidValueError(f'prefix: must begin with a slash; did you mean "/{prefix}"?')
    if any(char in prefix for char in "?#") or not prefix.isprintable():
        raise InvalidValueError(f"prefix: must be a path, not {prefix!r}")
    return quote(prefix.rstrip("/"), safe="/%:@!$&'()*+,;=~")


def _match_prefix(path: str, prefix: str) -> re.Match[str] | None:
    return re.fullmatch(f"(.*){re.escape(prefix)}{_ENDPOINT_PATTERN}", path.rstrip("/"))


def _base_path(path: str, prefix: str) -> str:
    path = path.rstrip("/")
    match = _match_prefix(path, prefix) if prefix else None
    return quote(match[1] if match else path, safe="/%:!$&'()*+,;=~")


def _redacted_login(username: str, password: str) -> str:
    """A user name without a password may be a token."""
    if password:
        return f"{username}:{MASK}@"
    return f"{MASK}@" if username else ""


def _authorization(username: str, password: str) -> str:
    if not (username or password):
        return ""
    register_secret(password or username)
    token = base64.b64encode(f"{username}:{password}".encode()).decode()
    register_secret(token)
    return f"Basic {token}"


def redact_url(url: str) -> str:
    """Without login and query, which may hold a secret. Accepts also a text that is not a URL."""
    address, *query = re.split("[?#]", url, maxsplit=1)
    if "@" in "".join(query):  # the end of the login is ambiguous
        return "…"
    _, at, address = address.rpartition("@")
    return f"{'…@' if at else ''}{address}{'?…' if query else ''}"


def _invalid_url_error(text: str, problem: str) -> InvalidValueError:
    return InvalidValueError(f"invalid node URL {redact_url(text)!r}: {problem}; write host:port or https://host:port")
