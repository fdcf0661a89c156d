"""The last view of the registry on disk, so that a replica that starts shows the list at once.

It has the keys of services and issues, and of drains and maintenance of all replicas, as they were read, and the
cluster and the revision that they were read from. So the next process also notices that etcd was restored or wiped
meanwhile. Nothing in it is evidence.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from svcnode.core.text import error_text
from svcnode.net.etcd_json import KeyValue
from svcnode.net.threads import DaemonCall

if TYPE_CHECKING:
    from pathlib import Path

FILE_VERSION = 1
MAX_BYTES = 256 * 1024**2
TIMEOUT_S = 5.0  # the mount of its folder may hang

log = logging.getLogger("svcnode.sharing")


class CachedView(NamedTuple):
    cluster_id: int
    revision: int  # at which the registry had exactly these keys
    kvs: list[KeyValue]


class ViewCache(Protocol):
    """Neither call raises an error, or takes long."""

    async def load(self, root: str) -> CachedView | None: ...

    async def save(self, root: str, view: CachedView) -> None: ...


class FileCache:
    """One file, which is replaced as a whole. What cannot be read or written is logged, and does not stop the node."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._call = DaemonCall("cache of the registry")
        self._has_failed = False

    async def load(self, root: str) -> CachedView | None:
        """None if there is none that can be used."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._call.call(partial(self._read, root))
        except Exception as exc:  # noqa: BLE001  whatever is in the file
            self._warn("the cache of the registry cannot be used: %s: %s", exc)
            return None

    async def save(self, root: str, view: CachedView) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._call.call_in_turn(partial(self._replace, root, view))
        except Exception as exc:  # noqa: BLE001  a full disk, or no thread
            if not self._has_failed:
                self._warn("the registry cannot be cached: %s: %s", exc)
            self._has_failed = True
        else:
            self._has_failed = False

    def _warn(self, text: str, exc: Exception) -> None:
        cause = "no response" if isinstance(exc, TimeoutError) else error_text(exc)
        log.warning(text, self._path, cause, extra={"event": "registry_cache_failed"})

    def _read(self, root: str) -> CachedView | None:
        try:
            with os.fdopen(os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                return parse_cache(file.read(MAX_BYTES), root)
        except FileNotFoundError:
            return None

    def _replace(self, root: str, view: CachedView) -> None:
        content = encode_cache(root, view)
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new_path = self._path.with_name(f"{self._path.name}.new")
        with suppress(FileNotFoundError):
            new_path.unlink()
        with os.fdopen(os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new_path.replace(self._path)


def encode_cache(root: str, view: CachedView) -> bytes:
    keys = [[kv.key, kv.value.decode(errors="surrogateescape"), *kv[2:]] for kv in view.kvs]
    fields = {"version": FILE_VERSION, "root": root, "cluster_id": view.cluster_id, "revision": view.revision}
    return json.dumps({**fields, "keys": keys}, separators=(",", ":")).encode()


def parse_cache(content: bytes, root: str) -> CachedView:
    """Raises ValueError, or another error if it is no such file."""
    fields = json.loads(content)
    if fields["version"] != FILE_VERSION:
        raise ValueError(f"it has the format {fields['version']}, and this version reads {FILE_VERSION}")
    if fields["root"] != root:
        raise ValueError(f"it is of the keys below {fields['root']}")
    kvs = [
        KeyValue(key, value.encode(errors="surrogateescape"), int(created), int(modified), int(lease))
        for key, value, created, modified, lease in fields["keys"]
    ]
    return CachedView(int(fields["cluster_id"]), int(fields["revision"]), kvs)
