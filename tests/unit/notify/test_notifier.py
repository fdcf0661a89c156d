"""A node and its outboxes brought together, in virtual time."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from svcnode.node import Node
from svcnode.notify.model import DeliveryStats
from svcnode.notify.notifier import Notifier
from svcnode.notify.settings import AlertPolicy, NotifySettings
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from svcnode.node import Handle
    from svcnode.notify.message import Message


class Receiver:
    name = "receiver"

    def __init__(self) -> None:
        self.heard: list[tuple[float, str]] = []
        self.messages: list[Message] = []
        self.lost: list[int] = []

    async def deliver(self, message: Message, lost: int) -> str | None:
        self.heard.append((asyncio.get_running_loop().time(), message.title))
        self.messages.append(message)
        self.lost.append(lost)
        return None


def settings_for(*targets: Receiver, manners: AlertPolicy | None = None) -> NotifySettings:
    return NotifySettings(targets=targets, policy=manners or AlertPolicy())


def node_and_db() -> tuple[Node, Handle]:
    node = Node("validator-7", version="v1.4.2", clock=asyncio.get_running_loop().time)
    db = node.register("db", name="Ledger", description="", impact="critical")
    db.up()
    return node, db


IS_DOWN = "validator-7 is unhealthy (503), was healthy (200)"


@in_virtual_time
async def test_a_change_arrives_when_the_time_to_group_is_over() -> None:
    node, db = node_and_db()
    receiver, notices = Receiver(), DeliveryStats()
    async with Notifier(node, settings_for(receiver), notices, wall_clock=lambda: 1_767_225_600.0) as _:
        await asyncio.sleep(100)
        db.down("refused")
        await asyncio.sleep(400)
        db.up()
        await asyncio.sleep(400)
    recovered = "validator-7 has recovered: healthy (200) after 6m 40s"
    assert receiver.heard == [(105.0, IS_DOWN), (505.0, recovered)]
    assert notices.sent == 2
    assert [message.fields["at"] for message in receiver.messages] == ["2026-01-01T00:00:00.000Z"] * 2
    first, second = (message.fields["id"] for message in receiver.messages)
    assert first != second


@in_virtual_time
async def test_changes_from_other_threads_are_heard() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), DeliveryStats()):
        await asyncio.to_thread(db.down, "refused")
        await asyncio.sleep(10)
    assert [title for _, title in receiver.heard] == [IS_DOWN]


@in_virtual_time
async def test_stopping_on_purpose_is_not_told() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), DeliveryStats()) as notifier:
        await asyncio.sleep(10)
        notifier.flush()
        node.drain()
        db.down("stopped with everything else")
        await asyncio.sleep(10)
    assert not receiver.heard


@in_virtual_time
async def test_a_node_that_somebody_else_drains_is_not_told() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), DeliveryStats()):
        node.drain()
        db.down("stopped with everything else")
        await asyncio.sleep(1000)
    assert not receiver.heard


@in_virtual_time
async def test_what_was_held_back_is_sent_before_the_end() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), DeliveryStats()) as notifier:
        db.down("refused")
        await asyncio.sleep(2)
        notifier.flush()
    assert receiver.heard == [(2.0, IS_DOWN)]


@in_virtual_time
async def test_when_cut_off_it_ends_at_once() -> None:
    node, db = node_and_db()
    notices = DeliveryStats()

    class Hung(Receiver):
        async def deliver(self, message: Message, lost: int) -> str | None:
            await asyncio.sleep(1e9)
            return None

    async def story() -> None:
        async with Notifier(node, settings_for(Hung()), notices):
            db.down("refused")
            await asyncio.sleep(1e9)

    serving = asyncio.create_task(story())
    await asyncio.sleep(10)
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    assert asyncio.get_running_loop().time() == 10
    assert notices.dropped == 1


@in_virtual_time
async def test_settings_can_change_come_and_go() -> None:
    node, db = node_and_db()
    receiver = Receiver()
    async with Notifier(node, None, DeliveryStats()) as notifier:
        db.down("refused")
        await asyncio.sleep(1000)
        notifier.apply(settings_for(receiver))
        await asyncio.sleep(10)
        assert [title for _, title in receiver.heard] == ["validator-7 is unhealthy (503)"], "nobody had told so far"
        notifier.apply(settings_for(receiver, policy=AlertPolicy(resolve_delay_s=0, group_wait_s=1)))
        db.up()
        await asyncio.sleep(10)
        assert receiver.heard[1:] == [(1011.0, "validator-7 has recovered: healthy (200) after 10s")], (
            "as far as it knows"
        )
        notifier.apply(None)
        db.down("refused")
        await asyncio.sleep(1000)
        notifier.apply(settings_for())
        await asyncio.sleep(1000)
        assert len(receiver.heard) == 2


@in_virtual_time
async def test_what_is_registered_later_is_told_with_its_name_and_weight() -> None:
    node, _ = node_and_db()
    receiver = Receiver()
    async with Notifier(node, settings_for(receiver), DeliveryStats()):
        node.register("queue", name="Queue", description="", impact="critical").down("gone")
        node.register("extra", name="Extra", description="", impact="none").down("gone")
        await asyncio.sleep(10)
    (message,) = receiver.messages
    assert message.lines == ("queue (Queue) is Down, and has not been Up yet: gone",)


# ---- over a restart


class Notebook:
    """A memory that outlives the notifier, and may take its time to be opened."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.is_open = asyncio.Event()
        self.is_open.set()

    def save_state(self, text: str) -> None:
        self.text = text

    async def load_state(self) -> str | None:
        await self.is_open.wait()
        return self.text


