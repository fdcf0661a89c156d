"""Listen addresses: `127.0.0.1:8420`, `https://[::1]:8443`, `unix:/run/svcnode.sock`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import validate_text

UNIX_PREFIX = "unix:"
_TCP_PATTERN = re.compile(r"(?:(https?)://)?(\[[^\]]+\]|[^:\[\]/\s]+):([0-9]{1,5})/?", re.ASCII)
_EXAMPLES = '"127.0.0.1:8420", "[::1]:8420" or "unix:/run/svcnode.sock"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    scheme: Literal["http", "https", "unix"]
    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"{UNIX_PREFIX}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def bind_key(self) -> tuple[str, int, str]:
        """Two addresses with the same key cannot both be bound, whatever their scheme."""
        return (self.host, self.port, self.path)


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
    return Address(scheme="https" if uses_tls else "http", host=_parse_host(text, host), port=int(port))


def _parse_unix_address(text: str) -> Address:
    path = text.removeprefix(UNIX_PREFIX)
    if not path:
        raise InvalidValueError('a Unix socket address needs a path, such as "unix:/run/svcnode.sock"')
    validate_text("Unix socket path", path)
    return Address(scheme="unix", path=path)


def _parse_host(text: str, host: str) -> str:
    if not host.startswith("["):
        return host
    try:
        return str(ipaddress.IPv6Address(host[1:-1]))
    except ValueError:
        raise InvalidValueError(
            f'invalid listen address "{text}": the text in brackets is not an IPv6 address'
        ) from None


def _hint(text: str) -> str:
    if text.isascii() and text.isdigit():
        return f'"127.0.0.1:{text}" (this machine only) or "0.0.0.0:{text}" (all interfaces)'
    if text.count(":") > 1 and not set(text) & set("[/"):
        return 'an IPv6 address in brackets, such as "[::1]:8420"'
    return _EXAMPLES
