"""The raw path below a mount point.

Gateways pass a decoded path, in which the id `a/b` looks like two segments. Most gateways also pass the raw path;
it is used if it decodes to the same path.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from svcnode.core.model import DEFAULT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Sequence


_ENCODED_SLASH = re.compile("%2F", re.IGNORECASE)


def path_below(mount: str, path: str, raw_path: bytes | None, prefixes: Sequence[str] = (DEFAULT_PREFIX,)) -> bytes:
    """`path` is the full path. Some gateways leave the mount out of it; both forms are accepted."""
    mount = mount.rstrip("/")
    is_below = path == mount or path.startswith(mount + "/")
    if raw_path is not None and path in _decoded_forms(raw_path.decode("latin-1")):
        segments = raw_path.split(b"/")
        return b"/".join((b"", *segments[1 + mount.count("/") :])) if is_below else raw_path
    path = path.removeprefix(mount) if is_below else path
    raw_end = None if raw_path is None else _end_of(raw_path, path)
    return _encode_path(path, prefixes) if raw_end is None else raw_end


def _end_of(raw_path: bytes, path: str) -> bytes | None:
    """The end of the raw path that decodes to the path; slashes at the ends of the path do not count.

    Litestar removes the mount from the path only, without saying so, and adds a slash at the end.
    """
    end = f"/{path.strip('/')}"
    decoded = unquote(raw_path.decode("latin-1")).rstrip("/")
    if not decoded.endswith(end):
        return None
    mount_segments = decoded.removesuffix(end).count("/")
    return b"/".join((b"", *raw_path.split(b"/")[1 + mount_segments :]))


def _decoded_forms(raw_path: str) -> tuple[str, str]:
    """As most gateways decode a path, and as those that leave an encoded slash in place, such as cheroot."""
    return unquote(raw_path), "%2F".join(map(unquote, _ENCODED_SLASH.split(raw_path)))


def _encode_path(path: str, prefixes: Sequence[str]) -> bytes:
    """Encode a decoded path again. Everything between `/node/services/` and `/health` is one id, slashes included."""
    for prefix in prefixes:
        before, after = f"{prefix}/node/services/", "/health"
        if path.startswith(before) and path.endswith(after) and len(path) > len(before) + len(after):
            service_id = path[len(before) : -len(after)]
            return f"{before}{quote(service_id, safe='')}{after}".encode()
    return quote(path).encode()