class Deaf(Receiver):
    async def deliver(self, message: Message, lost: int) -> str | None:
        await super().deliver(message, lost)
        return "refused"


class Ailing(Deaf):
    """Takes messages, until it does not."""

    def __init__(self, name: str = "receiver", *, takes_at_most: int = 1000) -> None:
        super().__init__()
        self.name = name
        self.is_deaf = False
        self.takes_at_most = takes_at_most

    async def deliver(self, message: Message, lost: int) -> str | None:
        fault = await super().deliver(message, lost)
        if self.is_deaf or self.takes_at_most == 0:
            return fault
        self.takes_at_most -= 1
        return None


async def told_as_down(memory: Notebook, *receivers: Receiver, is_killed: bool = False) -> None:
    """A node whose service goes down, and which stops after that."""
    node, db = node_and_db()
    async with Notifier(node, settings_for(*receivers), DeliveryStats(), storage=memory, wall_clock=node.now_s):
        db.down("refused")
        await asyncio.sleep(10)
        text = memory.text
    if is_killed:
        memory.text = text


async def titles_after(memory: Notebook, status: str | None, *others: Receiver) -> list[str]:
    """What the next one tells, an hour later."""
    await asyncio.sleep(3590)
    receiver = Receiver()
    node = Node("validator-7", version="v1.4.2", clock=asyncio.get_running_loop().time)
    if status is not None:
        node.register("db", name="Ledger", description="", impact="critical")
    async with Notifier(node, settings_for(receiver, *others), DeliveryStats(), storage=memory, wall_clock=node.now_s):
        await asyncio.sleep(1)
        if status == "Up":
            node.handle("db").up()
        elif status == "Down":
            node.handle("db").down("refused")
        await asyncio.sleep(1000)
    return [title for _, title in receiver.heard]


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize(
    ("status", "titles"),
    [
        ("Down", []),
        ("Initializing", []),
        ("Up", ["validator-7 has recovered: healthy (200) after at most 1h"]),
        (None, ["validator-7 has recovered: healthy (200) after at most 1h"]),
    ],
)
def test_what_was_told_before_a_restart_is_known_after_it(
    status: str | None, titles: list[str], is_killed: bool
) -> None:
    @in_virtual_time
    async def story() -> None:
        memory = Notebook()
        await told_as_down(memory, Receiver(), is_killed=is_killed)
        assert await titles_after(memory, status) == titles
        if status == "Up":
            assert await titles_after(memory, "Up") == [], "it is over, and that is known, too"

    story()


@in_virtual_time
async def test_what_did_not_reach_everybody_before_a_restart_is_told_once_more() -> None:
    memory = Notebook()
    await told_as_down(memory, Receiver(), Deaf())
    assert await titles_after(memory, "Down") == ["validator-7 is still unhealthy (503), after 1h"]
    assert await titles_after(memory, "Down") == []


@in_virtual_time
async def test_the_end_of_it_that_did_not_arrive_before_a_restart_is_told_once_more() -> None:
    memory, deaf = Notebook(), Deaf()
    await told_as_down(memory, Receiver())
    node, _ = node_and_db()
    async with Notifier(node, settings_for(deaf), DeliveryStats(), storage=memory, wall_clock=node.now_s):
        await asyncio.sleep(10)
    assert deaf.heard, "it has recovered"
    (title,) = await titles_after(memory, "Up")
    assert title.startswith("validator-7 has recovered: healthy (200) after at most 1h")


