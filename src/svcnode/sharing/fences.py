"""When keys of the registry were written, by the clock of this machine alone."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.errors import RegistryRestoredError

if TYPE_CHECKING:
    from svcnode.net.etcd_json import Header

MAX_FENCES = 256


class Fence(NamedTuple):
    sent_at_s: float
    received_at_s: float
    revision: int


class Fences:
    """When keys were written, at the earliest, by the clock of this machine.

    A linearizable response has the revision of the cluster at a moment after its request was sent. So a key with a
    higher mod_revision was written after that, whatever delays and suspensions lie in between.
    """

    def __init__(self) -> None:
        self.cluster_id = 0  # of etcd; 0: not known
        self._since_s = float("-inf")
        self._fences: list[Fence] = []  # both times of sending and revisions ascend
        self._highest: Fence | None = None
        self.last_response_at_s: float | None = None

    def expect(self, cluster_id: int, revision: int) -> None:
        """What an earlier process of this replica has read last. It dates nothing."""
        self.cluster_id, self._highest = cluster_id, Fence(float("-inf"), float("-inf"), revision)

    def forget(self, before_s: float) -> None:
        """Responses to requests before this time say nothing about the data that etcd has now."""
        self._since_s = before_s
        self._fences = [each for each in self._fences if each.sent_at_s >= before_s]
        self._highest = self._fences[-1] if self._fences else None

    def add(self, header: Header, *, sent_at_s: float, received_at_s: float) -> None:
        """Raises `RegistryRestoredError`, once, if the data is older than data seen before, or of another cluster."""
        self.last_response_at_s = received_at_s
        if sent_at_s < self._since_s:  # of the data before it was restored
            return
        cluster_id, revision = header.cluster_id, header.revision
        fence = Fence(sent_at_s, received_at_s, revision)
        highest = self._highest
        is_other_cluster = self.cluster_id not in (0, cluster_id)
        if highest and (is_other_cluster or (revision < highest.revision and highest.received_at_s < sent_at_s)):
            self.cluster_id, self._since_s, self._highest, self._fences = cluster_id, sent_at_s, fence, [fence]
            raise RegistryRestoredError(
                f"etcd has other data than before: its revision is {revision} after {highest.revision}"
                f"{', of another cluster' if is_other_cluster else ''}; it was probably restored from a snapshot"
            )
        self.cluster_id = cluster_id
        if highest is None or revision > highest.revision:
            self._highest = fence
        self._insert(fence)

    def _insert(self, fence: Fence) -> None:
        """Without the fences that give no later time for any revision."""
        if any(each.sent_at_s >= fence.sent_at_s and each.revision <= fence.revision for each in self._fences):
            return
        before = [each for each in self._fences if each.sent_at_s < fence.sent_at_s and each.revision < fence.revision]
        after = [each for each in self._fences if each.sent_at_s > fence.sent_at_s and each.revision > fence.revision]
        self._fences = [*before, fence, *after][-MAX_FENCES:]

    def written_after_s(self, mod_revision: int) -> float | None:
        """None if nothing is known: the key was there at the first fence, or was written too long ago."""
        index = bisect_left(self._fences, mod_revision, key=lambda fence: fence.revision)
        return self._fences[index - 1].sent_at_s if index else None
