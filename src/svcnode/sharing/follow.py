"""The loop that reads: range at a revision, then watch from the next one; a new range each minute, and after a
compaction. What it reads goes to the view, and from there to the services of the node.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.errors import RegistryCompactedError, RegistryRestoredError
from svcnode.core.text import join_first
from svcnode.net.os_errors import ThreadStartError
from svcnode.net.threads import DaemonCall
from svcnode.probes import is_loaded, load_kinds, scheme_of
from svcnode.sharing.cache import CachedView
from svcnode.sharing.format import replica_owner
from svcnode.sharing.view import RegistryView

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Set

    from svcnode.node.node_state import NodeState
    from svcnode.sharing.etcd import EtcdClient
    from svcnode.sharing.format import ReplicaDocument
    from svcnode.sharing.view import ViewChanges

COMPARE_INTERVAL_S = 60.0
WATCH_SILENCE_S = 5.0  # a replica writes every second: a watch that receives nothing for longer is broken
MAX_LISTED = 5  # replicas in a line of the log

log = logging.getLogger("svcnode.sharing")


class Member(NamedTuple):
    """A live replica of the node."""

    name: str
    document: ReplicaDocument
    seen_at_s: float  # when this replica received it first


class Follower:
    """`on_range` is called after the view was read as a whole, `on_changes` after each change of it, that included."""

    def __init__(  # noqa: PLR0913  the callbacks have names
        self,
        node: NodeState,
        client: EtcdClient,
        root: str,
        replica: str,
        *,
        on_range: Callable[[], None],
        on_changes: Callable[[ViewChanges], Awaitable[None]],
        on_synced: Callable[[], Awaitable[None]],
    ) -> None:
        self._node = node
        self._client = client
        self._root = root
        self._replica = replica
        self._on_range, self._on_changes, self._on_synced = on_range, on_changes, on_synced
        self._loaded_schemes: set[str] = set()
        self._importer = DaemonCall("drivers of shared services")
        self.is_synced = False  # the services of the registry are known
        self.members: dict[str, Member] = {}  # replaced as a whole: any thread may read it
        self.absent: dict[str, Member] = {}  # as last seen, and with services in the registry; replaced as a whole
        self.reset()

    def reset(self) -> None:
        """At the start, and if etcd has other data than before."""
        self.view = RegistryView(self._root, self._client.fences.written_after_s)
        self.revision = 0  # up to which the view has all keys

    async def step(self) -> None:
        """One range, and the watch from it on, for a minute."""
        await self._client.check_login(self._root)
        asked_at_s = self._node.now_s()
        result = await self._client.range(self._root)
        await self._check_history(result.header.revision, asked_at_s)
        self.view.is_cached = False
        self.view.replace_all(result.kvs)
        self.revision = result.header.revision
        self._on_range()
        await self._apply_view()
        self.is_synced = True
        await self._on_synced()
        end_s = asyncio.get_running_loop().time() + COMPARE_INTERVAL_S
        with suppress(RegistryCompactedError):
            while asyncio.get_running_loop().time() < end_s:
                await self._watch(end_s)

    def begin_with(self, cached: CachedView) -> None:
        """Until the first range, the view is the last one of an earlier process."""
        self._client.fences.expect(cached.cluster_id, cached.revision)
        self.view.is_cached = True
        self.view.replace_all(cached.kvs)
        self.revision = cached.revision

    def cached(self) -> CachedView | None:
        """What the next process begins with; None if nothing was read from the registry."""
        if self.view.is_cached or not self.revision:
            return None
        return CachedView(self._client.fences.cluster_id, self.revision, self.view.durable())

    async def _check_history(self, revision: int, asked_at_s: float) -> None:
        """Raises `RegistryRestoredError` if etcd does not continue what the view has. It was asked since `asked_at_s`.

        Most restores are noticed by a response with a lower revision (fences.py). But the new history may have passed
        the last revision of this replica before it reads again, or a wiped etcd was restored from a snapshot with a
        higher one. Then etcd did not have the newest key of the view at that revision.
        """
        key = self.view.newest_key()
        if key is None:  # nothing to compare; what is read now is not dated by responses of before
            self._client.fences.forget(asked_at_s)
            return
        try:
            is_same = revision >= self.revision and self.view.has(
                await self._client.get(key, at_revision=self.revision)
            )
        except RegistryCompactedError:  # nobody knows; what is read now is not dated by responses of before
            self._client.fences.forget(self._node.now_s())
            return
        if not is_same:
            self._client.fences.forget(self._node.now_s())
            raise RegistryRestoredError(
                f"etcd has other data than before at revision {self.revision}; it was probably restored from a snapshot"
            )

    async def _check_watched_history(self) -> None:
        """The watch may be one of other data than the range. A response from now on dates what it brings."""
        asked_at_s = self._node.now_s()
        if self.view.newest_key() is None:
            await self._client.get(self._root)
        await self._check_history(self.revision, asked_at_s)

    async def _watch(self, end_s: float) -> None:
        """Watch until then, or until nothing comes any more."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with (
                asyncio.timeout_at(min(end_s, loop.time() + WATCH_SILENCE_S)) as deadline,
                self._client.watch(self._root, self.revision + 1) as batches,
            ):
                await self._check_watched_history()
                async for batch in batches:
                    for event in batch.events:
                        self.view.apply(event)
                    self.revision = max(self.revision, batch.revision)
                    await self._apply_view()
                    deadline.reschedule(min(end_s, loop.time() + WATCH_SILENCE_S))

    async def _apply_view(self) -> None:
        await self._load_drivers()
        changes = self.view.take_changes()
        await self._on_changes(changes)
        if changes.replicas:
            self._update_members()
        if self.absent and changes.services:
            self._update_absent(self.absent)

    async def _load_drivers(self) -> None:
        """In a thread: an import may take a second."""
        schemes = {scheme_of(probe) for probe in self.view.changed_probes()} - {""}
        missing = {scheme for scheme in schemes - self._loaded_schemes if not is_loaded(scheme)}
        self._loaded_schemes |= schemes
        if missing:
            with suppress(ThreadStartError):  # then they are imported when the probes are made
                await self._importer.call(partial(load_kinds, missing))

    def other_members(self) -> str:
        return join_first(sorted(self.members.keys() - {self._replica}), MAX_LISTED) or "none"

    def _update_members(self) -> None:
        """The first range is not logged here: the line about the join names the others."""
        before, now_s = self.members, self._node.now_s()
        self.members = {
            name: known if (known := before.get(name)) and known.document == document else Member(name, document, now_s)
            for name, document in self.view.replicas.items()
        }
        self._update_absent({**self.absent, **before})
        if self.is_synced:
            others = {*self.members, *before} - {self._replica}
            self._log("replica_joined", "joined", {name for name in others if self._is_new(name, before)})
            self._log("replica_left", "left", others - self.members.keys())

    def _update_absent(self, known: dict[str, Member]) -> None:
        """Replicas that are gone for good have no services: `svcnode registry forget` removes them."""
        self.absent = {
            name: member
            for name, member in known.items()
            if name not in self.members and self.view.definitions(replica_owner(name))
        }

    def _is_new(self, name: str, before: dict[str, Member]) -> bool:
        return name in self.members and self.members[name] is not before.get(name)

    def _log(self, event: str, verb: str, names: Set[str]) -> None:
        """One line, however many they are."""
        if names:
            text = join_first(sorted(names), MAX_LISTED)
            extra = {"event": event, "replica": text, "replicas": len(self.members)}
            log.info("replica %s %s, replicas now: %d", text, verb, len(self.members), extra=extra)