@in_virtual_time
async def test_that_end_is_told_also_when_it_does_not_arrive_over_two_restarts() -> None:
    memory = Notebook()
    await told_as_down(memory, Receiver(), Deaf())
    node, _ = node_and_db()
    async with Notifier(node, settings_for(Deaf()), DeliveryStats(), storage=memory, wall_clock=node.now_s):
        await asyncio.sleep(10)
    (title,) = await titles_after(memory, "Up")
    assert title.startswith("validator-7 has recovered: healthy (200) after at most 1h")


@in_virtual_time
async def test_while_a_target_takes_nothing_every_restart_tells_the_others_once_more_until_it_is_taken_out() -> None:
    memory = Notebook()
    await told_as_down(memory, Receiver(), Deaf())
    assert await titles_after(memory, "Down", Deaf()) == ["validator-7 is still unhealthy (503), after 1h"]
    assert len(await titles_after(memory, "Up", Deaf())) == 1
    assert len(await titles_after(memory, "Up", Deaf())) == 1
    assert len(await titles_after(memory, "Up")) == 1
    assert await titles_after(memory, "Up") == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_that_end_is_told_to_whoever_took_the_beginning_also_beside_one_that_never_takes_anything(
    is_killed: bool,
) -> None:
    @in_virtual_time
    async def story() -> None:
        memory, receiver = Notebook(), Ailing()
        node, db = node_and_db()
        told = settings_for(receiver, Deaf())
        async with Notifier(node, told, DeliveryStats(), storage=memory, wall_clock=node.now_s):
            db.down("refused")
            await asyncio.sleep(400)
            receiver.is_deaf = True
            db.up()
            await asyncio.sleep(10)
            text = memory.text
        memory.text = text if is_killed else memory.text
        (title,) = await titles_after(memory, "Up")
        assert title.startswith("validator-7 has recovered: healthy (200) after at most 1h")

    story()


@in_virtual_time
async def test_that_end_is_told_also_when_it_waited_behind_the_beginning() -> None:
    memory, receiver = Notebook(), Ailing(takes_at_most=1)
    receiver.is_deaf = True
    node, db = node_and_db()
    told = settings_for(receiver, policy=AlertPolicy(resolve_delay_s=0))
    async with Notifier(node, told, DeliveryStats(), storage=memory, wall_clock=node.now_s):
        db.down("refused")
        await asyncio.sleep(10)
        db.up()
        await asyncio.sleep(10)
        receiver.is_deaf = False
        await asyncio.sleep(60)
    (title,) = await titles_after(memory, "Up")
    assert title.startswith("validator-7 has recovered: healthy (200) after at most 1h")


@in_virtual_time
async def test_what_everybody_took_is_over_and_what_one_never_heard_of_has_no_end_for_it() -> None:
    memory = Notebook()
    node, db = node_and_db()
    told = settings_for(Receiver(), Deaf(), policy=AlertPolicy(resolve_delay_s=0))
    async with Notifier(node, told, DeliveryStats(), storage=memory, wall_clock=node.now_s):
        db.down("refused")
        await asyncio.sleep(10)
        db.up()
        await asyncio.sleep(10)
    assert await titles_after(memory, "Up") == []


@in_virtual_time
async def test_what_began_before_a_target_was_added_is_not_told_again_for_its_sake() -> None:
    memory, receiver = Notebook(), Receiver()
    node, db = node_and_db()
    async with Notifier(
        node, settings_for(receiver), DeliveryStats(), storage=memory, wall_clock=node.now_s
    ) as notifier:
        db.down("refused")
        await asyncio.sleep(10)
        notifier.apply(settings_for(receiver, Receiver()))
        await asyncio.sleep(10)
    assert await titles_after(memory, "Down") == []


