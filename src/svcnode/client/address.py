"""Where a node is, as people write it: `host`, `host:port`, `https://host/base`."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import HIDDEN, keep_secret

DEFAULT_PREFIX = "/svc"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAddress:
    origin: str  # scheme, host and port
    base: str = ""  # what stands before the prefix
    prefix: str = DEFAULT_PREFIX
    username: str = ""
    authorization: str = field(default="", repr=False)  # as the header has it

    @property
    def speaks_tls(self) -> bool:
        return self.origin.startswith("https:")

    @property
    def root(self) -> str:
        """What the paths of the interface are relative to."""
        return f"{self.origin}{self.base}{self.prefix}"

    def __str__(self) -> str:
        """As it was written, fit to be shown."""
        scheme, _, place = self.origin.partition("://")
        user = f"{self.username}:{HIDDEN}@" if self.authorization else ""
        return f"{scheme}://{user}{place}{self.base}"


def node_address(url: str, prefix: str = DEFAULT_PREFIX) -> NodeAddress:
    """A URL that ends in the prefix, or in the prefix and `/node`, means the same as one that does not."""
    prefix = _checked_prefix(prefix)
    text = url.strip()
    if not text or any(char <= " " or char == "\x7f" or "\ud800" <= char < "\ue000" for char in text):
        raise _refusal(text, "it is empty, or holds what no URL can hold")
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise _refusal(text, "a port is a number up to 65535, and an IPv6 address stands in brackets") from None
    if parts.scheme not in ("http", "https"):
        raise _refusal(text, "a node is asked over http or https")
    if not host or parts.netloc.rpartition("@")[2].startswith(":"):
        raise _refusal(text, "it names no host")
    if parts.query or parts.fragment or "@" in parts.path:
        raise _refusal(text, "it has a part that no address of a node has; @ : / ? # in a password have a %-form")
    place = f"[{host}]" if ":" in host else host
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    return NodeAddress(
        origin=f"{parts.scheme}://{place}" + (f":{port}" if port is not None else ""),
        base=_base(parts.path, prefix),
        prefix=prefix,
        username=username,
        authorization=_authorization(username, password),
    )


def _checked_prefix(prefix: str) -> str:
    if prefix and not prefix.startswith("/"):
        raise InvalidValueError(f'a prefix begins with a slash; did you mean "/{prefix}"?')
    if any(char in prefix for char in "?#") or not prefix.isprintable():
        raise InvalidValueError(f"a prefix is a path and no more, not {prefix!r}")
    return quote(prefix.rstrip("/"), safe="/%:@!$&'()*+,;=~")


def _base(path: str, prefix: str) -> str:
    base = path.rstrip("/")
    if prefix:
        base = base.removesuffix("/node") if base.endswith(f"{prefix}/node") else base
        base = base.removesuffix(prefix)
    return quote(base, safe="/%:!$&'()*+,;=~")


def _authorization(username: str, password: str) -> str:
    if not (username or password):
        return ""
    keep_secret(password)
    token = base64.b64encode(f"{username}:{password}".encode()).decode()
    keep_secret(token)
    return f"Basic {token}"


def _refusal(text: str, why: str) -> InvalidValueError:
    shown = f"…@{text.rpartition('@')[2]}" if "@" in text else text  # what stands before may be a password
    return InvalidValueError(f"{shown!r} is not the URL of a node: {why}; write host:port or https://host:port")
