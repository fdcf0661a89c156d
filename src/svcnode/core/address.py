"""Addresses of nodes and registries.

A node listens on `127.0.0.1:8420`, `https://[::1]:8443` or `unix:/run/svcnode.sock`. A client finds it at `host`,
`host:port`, `https://host/base` or `unix:/path`. The registry of a shared node is at `etcd://host1:2379,host2:2379`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import replace
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import DEFAULT_PREFIX, require_str, validate_text
from svcnode.core.redaction import MASK, register_secret
from svcnode.core.url import Url, UrlError, ascii_host, join_host_port, parse_host, redact_url

UNIX_PREFIX = "unix:"
PUBLIC_TWIN_PREFIX = "/eigen"  # of the EigenLayer node API, which has the same endpoints
_ENDPOINT_PATTERN = "(/node(/health|/services(/[^/]+/health)?)?)?"
_INVALID_CHAR = "it is empty, or has a character that a URL cannot have"
_ENCODING_HINT = "percent-encode @ : / ? # in a password"
_INVALID_AUTHORITY = "a port is a number up to 65535; an IPv6 address needs brackets"
_TCP_PATTERN = re.compile(r"(?:(https?)://)?(\[[^\]]+\]|[^:\[\]/\s]+):([0-9]{1,5})/?", re.ASCII)
DEFAULT_REGISTRY_PORT, DEFAULT_REGISTRY_PREFIX = 2379, "/svcnode"
_REGISTRY_PATTERN = re.compile(
    r"etcd://(?:(?P<username>[^:@/?#]+)(?::(?P<password>[^/?#]*))?@)?(?P<hosts>[^@/?#]+)(?P<path>/[^?#]*)?"
)
_REGISTRY_PREFIX_PATTERN = re.compile(r"(?:/[A-Za-z0-9._~-]+)+")
_REGISTRY_EXAMPLE = "write etcd://host1:2379,host2:2379/prefix"
_EXAMPLES = '"127.0.0.1:8420", "[::1]:8420" or "unix:/run/svcnode.sock"'


# ---- where a node listens


class Address(NamedTuple):
    scheme: Literal["http", "https", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"{UNIX_PREFIX}{self.path}"
        return f"{self.scheme}://{join_host_port(self.host, self.port)}"

    @property
    def bind_key(self) -> tuple[str, int, str]:
        """Two addresses with the same key cannot both be bound, whatever their scheme."""
        return (self.host, self.port, self.path)

    def overlaps(self, other: Address) -> bool:
        """Whether they cannot both be bound. Names of hosts are not resolved: two names count as two hosts."""
        if self.path or other.path or self.port != other.port:
            return self.path == other.path != ""
        if not self.port:  # a random port, but the same address twice is a mistake
            return self == other
        return self.host == other.host or _includes(self.host, other.host) or _includes(other.host, self.host)


def _includes(wildcard: str, host: str) -> bool:
    """0.0.0.0 includes every IPv4 address, and :: every IPv6 address."""
    try:
        every, one = ipaddress.ip_address(wildcard), ipaddress.ip_address(host)
    except ValueError:
        return False
    return every.is_unspecified and every.version == one.version


def parse_address(text: str, *, has_tls: bool) -> Address:
    """A TCP address without a scheme uses TLS if a certificate is configured."""
    if text.startswith(UNIX_PREFIX):
        return _parse_unix_address(text)
    match = _TCP_PATTERN.fullmatch(text)
    if match is None:
        raise InvalidValueError(f'invalid listen address "{text}"; write {_hint(text)}')
    scheme, host, port = match.groups()
    if int(port) > 65535:
        raise InvalidValueError(f'invalid listen address "{text}": the largest port is 65535')
    if scheme == "https" and not has_tls:
        raise InvalidValueError(f'listen address "{text}" needs a certificate; set certificate and key in [server.tls]')
    uses_tls = has_tls if scheme is None else scheme == "https"
    try:
        return Address(scheme="https" if uses_tls else "http", host=parse_host(host), port=int(port))
    except UrlError:
        raise InvalidValueError(
            f'invalid listen address "{text}": the text in brackets is not an IPv6 address'
        ) from None


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parse_unix_address(text: str) -> Address:
    path = text.removeprefix(UNIX_PREFIX)
    if not path:
        raise InvalidValueError('a Unix socket address needs a path, such as "unix:/run/svcnode.sock"')
    validate_text("Unix socket path", path)
    return Address(scheme="unix", path=path)


def _hint(text: str) -> str:
    if text.isascii() and text.isdigit():
        return f'"127.0.0.1:{text}" (this machine only) or "0.0.0.0:{text}" (all interfaces)'
    if text.count(":") > 1 and not set(text) & set("[/"):
        return 'an IPv6 address in brackets, such as "[::1]:8420"'
    return _EXAMPLES


# ---- where a client finds a node


class NodeAddress(NamedTuple):
    url: Url  # its path is the one before the prefix
    prefix: str
    socket_path: str | None = None  # set for a Unix socket

    @property
    def origin(self) -> str:
        return f"{self.url.scheme}://{self.url.host_port}"

    @property
    def root(self) -> str:
        """The URL to which the paths of the interface are appended."""
        return f"{self.origin}{self.url.path}{self.prefix}"

    @property
    def uses_tls(self) -> bool:
        return self.url.scheme == "https"

    def __str__(self) -> str:
        """Without the prefix and the password. A user name without a password may be a token."""
        if self.socket_path is not None:
            return f"{UNIX_PREFIX}{self.socket_path}"
        username, password = self.url.username, self.url.password
        login = f"{username}:{MASK}@" if password else f"{MASK}@" if username else ""
        return f"{self.url.scheme}://{login}{self.url.host_port}{self.url.path}"

    def __repr__(self) -> str:
        return f"<NodeAddress {self}>"


def parse_node_address(url: str, prefix: str = DEFAULT_PREFIX) -> NodeAddress:
    """A prefix or an endpoint of the interface at the end of the URL is removed."""
    require_str("url", url)
    require_str("prefix", prefix)
    prefix, text = _normalize_prefix(prefix), url.strip()
    if text.startswith(UNIX_PREFIX):
        socket_path = _parse_unix_address(text).path
        return NodeAddress(url=Url(scheme="http", host="localhost"), prefix=prefix, socket_path=socket_path)
    parsed = _parse_node_url(text)
    register_secret(parsed.password or parsed.username)
    if prefix == DEFAULT_PREFIX and _match_prefix(parsed.path, PUBLIC_TWIN_PREFIX):
        prefix = PUBLIC_TWIN_PREFIX
    return NodeAddress(url=replace(parsed, path=_base_path(parsed.path, prefix)), prefix=prefix)


def _parse_node_url(text: str) -> Url:
    def invalid(problem: str) -> InvalidValueError:
        hint = "write host:port or https://host:port"
        return InvalidValueError(f"invalid node URL {redact_url(text)!r}: {problem}; {hint}")

    if not text or " " in text:
        raise invalid(_INVALID_CHAR)
    if "\\" in text:
        raise invalid("it has a backslash; use a slash")
    if "?" in text or "#" in text:
        raise invalid(f"a query or fragment is not allowed; {_ENCODING_HINT}")
    try:
        url = Url.parse(text if "://" in text else f"http://{text}", register_secrets=False)
    except UrlError as exc:
        hint = f"; {_ENCODING_HINT}" if "@" in text else ""
        raise invalid(_INVALID_CHAR if exc.part == "url" else f"{_INVALID_AUTHORITY}{hint}") from None
    if url.scheme not in ("http", "https"):
        raise invalid("the scheme must be http or https")
    if not url.host:
        raise invalid("the host is missing")
    if "@" in url.host + url.path:
        raise invalid(_ENCODING_HINT)
    host = ascii_host(url.host)
    if host is None:
        raise invalid("invalid host name, or too long")
    return replace(url, host=host.lower())


def _normalize_prefix(prefix: str) -> str:
    if prefix and not prefix.startswith("/"):
        raise InvalidValueError(f'prefix: must begin with a slash; did you mean "/{prefix}"?')
    if any(part in prefix for part in ("?", "#", "//")) or not prefix.isprintable():
        raise InvalidValueError(f"prefix: must be a path, not {prefix!r}")
    return quote(prefix.rstrip("/"), safe="/%:@!$&'()*+,;=~")


def _match_prefix(path: str, prefix: str) -> re.Match[str] | None:
    return re.fullmatch(f"(.*){re.escape(prefix)}{_ENDPOINT_PATTERN}", path.rstrip("/"))


def _base_path(path: str, prefix: str) -> str:
    match = _match_prefix(path, prefix) if prefix else None
    return quote(match[1] if match else path.rstrip("/"), safe="/%:!$&'()*+,;=~")


# ---- where the registry of a shared node is


class RegistryAddress(NamedTuple):
    """The endpoints of an etcd cluster, and the prefix of the keys."""

    endpoints: tuple[tuple[str, int], ...]  # hosts and ports
    prefix: str = DEFAULT_REGISTRY_PREFIX
    username: str = ""
    password: str = ""
    url_file: str = ""  # from which the URL was read
    password_file: str = ""

    def __str__(self) -> str:
        """Without the password."""
        login = f"{self.username}{f':{MASK}' if self.password else ''}@" if self.username else ""
        return f"etcd://{login}{','.join(join_host_port(*endpoint) for endpoint in self.endpoints)}{self.prefix}"

    def __repr__(self) -> str:
        return f"<RegistryAddress {self}>"


def parse_registry_url(text: str) -> RegistryAddress:
    """`etcd://[user[:password]@]host[:port],…[/prefix]`; user name and password are percent-decoded."""

    def invalid(problem: str) -> InvalidValueError:
        return InvalidValueError(f"invalid registry URL {redact_url(text)!r}: {problem}; {_REGISTRY_EXAMPLE}")

    match = _REGISTRY_PATTERN.fullmatch(text)
    if match is None:
        scheme = "" if text.startswith("etcd://") else "it must begin with etcd://"
        raise invalid(scheme or f"it has no host, or a query, or a special character; {_ENCODING_HINT}")
    password = unquote(match["password"] or "")
    register_secret(password)
    try:
        endpoints = tuple(_registry_endpoint(host) for host in match["hosts"].split(","))
    except UrlError as exc:
        raise invalid(_INVALID_AUTHORITY if exc.part == "port" else "a host is missing or not valid") from None
    if len(set(endpoints)) < len(endpoints):
        raise invalid("duplicate endpoint")
    prefix = (match["path"] or "").rstrip("/") or DEFAULT_REGISTRY_PREFIX
    if not _REGISTRY_PREFIX_PATTERN.fullmatch(prefix):
        raise invalid("the prefix has only letters, digits and -._~ between its slashes")
    return RegistryAddress(endpoints, prefix, unquote(match["username"] or ""), password)


def _registry_endpoint(text: str) -> tuple[str, int]:
    url = Url.parse(f"etcd://{text}", register_secrets=False)
    return url.require_host(), url.port or DEFAULT_REGISTRY_PORT
