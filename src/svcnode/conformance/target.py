"""The node to check: its address, the TLS context for it, and a CA file."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from svcnode.core.address import parse_node_address
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import DEFAULT_PREFIX
from svcnode.core.text import os_error_text
from svcnode.core.url import join_host_port

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUnderTestUrl:
    """The server that requests are sent to, and the path before the endpoints."""

    host: str
    port: int
    base: str
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    has_custom_ca: bool = False
    authorization: str = field(default="", repr=False)  # the header value; never shown

    @property
    def netloc(self) -> str:
        is_default = self.port == (80 if self.tls is None else 443)
        return join_host_port(self.host, None if is_default else self.port)

    def __str__(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://{self.netloc}{self.base}"


def parse_target(url: str, *, prefix: str = DEFAULT_PREFIX, ca: Path | None = None) -> NodeUnderTestUrl:
    """Raises `InvalidValueError` for an unusable URL. The path of an endpoint at its end is removed."""
    address = parse_node_address(url, prefix)
    if address.socket_path is not None:
        raise InvalidValueError(f"cannot check {address}: write the http or https URL of the node")
    if ca is not None and not address.uses_tls:
        raise InvalidValueError("a CA file needs an https URL; this one is http")
    return NodeUnderTestUrl(
        host=address.url.host,
        port=address.url.port or (443 if address.uses_tls else 80),
        base=f"{address.url.path}{address.prefix}",
        tls=_ssl_context(ca) if address.uses_tls else None,
        has_custom_ca=ca is not None,
        authorization=address.url.basic_authorization,
    )


def _ssl_context(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as exc:  # includes ssl.SSLError
        problem = os_error_text(exc) if not isinstance(exc, ssl.SSLError) else "no PEM certificate in it"
        raise InvalidValueError(f"cannot use the CA file {ca}: {problem}") from exc
