"""The texts of notifications: messages, errors and log lines."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.notify import NotifyStatus
from svcnode.notify.delivery import try_deliver
from svcnode.notify.heartbeat import HeartbeatSender
from svcnode.notify.notifier import Notifier, NotifySettings
from svcnode.notify.routes import AlertPolicy, RouteSettings
from svcnode.notify.targets import DeliveryError, apprise_from, webhook_from
from tests.support.backends import HttpBackend, closed_port, http_response
from tests.support.nodes import make_node
from tests.support.virtual_time import in_virtual_time
from tests.unit.notify.test_heartbeat import Switch
from tests.unit.notify.test_message import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from svcnode.notify.targets import Message, NotificationTarget
    from tests.wording.conftest import Snapshot


class Target:
    name = "https://hooks.example.com"
    fingerprint = "0"
    resend_interval_s: ClassVar[float | None] = None

    def __init__(self, error: DeliveryError | None = None, *, is_hanging: bool = False) -> None:
        self.error = error
        self.is_hanging = is_hanging

    async def deliver(self, message: Message) -> DeliveryError | None:
        if self.is_hanging:
            await asyncio.sleep(1e9)
        return self.error


class Storage:
    """Of an earlier version."""

    def save_state(self, text: str) -> None: ...

    async def load_state(self) -> str | None:
        return "{}"


def settings_for(*targets: Target) -> NotifySettings:
    return NotifySettings(routes=tuple(RouteSettings(target=one) for one in targets), policy=AlertPolicy())


FAILING = DeliveryError("connection refused: 127.0.0.1:8080", ReasonCode.CONNECTION_REFUSED)


def test_messages(snapshot: Snapshot) -> None:
    texts = [
        f"## {name} ({notify_type})\n{built.document()['text']}" for name, (built, notify_type) in MESSAGES.items()
    ]
    snapshot("messages", "\n\n".join(texts))


def test_errors_of_deliveries(snapshot: Snapshot) -> None:
    async def errors() -> list[DeliveryError | None]:
        with closed_port() as port, HttpBackend(http_response(401)) as backend, HttpBackend(b"no HTTP") as other:
            urls = [f"http://127.0.0.1:{one}/a" for one in (port, backend.port, other.port)]
            apprise_urls = [f"json://127.0.0.1:{one}/a" for one in (port, backend.port)]
            targets: list[NotificationTarget] = [
                *(webhook_from(url, {}) for url in urls),
                *(apprise_from(url, {}) for url in apprise_urls),
            ]
            return [await try_deliver(target, message()) for target in targets]

    found = asyncio.run(errors())

    @in_virtual_time
    async def timeout() -> None:
        found.append(await try_deliver(Target(is_hanging=True), message()))

    timeout()
    snapshot("delivery-errors", "\n".join(f"{error.code}: {error.reason}" for error in found if error))


def message() -> Message:
    return MESSAGES["test message"][0]


def test_log_lines(snapshot: Snapshot, caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def scenario() -> None:
        target = Target(FAILING)
        clock = asyncio.get_running_loop().time
        node = make_node("node", version="v1", clock=clock)
        async with Notifier(node, None, NotifyStatus(), storage=Storage()) as notifier:
            notifier.apply(settings_for(target, Target()))
            node.overrides.set_issue("disk full")
            await asyncio.sleep(60)
            target.error = None
            await asyncio.sleep(300)
            target.error = FAILING
            node.overrides.clear_issue()
            await asyncio.sleep(400)
            notifier.apply(None)
            node.overrides.set_issue("disk full")
            notifier.apply(settings_for(Target(FAILING)))
        await send_heartbeats()

    with caplog.at_level(logging.INFO, logger="svcnode.notify"):
        scenario()
    lines = [f"{record.levelname.lower()}: {record.getMessage()}" for record in caplog.records]
    snapshot("log", "\n".join(lines))


async def send_heartbeats() -> None:
    """Sent, failed, withheld for each cause, and sent again."""

    def ping(answer: Callable[[], object]) -> bool:
        if is_answered:
            answer()
        return is_running

    switch, problem, is_answered, is_running = Switch(), "", True, True
    sender = HeartbeatSender(NotifyStatus(), ping_scheduler=ping, delivery_problem=lambda: problem, clock=lambda: 0.0)
    sender.apply(switch)
    await asyncio.sleep(90)
    switch.error = FAILING
    await asyncio.sleep(60)
    is_running = False
    await asyncio.sleep(60)
    switch.error, is_running = None, True
    await asyncio.sleep(60)
    is_answered = False
    await asyncio.sleep(60)
    is_answered = True
    await asyncio.sleep(60)
    problem = "notifications to receiver have failed for more than 5 minutes"
    await asyncio.sleep(60)
    sender.stop()
