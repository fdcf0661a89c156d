"""CORS: which web pages of other origins may read the responses of the four endpoints.

The responses are public, so a page needs no credentials and a plain GET needs no preflight request.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.api.spec import Headers

ANY_ORIGIN = "*"
# As browsers send it: lower case, without a path, a user name or a default port.
_ORIGIN_PATTERN = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[0-9a-z._-]+)(?::([0-9]{1,5}))?", re.ASCII)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65_535


class CorsPolicy(NamedTuple):
    origins: frozenset[str]

    def headers_for(self, origin: bytes) -> Headers:
        """The headers of a response to a request with this `Origin` header, which may be empty."""
        if ANY_ORIGIN in self.origins:
            return (("Access-Control-Allow-Origin", ANY_ORIGIN),)
        text = origin.decode("latin-1")
        allowed = (("Access-Control-Allow-Origin", text),) if text in self.origins else ()
        return (*allowed, ("Vary", "Origin"))


def parse_origins(origins: Sequence[str]) -> CorsPolicy:
    if not origins:
        raise InvalidValueError('needs at least one origin such as "https://status.example.com", or "*" for all')
    if ANY_ORIGIN in origins and len(origins) > 1:
        raise InvalidValueError('"*" allows all origins; remove the others, or remove "*"')
    for origin in origins:
        if origin != ANY_ORIGIN:
            _validate_origin(origin)
    return CorsPolicy(frozenset(origins))


def _validate_origin(origin: str) -> None:
    match = _ORIGIN_PATTERN.fullmatch(origin)
    if match is None:
        raise InvalidValueError(
            f'"{origin}" is not an origin; expected scheme, host and port only, in lower case, such as '
            '"https://status.example.com"'
        )
    scheme, host, port = match.groups()
    if port is None:
        return
    if int(port) == _DEFAULT_PORTS[scheme]:
        raise InvalidValueError(f'"{origin}": browsers leave the default port out; write "{scheme}://{host}"')
    if port.startswith("0") or int(port) > _MAX_PORT:
        raise InvalidValueError(f'"{origin}": a port is a number from 1 to {_MAX_PORT} without leading zeros')