@in_virtual_time
async def test_one_that_recovered_and_fell_since_everybody_was_told_is_down_again() -> None:
    memory, receiver = Notebook(), Ailing()
    node, db = node_and_db()
    async with Notifier(node, settings_for(receiver), DeliveryStats(), storage=memory, wall_clock=node.now_s):
        db.down("refused")
        await asyncio.sleep(400)
        receiver.is_deaf = True
        db.up()
        await asyncio.sleep(400)
        db.down("refused")
        await asyncio.sleep(10)
    await asyncio.sleep(7 * 3600)
    node = Node("validator-7", version="v1.4.2", clock=asyncio.get_running_loop().time)
    db = node.register("db", name="Ledger", description="", impact="critical")
    async with Notifier(node, settings_for(receiver), DeliveryStats(), storage=memory, wall_clock=node.now_s):
        await asyncio.sleep(1)
        db.down("refused")
        await asyncio.sleep(10)
    assert receiver.heard[-1][1] == "validator-7 is unhealthy (503) again, for 7h", "which has not arrived, either"
    assert await titles_after(memory, "Down") == ["validator-7 is unhealthy (503) again, for 8h"]
    assert await titles_after(memory, "Down") == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_was_lost_before_a_restart_is_told_by_the_next_message_to_whom_it_was_for(is_killed: bool) -> None:
    @in_virtual_time
    async def story() -> None:
        memory = Notebook()
        first, well, twin = Ailing("chat"), Ailing("mail"), Ailing("chat")
        twin.is_deaf = True
        node, db = node_and_db()
        told = settings_for(first, well, twin, policy=AlertPolicy(resolve_delay_s=0))
        async with Notifier(node, told, DeliveryStats(), storage=memory, wall_clock=node.now_s):
            db.down("refused")
            await asyncio.sleep(10)
            first.is_deaf = True
            db.up()
            await asyncio.sleep(10)
            text = memory.text
        memory.text = text if is_killed else memory.text
        targets = (Ailing("mail"), Ailing("chat"), Ailing("chat"), Ailing("new"))
        node, _ = node_and_db()
        async with Notifier(node, settings_for(*targets), DeliveryStats(), storage=memory, wall_clock=node.now_s):
            await asyncio.sleep(60)
        assert [one.lost for one in targets] == [[0], [1], [2], [0]]
        text = memory.text
        assert text is not None
        assert json.loads(text)["missed"] == [["mail", 0], ["chat", 0], ["chat", 0], ["new", 0]]

    story()


@in_virtual_time
async def test_without_a_memory_it_is_told_as_if_it_were_new() -> None:
    memory = Notebook()
    await told_as_down(memory, Receiver())
    assert await titles_after(Notebook(), "Down") == ["validator-7 is unhealthy (503)"]
    assert await titles_after(Notebook(), "Up") == []


@in_virtual_time
async def test_a_memory_that_takes_its_time_delays_nothing_and_is_not_written_over() -> None:
    memory, receiver = Notebook(), Receiver()
    await told_as_down(memory, Receiver())
    before = memory.text
    memory.is_open.clear()
    node, _ = node_and_db()
    queue = node.register("queue", name="", description="", impact="critical")
    queue.down("refused")
    async with Notifier(node, settings_for(receiver), DeliveryStats(), storage=memory, wall_clock=node.now_s):
        await asyncio.sleep(60)
        assert [title for _, title in receiver.heard] == ["validator-7 is unhealthy (503)"]
        assert memory.text == before
        memory.is_open.set()
        await asyncio.sleep(60)
        assert receiver.messages[-1].title == "validator-7: db (Ledger) has recovered: Up after at most 10s"
        assert memory.text != before
        assert "queue" in str(memory.text)


@in_virtual_time
async def test_when_nobody_is_to_be_told_any_more_it_is_forgotten_what_was() -> None:
    memory, receiver = Notebook(), Receiver()
    node, db = node_and_db()
    async with Notifier(
        node, settings_for(receiver), DeliveryStats(), storage=memory, wall_clock=node.now_s
    ) as notifier:
        db.down("refused")
        await asyncio.sleep(10)
        assert "db" in str(memory.text)
        notifier.apply(None)
        assert memory.text == '{"incidents": [], "missed": []}'


@in_virtual_time
async def test_a_stop_before_the_memory_is_open_loses_nothing_of_it() -> None:
    memory = Notebook()
    await told_as_down(memory, Receiver())
    memory.is_open.clear()
    node, _ = node_and_db()
    async with Notifier(
        node, settings_for(Receiver()), DeliveryStats(), storage=memory, wall_clock=node.now_s
    ) as notifier:
        notifier.flush()
        memory.is_open.set()
        await asyncio.sleep(1)
    assert await titles_after(memory, "Up") == ["validator-7 has recovered: healthy (200) after at most 1h"]


@in_virtual_time
async def test_what_is_forgotten_before_the_memory_is_open_stays_forgotten() -> None:
    memory = Notebook()
    await told_as_down(memory, Receiver())
    memory.is_open.clear()
    node, _ = node_and_db()
    async with Notifier(
        node, settings_for(Receiver()), DeliveryStats(), storage=memory, wall_clock=node.now_s
    ) as notifier:
        await asyncio.sleep(1)
        notifier.apply(None)
        memory.is_open.set()
        await asyncio.sleep(1)
    assert await titles_after(memory, "Up") == []
