"""The loops that write: definitions, issues and changed states at once, the ages of all evidence once per second; and
the lease, which is renewed only right after etcd has acknowledged a write.

The lease says to the others that this replica publishes what it observes, not that its process runs: a replica that may
not write, or whose writes fail for another reason, loses its lease as if it were killed, and the others check its
services.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.errors import RegistryError, RegistryLeaseLostError
from svcnode.net.etcd_json import Compare, Put
from svcnode.sharing.format import Written, encode_document, evidence_document

if TYPE_CHECKING:
    from svcnode.net.etcd_json import Lease
    from svcnode.node.node_state import NodeState
    from svcnode.sharing.etcd import EtcdClient
    from svcnode.sharing.publisher import Publisher, Write

EVIDENCE_INTERVAL_S = 1.0
MAX_OPERATIONS = 100  # per transaction; the default limit of etcd is 128
LEAVE_TIMEOUT_S = 2.0
MAX_SENT_RECORDS = 8  # without a response
EMPTY_RECORD = encode_document(evidence_document({}, Written(0, 0.0)))


class _Record(NamedTuple):
    """A record of evidence that etcd has acknowledged."""

    revision: int
    acknowledged_at_s: float


class PublishLoop:
    """`wake` is set when there is something to publish. Sets `acknowledged` when etcd has acknowledged a write."""

    def __init__(
        self, node: NodeState, client: EtcdClient, publisher: Publisher, wake: asyncio.Event, *, lease_s: float
    ) -> None:
        self._node = node
        self._client = client
        self._publisher = publisher
        self._wake = wake
        self._lease_s = lease_s
        self._evidence_due_at_s = -math.inf
        self._record = _Record(0, math.inf)  # the last one
        self._sent_records: deque[bytes] = deque(maxlen=MAX_SENT_RECORDS)  # since then, not acknowledged
        self.acknowledged = asyncio.Event()
        self.lease: Lease | None = None
        self.lease_ends_at_s = -math.inf  # at the earliest, by the clock of this machine

    async def wait_for_changes(self) -> None:
        """Or until evidence is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._evidence_due_at_s - self._node.now_s()):
                await self._wake.wait()
        self._wake.clear()

    async def step(self) -> None:
        lease = self.lease or await self._join()
        now_s = self._node.now_s()
        is_evidence_due = now_s >= self._evidence_due_at_s
        writes = self._publisher.take_writes(now_s, lease.id, self._written(now_s), with_evidence=is_evidence_due)
        await self._write(writes)
        if is_evidence_due:
            self._evidence_due_at_s = now_s + EVIDENCE_INTERVAL_S

    def end_lease(self) -> None:
        """The next step joins again."""
        self.lease, self.lease_ends_at_s = None, -math.inf
        self._publisher.leave()
        self._wake.set()

    async def leave(self) -> None:
        """So that the others need not wait for the end of the lease."""
        if self.lease is not None:
            with suppress(RegistryError, TimeoutError):
                async with asyncio.timeout(LEAVE_TIMEOUT_S):
                    await self._client.revoke(self.lease.id)

    async def _join(self) -> Lease:
        """States that an earlier process of this replica has left are not of this one."""
        await self._client.delete(self._publisher.states_root, is_prefix=True)
        requested_at_s = self._node.now_s()
        lease = await self._client.grant_lease(math.ceil(self._lease_s))
        header = await self._client.put(self._publisher.record_key, EMPTY_RECORD, lease_id=lease.id)
        self._set_record(header.revision)
        self.lease, self.lease_ends_at_s = lease, requested_at_s + lease.ttl_s
        self._publisher.leave()
        return lease

    async def _write(self, writes: list[Write]) -> None:
        try:
            while writes:
                await self._write_batch(writes[:MAX_OPERATIONS])
                writes = writes[MAX_OPERATIONS:]
        except RegistryLeaseLostError:
            self.end_lease()
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
        self.acknowledged.set()
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


class LeaseLoop:
    """Renews the lease at about a third of its ttl, each time right after an acknowledged write.

    So it ends at most its ttl after the last write that etcd has acknowledged.
    """

    def __init__(self, node: NodeState, client: EtcdClient, publishing: PublishLoop, *, lease_s: float) -> None:
        self._node = node
        self._client = client
        self._publishing = publishing
        self._lease_s = lease_s
        self._due_at_s = -math.inf

    async def step(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._due_at_s - loop.time())
        await self._wait_for_acknowledgement()
        await self._renew()
        # An evidence interval earlier than at a third of the ttl: until then, there is another write.
        jitter = random.uniform(0.8, 1.0)  # noqa: S311  the replicas must not write at the same time
        self._due_at_s = loop.time() + max(0.0, self._lease_s / 3 * jitter - EVIDENCE_INTERVAL_S)

    async def _renew(self) -> None:
        lease, requested_at_s = self._publishing.lease, self._node.now_s()
        if lease is None:
            return
        ttl_s = await self._client.keep_alive(lease.id)
        if self._publishing.lease is not lease:
            return
        if ttl_s > 0:
            self._publishing.lease_ends_at_s = requested_at_s + ttl_s
        else:
            self._publishing.end_lease()

    async def _wait_for_acknowledgement(self) -> None:
        """Raises if there is none for the time of a lease, although etcd responds: otherwise nobody might notice."""
        acknowledged = self._publishing.acknowledged
        acknowledged.clear()
        while True:
            began_at_s = self._node.now_s()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._lease_s):
                    await acknowledged.wait()
                return
            last_response_at_s = self._client.fences.last_response_at_s
            if self._publishing.lease is not None and (last_response_at_s or -math.inf) > began_at_s:
                raise RegistryLeaseLostError(
                    f"etcd responds, but has acknowledged no evidence for {self._lease_s:g} s; the lease of this "
                    "replica is not renewed, so that others check its services"
                )
