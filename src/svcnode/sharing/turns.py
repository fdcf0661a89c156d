"""Who sends the notifications to a target: one live replica, and when it is lost, another one continues.

The key `senders/{target}` names the replica that sends. It is under the lease of this replica: when the lease ends,
etcd deletes the key, and the first replica that creates it again has the turn. The lease may end while a replica is
suspended or cut off, so it sends only until the lease ends by its own clock.

The key `told/{target}` has what the target was told. All replicas follow it, so the next one continues where the last
one stopped. It is written by the replica that has told something, if it is still as this replica knows it; otherwise
the notifier first adds what others have told, and writes it again.

While nobody knows who sends, because etcd is away or refuses all writes, silence would be worse than a message that
comes twice. Then the last sender goes on, and after a minute every other replica sends, too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from svcnode.core.errors import RegistryError, RegistryRestoredError, RegistryUnreachableError
from svcnode.net.etcd_json import Compare, Delete, Put
from svcnode.sharing.format import KeyKind, SenderDocument, ToldDocument, encode_document, encode_key

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.node.node_state import NodeState
    from svcnode.sharing.etcd import EtcdClient
    from svcnode.sharing.publish import PublishLoop
    from svcnode.sharing.view import RegistryView, TargetSender

TICK_S = 0.5
# How long it is not known who sends until a replica sends by itself: the one that sent last, and the others. It is
# counted only while the process runs: one that was suspended first has to find out whether another one sends.
LAST_SENDER_WAIT_S, OTHERS_WAIT_S = 5.0, 60.0
MAX_TICK_S = 5.0  # a longer one means that the process was suspended
MAX_SENT = 8  # documents that may still come back from etcd

log = logging.getLogger("svcnode.sharing")


class TurnListener(Protocol):
    def on_turn(self) -> None:
        """Another replica may send now, or this one."""

    def on_told(self, told: list[dict[str, Any]]) -> None:
        """Another replica has written what the target was told."""

    def on_saved(self) -> None:
        """All replicas know what this one has told."""

    def on_restored(self) -> None:
        """etcd may have forgotten what was told."""


class Turn:
    """The turn to send to one target (svcnode.notify.turns.Turn)."""

    def __init__(self, name: str, turns: Turns, listener: TurnListener) -> None:
        self.name = name
        self._turns = turns
        self.listener = listener
        self.is_wanted = True
        self.waits_until_s = -math.inf  # after it has passed its turn on
        self.unsaved: list[dict[str, Any]] | None = None  # what the target was told, if etcd does not have it yet
        self.sent: deque[list[dict[str, Any]]] = deque(maxlen=MAX_SENT)
        self.followed_revision = 0  # of what the target was told
        self.last_sender: str | None = None  # as last known
        self.unknown_s = 0.0  # for how long it has not been known who sends
        self.was_shown: tuple[bool, str | None] = (False, None)
        self.changed = asyncio.Event()

    @property
    def may_send(self) -> bool:
        return self._turns.has(self) or self._turns.is_alone(self)

    @property
    def sender(self) -> str | None:
        """The replica that sends; None if it is not known."""
        return self._turns.replica if self.may_send else self._turns.known_sender(self)

    def save(self, told: list[dict[str, Any]]) -> None:
        self.unsaved = told
        self._turns.wake()

    def pass_on(self, until_s: float) -> None:
        """Let another replica try, if there is one, and take the turn again after this time if none has."""
        if self._turns.has_others:
            self.waits_until_s = until_s
            self._turns.wake()

    def set_wanted(self, is_wanted: bool) -> None:
        if is_wanted is not self.is_wanted:
            self.is_wanted = is_wanted
            self._turns.wake()

    async def leave(self) -> None:
        """When what was told is saved, another replica may continue. Without etcd, its lease has to end first."""
        while self._turns.has_contact and self.unsaved is not None:
            await self.wait_for_change()
        self.is_wanted = False
        self._turns.wake()
        while self._turns.has_contact and self._turns.has(self):
            await self.wait_for_change()

    def drop(self) -> None:
        self._turns.drop(self)

    async def wait_for_change(self) -> None:
        self.changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK_S):
                await self.changed.wait()


class Turns:
    """The turns of this replica, one for each target. Used on the event loop of the agent."""

    def __init__(  # noqa: PLR0913  the view has a name
        self,
        node: NodeState,
        client: EtcdClient,
        publishing: PublishLoop,
        root: str,
        replica: str,
        *,
        view: Callable[[], RegistryView],
        lease_s: float,
    ) -> None:
        self._node = node
        self._client = client
        self._publishing = publishing
        self._root = root
        self.replica = replica
        self._view = view
        self._lease_s = lease_s
        self._turns: dict[str, Turn] = {}
        self._dropped: list[Turn] = []  # to be given up
        self._wake = asyncio.Event()
        self._ticked_at_s = -math.inf
        self._had_contact = False
        self._problem = ""  # as last logged

    # ---- for the notifier

    def join(self, name: str, listener: TurnListener) -> Turn:
        turn = self._turns[name] = Turn(name, self, listener)
        self._follow(turn)
        self.wake()
        return turn

    def drop(self, turn: Turn) -> None:
        """The target is no longer configured here."""
        turn.is_wanted = False
        if self._turns.get(turn.name) is turn:
            del self._turns[turn.name]
            self._dropped.append(turn)
            self.wake()

    def wake(self) -> None:
        self._wake.set()

    # ---- who sends

    @property
    def has_contact(self) -> bool:
        """Whether what is known of the registry is at most as old as a lease."""
        at_s = self._client.fences.last_response_at_s
        return at_s is not None and self._node.now_s() - at_s <= self._lease_s

    def has(self, turn: Turn) -> bool:
        """By the registry, and as long as no other replica can have it."""
        found = self._view().sender(turn.name)
        return found is not None and self._is_ours(found) and self._node.now_s() < self._publishing.lease_ends_at_s

    def _is_ours(self, found: TargetSender) -> bool:
        lease = self._publishing.lease
        return lease is not None and found.document == SenderDocument(self.replica, f"{lease.id:x}")

    def known_sender(self, turn: Turn) -> str | None:
        found = self._view().sender(turn.name)
        is_other = found is not None and found.document.replica != self.replica
        return found.document.replica if found is not None and is_other and self.has_contact else None

    @property
    def has_others(self) -> bool:
        return len(self._view().replicas) > 1

    def _waits(self, turn: Turn) -> bool:
        """Whether others may have the turn: this replica has passed it on, or does not want it."""
        return self.has_contact and not self._is_due(turn)

    def _is_due(self, turn: Turn) -> bool:
        return turn.is_wanted and self._node.now_s() >= turn.waits_until_s

    def is_alone(self, turn: Turn) -> bool:
        """Whether it has not been known for long who sends."""
        wait_s = LAST_SENDER_WAIT_S if turn.last_sender == self.replica else OTHERS_WAIT_S
        is_awake = self._node.now_s() - self._ticked_at_s <= MAX_TICK_S
        is_back = self.has_contact and not self._had_contact  # it will soon be known
        return turn.is_wanted and is_awake and not is_back and turn.unknown_s >= wait_s

    async def follow_time(self) -> None:
        """Runs as long as the replica, whatever etcd does."""
        while True:
            self._tick()
            await asyncio.sleep(TICK_S)

    def _tick(self) -> None:
        now_s = self._node.now_s()
        passed_s, self._ticked_at_s = now_s - self._ticked_at_s, now_s
        is_back, self._had_contact = self.has_contact and not self._had_contact, self.has_contact
        for turn in self._turns.values():
            is_known = self.has(turn) or self.known_sender(turn) is not None or self._waits(turn)
            is_new = is_known or is_back or passed_s > MAX_TICK_S
            turn.unknown_s = 0.0 if is_new else turn.unknown_s + passed_s
            self._show(turn)

    def _show(self, turn: Turn) -> None:
        before, turn.was_shown = turn.was_shown, (turn.may_send, turn.sender)
        if turn.was_shown == before:
            return
        may_send, sender = turn.was_shown
        extra = {"event": "notification_sender", "target": turn.name, "replica": sender}
        if may_send and not self.has(turn):
            text = "this replica sends the notifications to %s by itself: it is not known whether another one does"
            log.warning(text, turn.name, extra=extra)
        elif sender is not None:
            log.info("replica %s sends the notifications to %s", sender, turn.name, extra=extra)
        turn.changed.set()
        turn.listener.on_turn()

    # ---- what the registry says

    def update(self, targets: frozenset[str]) -> None:
        """After a change of the view."""
        for turn in [self._turns[name] for name in targets if name in self._turns]:
            self._follow(turn)
            self._show(turn)
            turn.changed.set()
        if targets:
            self.wake()

    def reset(self) -> None:
        """etcd has other data than before."""
        for turn in self._turns.values():
            turn.followed_revision = 0
            turn.listener.on_restored()

    def _follow(self, turn: Turn) -> None:
        found, told = self._view().sender(turn.name), self._view().told(turn.name)
        if found is not None:
            turn.last_sender = found.document.replica
        if told is None or told.mod_revision == turn.followed_revision:
            return
        turn.followed_revision = told.mod_revision
        if told.document.told == turn.unsaved:
            turn.unsaved = None
            turn.sent.clear()
            turn.listener.on_saved()
        elif told.document.told not in turn.sent:
            turn.listener.on_told(told.document.told)

    # ---- what is written

    async def step(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TICK_S):
                await self._wake.wait()
        self._wake.clear()
        dropped, self._dropped = self._dropped, []
        for turn in (*dropped, *self._turns.values()):
            try:
                await self._save(turn)
                await self._claim_or_give_up(turn)
            except (RegistryRestoredError, RegistryUnreachableError):
                raise
            except RegistryError as exc:  # of this write: the other loops may have no problem
                self._log_problem(turn, str(exc))

    def _log_problem(self, turn: Turn, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            extra = {"event": "notification_turn_failed", "target": turn.name, "problem": problem}
            log.warning("cannot share the notifications to %s with other replicas: %s", turn.name, problem, extra=extra)

    async def _save(self, turn: Turn) -> None:
        """If etcd has something else than what is known here, nothing is written: the view will have it soon."""
        if turn.unsaved is None:
            return
        known, key = self._view().told(turn.name), encode_key(self._root, KeyKind.TOLD, turn.name)
        put = Put(key, encode_document(ToldDocument(turn.unsaved)))
        if turn.unsaved not in turn.sent:
            turn.sent.append(turn.unsaved)
        await self._client.txn([put], [Compare(key, 0 if known is None else known.mod_revision)])

    async def _claim_or_give_up(self, turn: Turn) -> None:
        found, lease = self._view().sender(turn.name), self._publishing.lease
        key, revision = encode_key(self._root, KeyKind.SENDERS, turn.name), 0 if found is None else found.mod_revision
        is_ours = found is not None and self._is_ours(found)
        is_due = self._is_due(turn)
        # What an earlier process of this replica has left is of nobody.
        is_free = found is None or (found.document.replica == self.replica and not is_ours)
        if lease is not None and is_due and is_free:
            document = encode_document(SenderDocument(self.replica, f"{lease.id:x}"))
            await self._client.txn([Put(key, document, lease.id)], [Compare(key, revision)])
        elif is_ours and not is_due:
            await self._client.txn([Delete(key)], [Compare(key, revision)])
