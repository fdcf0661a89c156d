"""The operator endpoints inside another program: their options, and what `asgi` and `wsgi` share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from svcnode.api.app import RETAINED_HEADERS
from svcnode.api.spec import make_response, parse_prefixes
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import require_str, validate_token
from svcnode.core.redaction import register_secret

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.api.spec import Response


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """Where the operator endpoints of an embedded node are, and who may use them.

    Without a token, only clients on this machine may use them, and only if they connect directly to the server of the
    program. With a token, every client that sends it may use them; with `trust_loopback`, clients on this machine need
    not send it. With `unrestricted`, every request that reaches the application is answered, so the program itself has
    to restrict access.

    Under WSGI, a response to `/events` contains the events so far and then ends, and the client asks again. If the
    server has enough threads, set `wsgi_streams` to the number of streams that may stay open.
    """

    path: str = "/"  # below the mount point
    token: str | None = field(default=None, repr=False)
    trust_loopback: bool | None = None  # None: without a token
    unrestricted: bool = False
    wsgi_streams: int = 0  # event streams that may be open at a time under WSGI, where each occupies a thread

    def __post_init__(self) -> None:
        require_str("path", self.path)
        try:
            parse_prefixes(self.path)
        except InvalidValueError:
            raise InvalidValueError(f'path: must be a path such as "/status", not "{self.path}"') from None
        if self.token is not None:
            _check_token(self.token)
        if self.unrestricted and (self.token is not None or self.trust_loopback is not None):
            raise InvalidValueError(
                "unrestricted: cannot be combined with token or trust_loopback, because it allows every request"
            )
        if self.trust_loopback is False and self.token is None:
            raise InvalidValueError(
                "trust_loopback: must not be False without a token, because no request would be allowed; add a token"
            )

        if self.wsgi_streams < 0:
            raise InvalidValueError(f"wsgi_streams: must be 0 or greater, not {self.wsgi_streams!r}")

    @property
    def prefix(self) -> str:
        """The path without a slash at its end."""
        return parse_prefixes(self.path)[0]

    @property
    def trusts_loopback(self) -> bool:
        return self.token is None if self.trust_loopback is None else self.trust_loopback


def _check_token(token: str) -> None:
    require_str("token", token)
    try:
        validate_token(token)
    except InvalidValueError as exc:
        raise InvalidValueError(f"token: {exc}") from None
    register_secret(token)


class ConnectionInfo(NamedTuple):
    """Both ends of a connection, as the server of the program states them."""

    client_host: str  # empty if it is not known, as with a Unix socket
    uses_tls: bool
    server_port: int  # 0 if it is not known
    http_version: str  # of the request, such as "1.1"


def slash_redirect(path: str) -> Response:
    """To the same path with a slash at its end. Relative: a proxy may have another path in front of it."""
    return make_response(307, b"", ("Location", f"./{quote(path.rpartition('/')[2], safe='')}/"))


def retained_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """The headers that the application reads, as a request has them."""
    retained: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in RETAINED_HEADERS:
            retained[name] = b"%s, %s" % (retained[name], value) if name in retained else value
    return retained
