"""Who may see what is beyond the interface.

On loopback anybody may, for whoever is on this machine can ask for more than that. Elsewhere the token is asked for. A
loopback listener can still be reached from elsewhere, and then counts as elsewhere: through a proxy, which says so in a
header; by a web page in a browser on this machine that has its own host's name resolve to 127.0.0.1; and by one that
shows our pictures or opens our events, which the browser says. A socket in the file system is held to the same. A proxy
that says nothing looks like a visitor on this machine, so where there is one, loopback can be trusted no more than the
rest.
"""

from __future__ import annotations

import binascii
import hmac
import ipaddress
import re
from base64 import b64decode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svcnode.api.app import PROXY_HEADERS
from svcnode.api.spec import Response, error_response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.core.address import Address

TOKEN_REQUIRED = error_response(
    401,
    "This needs the operator token, as Bearer, or as the password of Basic with any user name",
    ("WWW-Authenticate", 'Basic realm="svcnode operator", charset="UTF-8"'),
    ("WWW-Authenticate", 'Bearer realm="svcnode operator"'),
)
TOKEN_NOT_CONFIGURED = error_response(
    403,
    "Beyond loopback this is served only with a token: set operator_token in [security] of the node's configuration",
)

# The name of a host, or an IPv6 address in brackets; a port may follow.
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\]|(?P<name>[^\[\]:@/\\\s]*))(?::[0-9]*)?", re.ASCII)
_SAME_SITE_VALUES = (b"none", b"same-origin")  # typed in or taken from the bookmarks, and asked for by a page of ours


@dataclass(frozen=True, slots=True)
class OperatorAuth:
    """What is asked of visitors at one listener."""

    address: Address
    token: str | None = field(repr=False)
    trusts_loopback: bool = True

    def rejection(self, headers: Mapping[bytes, bytes]) -> Response | None:
        if self._is_trusted_local(headers):
            return None
        if self.token is None:
            return TOKEN_NOT_CONFIGURED
        given = _parse_token(headers.get(b"authorization", b""))
        return None if hmac.compare_digest(given, self.token.encode()) else TOKEN_REQUIRED

    @property
    def is_open(self) -> bool:
        """Whether some may come in without a token."""
        return self.trusts_loopback and is_local_address(self.address)

    @property
    def log_suffix(self) -> str:
        """What is asked, for the log: nothing, where there is nothing to ask."""
        if self.is_open:
            return ""
        if self.token is None:
            return ", but not served there: set operator_token in [security] to see it, or operator = false in [server]"
        return ", and asks for the token"

    def _is_trusted_local(self, headers: Mapping[bytes, bytes]) -> bool:
        if not self.is_open or not PROXY_HEADERS.isdisjoint(headers):
            return False
        return _is_loopback_host_header(headers.get(b"host", b"")) and not _is_cross_site(headers)


def is_local_address(address: Address) -> bool:
    """Whether only this machine can connect to it."""
    return address.scheme == "unix" or is_loopback(address.host)


def is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_loopback_host_header(host: bytes) -> bool:
    """By the Host header. A program may name nobody; no browser does that."""
    text = host.decode("latin-1").strip()
    found = _HOST.fullmatch(text)
    return not text or (found is not None and is_loopback(found["ipv6"] or found["name"] or ""))


def _is_cross_site(headers: Mapping[bytes, bytes]) -> bool:
    if headers.get(b"sec-fetch-site", b"none") in _SAME_SITE_VALUES:
        return False
    # Whoever follows a link sees what it leads to. The page with the link does not.
    is_link = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return not is_link


def _parse_token(authorization: bytes) -> bytes:
    scheme, _, credentials = authorization.strip().partition(b" ")
    match scheme.lower():
        case b"bearer":
            return credentials.strip()
        case b"basic":
            try:
                return b64decode(credentials.strip(), validate=True).partition(b":")[2]
            except binascii.Error:
                return b""
        case _:
            return b""
