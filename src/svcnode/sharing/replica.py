"""A replica: joins the registry, follows it, and publishes what it defines and observes.

Four loops share one client. Each repeats what fails, after a random delay, so a request that etcd refuses does not stop
the others:

    follow      range at a revision, then watch from the next one; a new range each minute, and after a compaction
    publish     definitions, issues and changed states at once; the ages of all evidence once per second
    keep alive  the lease, at about a third of its ttl, and only right after etcd has acknowledged a write
    tick        twice a second: a fence, which dates what others write, and evidence that the node needs

If etcd is away, the node goes on with the last view: this replica checks what it checked, and the evidence of others
expires.

The lease says to the others that this replica publishes what it observes, not that its process runs: a replica that may
not write, or whose writes fail for another reason, loses its lease as if it were killed, and the others check its
services.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import secrets
from collections import deque
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.errors import (
    RegistryCompactedError,
    RegistryError,
    RegistryLeaseLostError,
    RegistryRestoredError,
)
from svcnode.core.text import join_first
from svcnode.core.units import format_duration
from svcnode.net.os_errors import ThreadStartError
from svcnode.net.tasks import log_failure
from svcnode.net.threads import DaemonCall
from svcnode.probes import is_loaded, load_kinds, scheme_of
from svcnode.sharing.etcd import Backoff, EtcdClient
from svcnode.sharing.etcd_json import Compare, Put
from svcnode.sharing.format import (
    ReplicaDocument,
    Written,
    encode_document,
    evidence_document,
    node_root,
    replica_of,
    replica_owner,
)
from svcnode.sharing.publisher import Publisher
from svcnode.sharing.services import SharedServices
from svcnode.sharing.view import RegistryView
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Set

    from svcnode.core.address import RegistryAddress
    from svcnode.node import Node
    from svcnode.sharing import SharingSettings
    from svcnode.sharing.etcd import Traffic
    from svcnode.sharing.etcd_json import Lease
    from svcnode.sharing.publisher import Write

EVIDENCE_INTERVAL_S = 1.0
TICK_S = 0.5
COMPARE_INTERVAL_S = 60.0
WATCH_SILENCE_S = 5.0  # a replica writes every second: a watch that receives nothing for longer is broken
MAX_OPERATIONS = 100  # per transaction; the default limit of etcd is 128
MAX_BACKOFF_S = 1.0  # as often as a replica writes; a longer delay after a change of the leader would lose evidence
LEAVE_TIMEOUT_S = 2.0
MAX_SENT_RECORDS = 8  # without a response
EMPTY_RECORD = encode_document(evidence_document({}, Written(0, 0.0)))
RESTORE_S = 10.0  # in which all replicas notice that etcd was restored, and write their services again
MAX_LISTED = 5  # replicas in a line of the log

log = logging.getLogger("svcnode.sharing")


class Member(NamedTuple):
    """A live replica of the node."""

    name: str
    document: ReplicaDocument
    seen_at_s: float  # when this replica received it first


class _Record(NamedTuple):
    """A record of evidence that etcd has acknowledged."""

    revision: int
    acknowledged_at_s: float


class Replica:
    """`on_synced` is called when the services of the registry are known for the first time."""

    def __init__(
        self,
        node: Node,
        settings: SharingSettings,
        *,
        client: EtcdClient | None = None,
        on_synced: Callable[[], None] = lambda: None,
    ) -> None:
        self._node = node
        self._settings = settings
        self._client = EtcdClient.at(settings.registry, settings.tls) if client is None else client
        self._on_synced = on_synced
        self._root = node_root(settings.registry.prefix, node.identity.node_name)
        self._instance = secrets.token_hex(8)
        self._wake, self._acknowledged = asyncio.Event(), asyncio.Event()
        self._evidence_due_at_s = self._keep_alive_due_at_s = -math.inf
        self._lease: Lease | None = None
        self._record = _Record(0, math.inf)  # the last one
        self._sent_records: deque[bytes] = deque(maxlen=MAX_SENT_RECORDS)  # since then, not acknowledged
        self._is_synced = self._has_seen_itself = self._was_connected = False
        self._revision = 0  # up to which the view has all keys
        self._problems: dict[str, str] = {}  # by loop
        self._logged_problems: set[type[Exception]] = set()
        self._problem_began_at_s = 0.0
        self._foreign_issues: frozenset[str] = frozenset()
        self._members: dict[str, Member] = {}  # replaced as a whole
        self._loaded_schemes: set[str] = set()
        self._importer = DaemonCall("drivers of shared services")
        self.view = RegistryView(self._root, self._client.fences.written_after_s)
        self.services = SharedServices(
            node, self.view, settings.replica, default_observers=settings.observers, on_change=self._wake.set
        )
        identity = ReplicaDocument(self._instance, settings.url, __version__)
        self._publisher = Publisher(self._root, settings.replica, identity, self.services)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        unsubscribe = self._node.subscribe(lambda _: self._publish_issues())
        self._publish_issues()
        task = asyncio.create_task(self._run(), name="sharing")
        task.add_done_callback(log_failure)
        try:
            yield
        finally:
            unsubscribe()
            task.cancel()
            await asyncio.wait([task])

    # ---- for operators; may be called in any thread

    @property
    def name(self) -> str:
        return self._settings.replica

    @property
    def registry(self) -> RegistryAddress:
        return self._settings.registry

    @property
    def is_connected(self) -> bool:
        """Whether the replica reads and writes the registry."""
        return self._is_synced and not self._problems

    @property
    def problem(self) -> str:
        """Why the replica cannot read or write the registry; empty if it can, or has not tried."""
        return next(iter(list(self._problems.values())), "")

    @property
    def last_response_at_s(self) -> float | None:
        return self._client.fences.last_response_at_s

    @property
    def traffic(self) -> Traffic:
        return self._client.traffic

    def members(self) -> list[Member]:
        """The live replicas as last known, this one included, by name."""
        return sorted(self._members.values())

    # ---- running

    async def _run(self) -> None:
        backoff = Backoff()
        while True:
            try:
                async with self._client:
                    try:
                        while True:
                            await self._run_loops()
                    finally:
                        await self._leave()
            except RegistryError as exc:  # the files of TLS cannot be read
                self._set_problem("client", str(exc), type(exc))
                await asyncio.sleep(backoff.next_delay_s())

    async def _run_loops(self) -> None:
        """Until etcd has other data than before. Then all loops begin again."""
        self._set_problem("client", "")
        loops = {
            "follow": self._follow,
            "publish": self._publish,
            "keep alive": self._keep_alive,
            "tick": self._tick,
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
                self._set_problem(name, str(exc), type(exc))
            except Exception as exc:  # an error of this program: the node must not stop following the registry
                log.exception("internal error in sharing", extra={"event": "internal_error"})
                self._set_problem(name, f"internal error: {exc!r}")
            else:
                self._set_problem(name, "")
                await self._update_connected()
                backoff.reset()
                continue
            await self._update_connected()
            await asyncio.sleep(backoff.next_delay_s())

    async def _leave(self) -> None:
        """So that the others need not wait for the end of the lease."""
        if self._lease is not None:
            with suppress(RegistryError, TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._client.revoke(self._lease.id)

    # ---- follow

    async def _follow(self) -> None:
        """One range, and the watch from it on, for a minute."""
        result = await self._client.range(self._root)
        self.view.replace_all(result.kvs)
        self._publisher.compare(self.view)
        self.services.compare()
        self._wake.set()
        await self._apply_view()
        self._set_synced()
        self._set_problem("follow", "")
        self._revision = result.header.revision
        await self._update_connected()
        end_s = asyncio.get_running_loop().time() + COMPARE_INTERVAL_S
        with suppress(RegistryCompactedError):
            while asyncio.get_running_loop().time() < end_s:
                await self._watch(end_s)

    async def _watch(self, end_s: float) -> None:
        """Watch until then, or until nothing comes any more."""
        loop = asyncio.get_running_loop()
        with suppress(TimeoutError):
            async with (
                asyncio.timeout_at(min(end_s, loop.time() + WATCH_SILENCE_S)) as deadline,
                self._client.watch(self._root, self._revision + 1) as batches,
            ):
                async for batch in batches:
                    for event in batch.events:
                        self.view.apply(event)
                    self._revision = max(self._revision, batch.revision)
                    await self._apply_view()
                    deadline.reschedule(min(end_s, loop.time() + WATCH_SILENCE_S))

    async def _update_connected(self) -> None:
        """Reports that the view does not have were written after the response with its revision was requested."""
        if self.is_connected == self._was_connected:
            return
        self._was_connected = self.is_connected
        if self._was_connected:
            await self.services.set_connected()
        else:
            received_until_s = self._client.fences.written_after_s(self._revision + 1)
            await self.services.set_lost(-math.inf if received_until_s is None else received_until_s)

    async def _apply_view(self) -> None:
        await self._load_drivers()
        changes = self.view.take_changes()
        self._publisher.check(self.view, changes)
        await self.services.update(changes)
        if self.services.changed_definitions or self.services.changed_states:
            self._wake.set()
        if changes.issues:
            self._apply_issues()
        if changes.replicas:
            self._has_seen_itself |= self._instance_in_view() == self._instance
            self._update_members()

    def _update_members(self) -> None:
        """The first range is not logged here: the line about the join names the others."""
        before, now_s = self._members, self._node.now_s()
        self._members = {
            name: known if (known := before.get(name)) and known.document == document else Member(name, document, now_s)
            for name, document in self.view.replicas.items()
        }
        if self._is_synced:
            changed = {name for name, member in self._members.items() if member is not before.get(name)} - {self.name}
            self._log_members("replica_joined", "joined", changed)
            self._log_members("replica_left", "left", before.keys() - self._members.keys() - {self.name})

    def _log_members(self, event: str, verb: str, names: Set[str]) -> None:
        """One line, however many they are."""
        if names:
            text = join_first(sorted(names), MAX_LISTED)
            extra = {"event": event, "replica": text, "replicas": len(self._members)}
            log.info("replica %s %s, replicas now: %d", text, verb, len(self._members), extra=extra)

    async def _load_drivers(self) -> None:
        """In a thread: an import may take a second."""
        schemes = {scheme_of(probe) for probe in self.view.changed_probes()} - {""}
        missing = {scheme for scheme in schemes - self._loaded_schemes if not is_loaded(scheme)}
        self._loaded_schemes |= schemes
        if missing:
            with suppress(ThreadStartError):  # then they are imported when the probes are made
                await self._importer.call(partial(load_kinds, missing))

    def _instance_in_view(self) -> str | None:
        replica = self.view.replicas.get(self.name)
        return None if replica is None else replica.instance

    def _set_synced(self) -> None:
        if not self._is_synced:
            self._is_synced = True
            self._on_synced()
            others = join_first(sorted(self._members.keys() - {self.name}), MAX_LISTED) or "none"
            extra = {"event": "registry_joined", "replica": self.name, "services": len(self._node)}
            text = "replica %s joined the registry %s, other replicas: %s, services: %d"
            log.info(text, self.name, self.registry, others, len(self._node), extra=extra)

    def _start_again(self, problem: str) -> None:
        """etcd has other data than before. The list stays as it is until the replicas have written theirs again."""
        frozen_s = max(self._settings.lease_s, RESTORE_S)
        text = "registry restored: %s; the services stay as they are for %g s"
        log.warning(text, problem, frozen_s, extra={"event": "registry_restored"})
        self.view = RegistryView(self._root, self._client.fences.written_after_s)
        self.services.set_view(self.view, frozen_until_s=self._node.now_s() + frozen_s)
        self._has_seen_itself, self._revision = False, 0
        self._end_lease()

    # ---- publish

    async def _publish(self) -> None:
        await self._wait_for_changes()
        if self._has_seen_itself and self._instance_in_view() not in (self._instance, None):
            self._end_lease()
            raise RegistryError(
                f"another process has joined as replica {self.name!r}; set another name with replica in "
                "[sharing], and restart"
            )
        lease = self._lease or await self._join()
        now_s = self._node.now_s()
        is_evidence_due = now_s >= self._evidence_due_at_s
        writes = self._publisher.take_writes(now_s, lease.id, self._written(now_s), with_evidence=is_evidence_due)
        await self._write(writes)
        if is_evidence_due:
            self._evidence_due_at_s = now_s + EVIDENCE_INTERVAL_S

    async def _join(self) -> Lease:
        """States that an earlier process of this replica has left are not of this one."""
        await self._client.delete(self._publisher.states_root, is_prefix=True)
        lease = await self._client.grant_lease(math.ceil(self._settings.lease_s))
        header = await self._client.put(self._publisher.record_key, EMPTY_RECORD, lease_id=lease.id)
        self._set_record(header.revision)
        self._lease = lease
        self._keep_alive_due_at_s = self._next_keep_alive_s()
        self._publisher.leave()
        return lease

    async def _wait_for_changes(self) -> None:
        """Or until evidence is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._evidence_due_at_s - self._node.now_s()):
                await self._wake.wait()
        self._wake.clear()

    async def _write(self, writes: list[Write]) -> None:
        try:
            while writes:
                await self._write_batch(writes[:MAX_OPERATIONS])
                writes = writes[MAX_OPERATIONS:]
        except RegistryLeaseLostError:
            self._end_lease()
            raise
        finally:
            self._publisher.put_back(writes)
            if writes:
                self._wake.set()

    async def _write_batch(self, writes: list[Write]) -> None:
        """Only if etcd still has the last record of this replica, by whose revision the documents are dated.

        If etcd was restored from a snapshot, that revision has another meaning, and old evidence could seem new.
        """
        operations = [write.operation for write in writes]
        records = [
            each.value for each in operations if isinstance(each, Put) and each.key == self._publisher.record_key
        ]
        while True:
            self._sent_records.extend(records)
            result = await self._client.txn(operations, [Compare(self._publisher.record_key, self._record.revision)])
            if result.succeeded:
                break
            await self._find_record()
        self._acknowledged.set()
        for write in writes:
            self._publisher.commit(write)
        if records:
            self._set_record(result.header.revision)

    async def _find_record(self) -> None:
        """If a later record was written and only its response was lost, that one is the last."""
        found = await self._client.get(self._publisher.record_key)
        if found is None or found.value not in self._sent_records:
            raise RegistryLeaseLostError("etcd no longer has what this replica has written last")
        self._set_record(found.mod_revision)

    def _set_record(self, revision: int) -> None:
        self._record = _Record(revision, self._node.now_s())
        self._sent_records.clear()

    def _written(self, now_s: float) -> Written:
        """By the last record, and the time since it was acknowledged."""
        elapsed_s = max(0.0, now_s - self._record.acknowledged_at_s)
        return Written(self._record.revision, math.floor(elapsed_s * 1000) / 1000)  # evidence does not become younger

    def _end_lease(self) -> None:
        self._lease = None
        self._publisher.leave()
        self._wake.set()

    # ---- keep alive, tick

    async def _keep_alive(self) -> None:
        """The lease ends at most its ttl after the last write that etcd has acknowledged."""
        await asyncio.sleep(self._keep_alive_due_at_s - asyncio.get_running_loop().time())
        await self._wait_for_acknowledgement()
        lease = self._lease
        if lease is not None and await self._client.keep_alive(lease.id) <= 0 and self._lease is lease:
            self._end_lease()
        self._keep_alive_due_at_s = self._next_keep_alive_s()

    async def _wait_for_acknowledgement(self) -> None:
        """Raises if there is none for the time of a lease, although etcd responds: otherwise nobody might notice."""
        self._acknowledged.clear()
        while True:
            began_at_s = self._node.now_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._settings.lease_s):
                    await self._acknowledged.wait()
                return
            if self._lease is not None and (self.last_response_at_s or -math.inf) > began_at_s:
                raise RegistryLeaseLostError(
                    f"etcd responds, but has acknowledged no evidence for {self._settings.lease_s:g} s; the lease of "
                    "this replica is not renewed, so that others check its services"
                )

    def _next_keep_alive_s(self) -> float:
        """An evidence interval earlier than at a third of the ttl: until then, there is another write."""
        jitter = random.uniform(0.8, 1.0)  # noqa: S311  the replicas must not write at the same time
        delay_s = max(0.0, self._settings.lease_s / 3 * jitter - EVIDENCE_INTERVAL_S)
        return asyncio.get_running_loop().time() + delay_s

    async def _tick(self) -> None:
        await asyncio.sleep(TICK_S)
        await self.services.tick()
        await self._client.fence(self._root)

    # ---- issues and problems

    def _publish_issues(self) -> None:
        own = (issue for issue in self._node.condition.issues if issue not in self._foreign_issues)
        if self._publisher.set_issues(own):
            self._wake.set()

    def _apply_issues(self) -> None:
        own = replica_owner(self.name)
        texts = {
            f"{issue.name}{f': {issue.reason}' if issue.reason else ''} ({replica_of(issue.owner) or issue.owner})"
            for issue in self.view.issues()
            if issue.owner != own
        }
        before, self._foreign_issues = self._foreign_issues, frozenset(texts)
        for text in sorted(texts - before):
            self._node.set_issue(text)
        for text in before - texts:
            self._node.clear_issue(text)

    def _set_problem(self, name: str, problem: str, kind: type[Exception] = Exception) -> None:
        """Logged once for each kind of problem, and when the last loop has none any more."""
        if problem:
            if not self._problems:
                self._problem_began_at_s = self._node.now_s()
            self._problems[name] = problem
            if kind not in self._logged_problems:
                self._logged_problems.add(kind)
                text = "registry problem: %s; the checks of this replica go on"
                log.warning(text, problem, extra={"event": "registry_problem", "problem": problem})
        elif self._problems.pop(name, None) is not None and not self._problems:
            self._logged_problems.clear()
            outage_s = round(self._node.now_s() - self._problem_began_at_s, 3)
            extra = {"event": "registry_recovered", "outage_s": outage_s}
            log.info("registry: connected again after %s", format_duration(outage_s), extra=extra)
