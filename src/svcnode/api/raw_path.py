"""The path below a mount point as it stood on the wire.

Gateways hand applications a path that is decoded already, so that an id such as `a/b` can no longer be told from two
segments. Most of them keep the raw one beside it; where they do and it tells the same story, it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from svcnode.api.spec import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence


def path_below(mount: str, path: str, raw_path: bytes | None, prefixes: Sequence[str] = (DEFAULT_PREFIX,)) -> bytes:
    """`path` is whole, with the mount in front or (as some gateways have it) without."""
    mount = mount.rstrip("/")
    is_below = path == mount or path.startswith(mount + "/")
    if raw_path is not None and unquote(raw_path.decode("latin-1")) == path:
        segments = raw_path.split(b"/")
        return b"/".join((b"", *segments[1 + mount.count("/") :])) if is_below else raw_path
    return _encode_path(path.removeprefix(mount) if is_below else path, prefixes)


def _encode_path(path: str, prefixes: Sequence[str]) -> bytes:
    """A decoded path encoded again; what stands where an id stands is taken for one, slashes and all."""
    for prefix in prefixes:
        before, after = f"{prefix}/node/services/", "/health"
        if path.startswith(before) and path.endswith(after) and len(path) > len(before) + len(after):
            service_id = path[len(before) : -len(after)]
            return f"{before}{quote(service_id, safe='')}{after}".encode()
    return quote(path).encode()
