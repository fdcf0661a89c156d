"""The raw path below a mount point.

Gateways pass a decoded path, in which the id `a/b` looks like two segments. Most gateways also pass the raw path;
it is used if it decodes to the same path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from svcnode.api.spec import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence


def path_below(mount: str, path: str, raw_path: bytes | None, prefixes: Sequence[str] = (DEFAULT_PREFIX,)) -> bytes:
    """`path` is the full path. Some gateways leave the mount out of it; both forms are accepted."""
    mount = mount.rstrip("/")
    is_below = path == mount or path.startswith(mount + "/")
    if raw_path is not None and unquote(raw_path.decode("latin-1")) == path:
        segments = raw_path.split(b"/")
        return b"/".join((b"", *segments[1 + mount.count("/") :])) if is_below else raw_path
    return _encode_path(path.removeprefix(mount) if is_below else path, prefixes)


def _encode_path(path: str, prefixes: Sequence[str]) -> bytes:
    """Encode a decoded path again. Everything between `/node/services/` and `/health` is one id, slashes included."""
    for prefix in prefixes:
        before, after = f"{prefix}/node/services/", "/health"
        if path.startswith(before) and path.endswith(after) and len(path) > len(before) + len(after):
            service_id = path[len(before) : -len(after)]
            return f"{before}{quote(service_id, safe='')}{after}".encode()
    return quote(path).encode()
