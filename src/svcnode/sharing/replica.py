"""A replica: joins the registry, follows it, and publishes what it defines and observes.

Five loops share one client. Each repeats what fails, after a random delay, so a request that etcd refuses does not stop
the others:

    follow      follow.py: reads the registry, and keeps the services of the node equal to it
    publish     publish.py: writes what this replica defines and observes
    keep alive  publish.py: renews the lease
    fence       twice a second: asks for the revision, which dates what others write
    turns       turns.py: which replica sends the notifications

Beside them, the last view is written to the disk (cache.py): a replica that starts shows it until the first range.

If etcd is away, the node goes on with the last view: this replica checks what it checked, and the evidence of others
expires.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from svcnode.core.errors import RegistryError, RegistryRestoredError
from svcnode.core.model import MAINTENANCE_CHANGES, PLAN_CHANGES, ChangeKind
from svcnode.net.tasks import log_failure
from svcnode.sharing.etcd import Backoff, EtcdClient
from svcnode.sharing.follow import Follower
from svcnode.sharing.format import ReplicaDocument, node_root, original_owner, replica_of, replica_owner
from svcnode.sharing.lost import Lost
from svcnode.sharing.problems import Problems
from svcnode.sharing.publish import LeaseLoop, PublishLoop
from svcnode.sharing.publisher import Publisher
from svcnode.sharing.shared_services import SharedServices
from svcnode.sharing.turns import Turns
from svcnode.sharing.view import ViewChanges
from svcnode.sharing.work import NodeWork, WorkClient
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from svcnode.core.address import RegistryAddress
    from svcnode.core.model import Change
    from svcnode.node.node_state import NodeState
    from svcnode.sharing import SharingSettings
    from svcnode.sharing.cache import ViewCache
    from svcnode.sharing.etcd import Traffic
    from svcnode.sharing.follow import Member
    from svcnode.sharing.view import RegistryView

TICK_S = 0.5
MAX_BACKOFF_S = 1.0  # as often as a replica writes; a longer delay after a change of the leader would lose evidence
WORK_CHANGES = frozenset({ChangeKind.NODE, *MAINTENANCE_CHANGES, *PLAN_CHANGES})
RESTORE_S = 10.0  # in which all replicas notice that etcd was restored, and write their services again
CACHE_DELAY_S = 1.0  # after a change, so that many changes are one write
CACHE_INTERVAL_S = 5.0
MAX_NAMED = 20  # lost services in a line of the log, and in the reason of the health
LOST_CAVEAT = "lost"

log = logging.getLogger("svcnode.sharing")


class Replica:
    """`on_synced` is called when the services of the registry are known for the first time, not only by the cache."""

    def __init__(
        self,
        node: NodeState,
        settings: SharingSettings,
        *,
        client: EtcdClient | None = None,
        cache: ViewCache | None = None,
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._settings = settings
        self._client = EtcdClient.at(settings.registry, settings.tls) if client is None else client
        self._on_synced: Callable[[], None] | None = on_synced  # until it was called
        self._root = node_root(settings.registry.prefix, node.identity.node_name)
        self._instance = secrets.token_hex(8)
        self._cache = cache
        self._is_cache_due, self._is_cache_urgent = asyncio.Event(), asyncio.Event()
        self._wake = asyncio.Event()  # there is something to publish
        self._was_read = asyncio.Event()  # the registry, once
        self._has_seen_itself = self._was_connected = False
        self._is_work_due = True
        self._foreign_issues: frozenset[str] = frozenset()
        self._lost = Lost()
        self._problems = Problems(node.now_s)
        self.work = NodeWork(node, settings.replica, self._save_soon)
        self.work_client = WorkClient(
            lambda: EtcdClient.at(settings.registry, settings.tls),
            self._root,
            replica_owner(settings.replica),
            lambda: node.wall_time_s(node.now_s()),
            self.work,
        )
        self._follower = Follower(
            node,
            self._client,
            self._root,
            settings.replica,
            on_range=self._compare,
            on_changes=self._apply_changes,
            on_synced=self._follow_on,
        )
        self.services = SharedServices(
            node, self.view, settings.replica, default_observers=settings.observers, on_change=self._wake.set
        )
        identity = ReplicaDocument(self._instance, settings.url, __version__)
        self._publisher = Publisher(self._root, settings.replica, identity, self.services)
        self._publishing = PublishLoop(node, self._client, self._publisher, self._wake, lease_s=settings.lease_s)
        self._keeping_alive = LeaseLoop(node, self._client, self._publishing, lease_s=settings.lease_s)
        self.turns = Turns(
            node,
            self._client,
            self._publishing,
            self._root,
            settings.replica,
            view=lambda: self.view,
            lease_s=settings.lease_s,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        unsubscribe = self._node.subscribe(self._on_node_change)
        self._publish_issues()
        tasks = [
            asyncio.create_task(self._run(), name="sharing"),
            asyncio.create_task(self._follow_time(), name="sharing: evidence that expires"),
            asyncio.create_task(self.turns.follow_time(), name="sharing: who sends notifications"),
            asyncio.create_task(self._keep_cache(), name="sharing: cache"),
        ]
        for task in tasks:
            task.add_done_callback(log_failure)
        try:
            yield
        finally:
            unsubscribe()
            self.work.stop()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await self._save_view()

    # ---- the cache

    async def show_cached(self) -> None:
        """Before the first answer: the list of an earlier process, in which nothing is Up, and what was asked of all
        replicas. Own services come first."""
        cached = None if self._cache is None else await self._cache.load(self._root)
        if cached is None:
            return
        self._follower.begin_with(cached)
        self.services.compare()
        await self.services.update(ViewChanges())  # those of the view are applied with the first range
        self.work.apply(self.view.work())
        self._update_lost()

    async def _keep_cache(self) -> None:
        while True:
            await self._is_cache_due.wait()
            await self._wait_if_not_urgent(CACHE_DELAY_S)
            self._is_cache_due.clear()
            self._is_cache_urgent.clear()
            await self._save_view()
            await self._wait_if_not_urgent(CACHE_INTERVAL_S)

    async def _wait_if_not_urgent(self, delay_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._is_cache_urgent.wait()

    async def _save_view(self) -> None:
        """Not after a restore, as long as it is not known what is lost: the next process would not know it either."""
        view = self._follower.cached()
        if self._cache is not None and view is not None and self.services.losses.is_settled:
            await self._cache.save(self._root, view)

    def set_access(self, settings: SharingSettings) -> None:
        """After a reload: a new login, new files of TLS. The lease and the watch stay."""
        self._settings = settings
        self._client.set_access(settings.registry, settings.tls)

    # ---- for operators; may be called in any thread

    @property
    def name(self) -> str:
        return self._settings.replica

    @property
    def registry(self) -> RegistryAddress:
        return self._settings.registry

    @property
    def view(self) -> RegistryView:
        return self._follower.view

    @property
    def is_connected(self) -> bool:
        """Whether the replica reads and writes the registry."""
        return self._follower.is_synced and not self._problems.text

    @property
    def problem(self) -> str:
        """Why the replica cannot read or write the registry; empty if it can, or has not tried."""
        return self._problems.text

    @property
    def last_response_at_s(self) -> float | None:
        return self._client.fences.last_response_at_s

    @property
    def traffic(self) -> Traffic:
        return self._client.traffic

    def members(self) -> list[Member]:
        """The live replicas as last known, this one included, by name."""
        return sorted(self._follower.members.values())

    def known_members(self) -> list[Member] | None:
        """Those, and the ones that have died or stopped, as last seen; None before the registry was read."""
        follower = self._follower
        return sorted({**follower.absent, **follower.members}.values()) if follower.is_synced else None

    @property
    def lost(self) -> Lost:
        """What the registry has lost, and nobody has registered again or accepted."""
        return self._lost

    # ---- the loops

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                async with self._client:
                    try:
                        while True:
                            await self._run_loops()
                    finally:
                        await self._publishing.leave()
            except RegistryError as exc:  # the files of TLS cannot be read
                self._problems.set("client", str(exc), type(exc))
                await asyncio.sleep(backoff.next_delay_s())

    async def _run_loops(self) -> None:
        """Until etcd has other data than before. Then all loops begin again."""
        self._problems.clear("client")
        loops = {
            "follow": self._follower.step,
            "publish": self._publish,
            "keep alive": self._keeping_alive.step,
            "fence": self._fence,
            "turns": self.turns.step,
        }
        try:
            async with asyncio.TaskGroup() as group:
                for name, step in loops.items():
                    group.create_task(self._repeat(name, step), name=f"sharing: {name}")
        except* RegistryRestoredError:
            pass  # `_start_again` was called

    async def _repeat(self, name: str, step: Callable[[], Awaitable[None]]) -> None:
        backoff = Backoff(max_s=MAX_BACKOFF_S)
        while True:
            try:
                await step()
            except RegistryRestoredError as exc:
                self._start_again(str(exc))  # at once: another loop may apply what it reads before it is cancelled
                raise
            except RegistryError as exc:
                self._problems.set(name, str(exc), type(exc))
            except Exception as exc:  # an error of this program: the node must not stop following the registry
                log.exception("internal error in sharing", extra={"event": "internal_error"})
                self._problems.set(name, f"internal error: {exc!r}")
            else:
                self._problems.clear(name)
                await self._update_connected()
                backoff.reset()
                continue
            await self._update_connected()
            await asyncio.sleep(backoff.next_delay_s())

    async def _publish(self) -> None:
        await self._was_read.wait()  # what an earlier process has left, too: joining deletes it
        await self._publishing.wait_for_changes()
        self._publish_work()
        if self._has_seen_itself and self._instance_in_view() not in (self._instance, None):
            self._publishing.end_lease()
            raise RegistryError(
                f"another process has joined as replica {self.name!r}; set another name with replica in "
                "[sharing], and restart"
            )
        await self._publishing.step()
        await self.work.write_lost(self._client, self._root)

    async def _fence(self) -> None:
        await asyncio.sleep(TICK_S)
        await self._client.fence(self._root)

    async def _follow_time(self) -> None:
        """Whatever etcd does: a request to it may take long."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                await self.services.tick()
                self._update_lost()
            except Exception:  # an error of this program: the node must not stop following the time
                log.exception("internal error in sharing", extra={"event": "internal_error"})

    def _start_again(self, problem: str) -> None:
        """etcd has other data than before. The list stays as it is until the replicas have written theirs again."""
        text = "registry restored: %s; the services stay as they are for %g s"
        log.warning(text, problem, self._frozen_s, extra={"event": "registry_restored"})
        self._follower.reset()
        self.services.set_view(self.view)
        self._has_seen_itself = False
        self._publishing.end_lease()
        self.turns.reset()
        self.work.set_restored()

    @property
    def _frozen_s(self) -> float:
        return max(self._settings.lease_s, RESTORE_S)

    # ---- what was read

    def _compare(self) -> None:
        if self.view.is_restored:
            self.work.set_restored()
        self.services.losses.expect_until(self._node.now_s() + self._frozen_s, self._follower.revision)
        self._publisher.compare(self.view)
        self.services.compare()
        self._wake.set()

    async def _apply_changes(self, changes: ViewChanges) -> None:
        if self.name in changes.unmatched:  # a state that was written is not there: etcd has applied a request late
            self._publisher.compare(self.view)
        self._publisher.check(self.view, changes)
        await self.services.update(changes)
        if self.services.changed_definitions or self.services.changed_states:
            self._wake.set()
        self.turns.update(changes.targets)
        if changes.services or changes.issues:
            self._update_lost()
            self._is_cache_due.set()
        if changes.work:
            self.work.apply(self.view.work())
        if changes.replicas:
            self._has_seen_itself |= self._instance_in_view() == self._instance

    async def _follow_on(self) -> None:
        """After each range."""
        self._was_read.set()
        self.work.apply(self.view.work())
        if self._on_synced is not None:
            on_synced, self._on_synced = self._on_synced, None
            on_synced()
            others, count = self._follower.other_members(), len(self._node)
            extra = {"event": "registry_joined", "replica": self.name, "services": count}
            text = "replica %s joined the registry %s, other replicas: %s, services: %d"
            log.info(text, self.name, self.registry, others, count, extra=extra)
        self._problems.clear("follow")
        await self._update_connected()

    async def _update_connected(self) -> None:
        """Reports that the view does not have were written after the response with its revision was requested."""
        if self.is_connected == self._was_connected:
            return
        self._was_connected = self.is_connected
        if self._was_connected:
            await self.services.set_connected()
        else:
            received_until_s = self._client.fences.written_after_s(self._follower.revision + 1)
            await self.services.set_lost(-math.inf if received_until_s is None else received_until_s)

    def _instance_in_view(self) -> str | None:
        replica = self.view.replicas.get(self.name)
        return None if replica is None else replica.instance

    # ---- issues, drains and maintenance

    def _on_node_change(self, change: Change) -> None:
        self._publish_issues()
        if change.kind in WORK_CHANGES:  # thousands may come at once: the loop looks at them together
            self._is_work_due = True
            self._wake.set()

    def _publish_issues(self) -> None:
        own = (issue for issue in self._node.condition.issues if issue not in self._foreign_issues)
        if self._publisher.set_issues(own):
            self._wake.set()

    def _publish_work(self) -> None:
        if self._is_work_due:
            self._is_work_due = False
            self.work.update_own()
            self._publisher.set_work(self.work.own)

    def _save_soon(self) -> None:
        """A drain holds from now on, also if this process is killed and etcd is gone."""
        self._is_cache_due.set()
        self._is_cache_urgent.set()

    def _apply_issues(self) -> None:
        own = replica_owner(self.name)
        found = ((name, original_owner(owner), reason) for name, owner, reason in self._all_issues())
        texts = {
            f"{name}{f': {reason}' if reason else ''} ({replica_of(owner) or owner})"
            for name, owner, reason in found
            if owner != own
        }
        before, self._foreign_issues = self._foreign_issues, frozenset(texts)
        for text in sorted(texts - before):
            self._node.overrides.set_issue(text)
        for text in before - texts:
            self._node.overrides.clear_issue(text)

    def _all_issues(self) -> list[tuple[str, str, str]]:
        """Those of the registry, and those that it had before it was restored."""
        return [*self.view.issues(), *self.services.losses.issues()]

    # ---- what the registry has lost

    def _update_lost(self) -> None:
        """Whatever has changed: the node says what is lost, as long as it is."""
        self._apply_issues()
        losses = self.services.losses
        if losses.obsolete or losses.puts():
            self._wake.set()
        before, self._lost = self._lost, losses.marked(self.view)
        if self._lost == before:
            return
        self._is_cache_due.set()
        self._node.overrides.set_caveat(LOST_CAVEAT, self._lost.text(MAX_NAMED))
        self._log_lost(self._lost.without(before), before.without(self._lost))

    def _log_lost(self, lost: Lost, found: Lost) -> None:
        if lost:
            extra = {"event": "registry_entries_lost", "services": len(lost.services), "issues": len(lost.issues)}
            log.warning("%s", lost.text(MAX_NAMED), extra=extra)
        if found:
            extra = {"event": "registry_entries_found", "services": len(found.services), "issues": len(found.issues)}
            log.info("no longer lost: %s", found.names(MAX_NAMED), extra=extra)
