"""Access control of the operator endpoints.

`serve` decides by the address of the listener; an embedded node by the address of the client, as its server states it.
If a token is configured, every request needs it. If not, or with trust_loopback = true, requests over loopback need
none, and neither do those over a Unix socket that `serve` listens on: a local user can read more than these endpoints
show. Three kinds of requests reach a trusted listener from elsewhere and need the token, too: those with a proxy
header; those whose Host is not this machine (DNS rebinding); and those that a browser marks as cross-site. A proxy that
adds no header and sets a local Host, or passes one on that its client sends, cannot be detected. Requests of its other
clients show it; that is logged.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svcnode.api.app import PROXY_HEADERS, authorization_token
from svcnode.api.spec import Response, error_response
from svcnode.core.address import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.core.address import Address

TOKEN_REQUIRED = error_response(
    401,
    "Operator token required: send it as a Bearer token, or as the Basic password with any user name",
    ("WWW-Authenticate", 'Basic realm="svcnode operator", charset="UTF-8"'),
    ("WWW-Authenticate", 'Bearer realm="svcnode operator"'),
)
TOKEN_NOT_CONFIGURED = error_response(
    403,
    "Access from other hosts needs a token: set operator_token in [security] of the node's configuration",
)
TOKEN_NOT_GIVEN = error_response(
    403,
    "Access from other hosts, or through a proxy, needs a token: the program of the node can set it in OperatorOptions",
)

# A host name or an IPv6 address in brackets, with an optional port.
_HOST = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)\]|(?P<name>[^\[\]:@/\\\s]*))(?::(?P<port>[0-9]{0,5}))?", re.ASCII
)
_DEFAULT_PORTS: dict[str, int] = {"http": 80, "https": 443}
_SAME_SITE_VALUES = (b"none", b"same-origin")  # address bar or bookmark; our own page


@dataclass(frozen=True, slots=True)
class OperatorAuth:
    """The access rules of one listener, or of one client of an embedded node."""

    address: Address  # of the listener; in an embedded node, the host of the client and the port of the listener
    token: str | None = field(repr=False)
    trusts_loopback: bool
    is_embedded: bool = False

    def rejection(self, headers: Mapping[bytes, bytes]) -> Response | None:
        if self._is_trusted_local(headers):
            return None
        if self.token is None:
            return TOKEN_NOT_GIVEN if self.is_embedded else TOKEN_NOT_CONFIGURED
        import hmac  # with OpenSSL's hashes; most nodes have no token

        token = authorization_token(headers.get(b"authorization", b""))
        return None if hmac.compare_digest(token, self.token.encode()) else TOKEN_REQUIRED

    @property
    def is_open(self) -> bool:
        """Whether local requests need no token."""
        return self.trusts_loopback and is_local_address(self.address)

    @property
    def token_hint(self) -> str:
        return "set a token in OperatorOptions" if self.is_embedded else "set operator_token in [security]"

    @property
    def log_suffix(self) -> str:
        """Appended to the log line with the address of the page."""
        if self.is_open:
            return ""
        if self.token is None:
            return " (disabled: set operator_token in [security], or operator = false in [server])"
        return " (token required)"

    def proxy_sign(self, headers: Mapping[bytes, bytes]) -> str | None:
        """What suggests that the request came through a proxy: a header, or a Host that is not this listener."""
        for name in sorted(PROXY_HEADERS.intersection(headers)):
            return f"header {name.decode()}"
        text = headers.get(b"host", b"").decode("latin-1").strip()
        return None if not text or self._is_own_host(text) else "header host is not the address of the listener"

    def _is_own_host(self, text: str) -> bool:
        """A client that connects to the listener itself sends the listener's port, unless it is the default one."""
        match = _HOST.fullmatch(text)
        if match is None or not is_loopback(match["ipv6"] or match["name"] or ""):
            return False
        default_port = _DEFAULT_PORTS.get(self.address.scheme)
        return default_port is None or int(match["port"] or default_port) == self.address.port

    def _is_trusted_local(self, headers: Mapping[bytes, bytes]) -> bool:
        if not self.is_open or not PROXY_HEADERS.isdisjoint(headers):
            return False
        return _is_loopback_host_header(headers.get(b"host", b"")) and not _is_cross_site(headers)


def is_local_address(address: Address) -> bool:
    """Whether only this machine can connect to the address."""
    return address.scheme == "unix" or is_loopback(address.host)


def _is_loopback_host_header(host: bytes) -> bool:
    """An empty Host counts as local: programs may leave it out, browsers never do."""
    text = host.decode("latin-1").strip()
    match = _HOST.fullmatch(text)
    return not text or (match is not None and is_loopback(match["ipv6"] or match["name"] or ""))


def _is_cross_site(headers: Mapping[bytes, bytes]) -> bool:
    if headers.get(b"sec-fetch-site", b"none") in _SAME_SITE_VALUES:
        return False
    # A link on another site may be followed: that site cannot read the response.
    is_link = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return not is_link
