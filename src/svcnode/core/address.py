"""Where to listen, as people write it: `127.0.0.1:8420`, `https://[::1]:8443`, `unix:/run/svcnode.sock`."""

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
        """What two addresses must not share, whatever is spoken there."""
        return (self.host, self.port, self.path)


def parse_address(text: str, *, has_tls: bool) -> Address:
    """Without a scheme, a TCP address speaks TLS when there is a certificate to do so."""
    if text.startswith(UNIX_PREFIX):
        return _parse_unix_address(text)
    found = _TCP_PATTERN.fullmatch(text)
    if found is None:
        raise InvalidValueError(f'"{text}" is not an address to listen on; write {_hint(text)}')
    scheme, host, port = found.groups()
    if int(port) > 65535:
        raise InvalidValueError(f'"{text}": a port is at most 65535')
    if scheme == "https" and not has_tls:
        raise InvalidValueError(f'"{text}" needs a certificate: set certificate and key in [server.tls]')
    speaks_tls = has_tls if scheme is None else scheme == "https"
    return Address(scheme="https" if speaks_tls else "http", host=_parse_host(text, host), port=int(port))


def _parse_unix_address(text: str) -> Address:
    path = text.removeprefix(UNIX_PREFIX)
    if not path:
        raise InvalidValueError('a Unix socket needs a path, such as "unix:/run/svcnode.sock"')
    validate_text("the path of a Unix socket", path)
    return Address(scheme="unix", path=path)


def _parse_host(text: str, host: str) -> str:
    if not host.startswith("["):
        return host
    try:
        return str(ipaddress.IPv6Address(host[1:-1]))
    except ValueError:
        raise InvalidValueError(f'"{text}": what stands in brackets is not an IPv6 address') from None


def _hint(text: str) -> str:
    if text.isascii() and text.isdigit():
        return f'"127.0.0.1:{text}" for this machine alone or "0.0.0.0:{text}" for everyone'
    if text.count(":") > 1 and not set(text) & set("[/"):
        return 'an IPv6 address in brackets, such as "[::1]:8420"'
    return _EXAMPLES
