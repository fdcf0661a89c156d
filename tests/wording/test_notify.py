"""The texts of notifications: messages, errors and log lines."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, ClassVar

from svcnode.core.codes import ReasonCode
from svcnode.notify import NotifyStatus, dispatcher
from svcnode.notify.alert import AlertPolicy
from svcnode.notify.dispatcher import MAX_MESSAGE_AGE_S, MAX_QUEUED, Dispatcher, try_deliver
from svcnode.notify.heartbeat import HeartbeatSender
from svcnode.notify.incidents import from_json
from svcnode.notify.notifier import Notifier, NotifySettings
from svcnode.notify.targets import DeliveryError, apprise_from, webhook_from
from tests.support.backends import HttpBackend, closed_port, http_response
from tests.support.nodes import make_node
from tests.support.virtual_time import in_virtual_time
from tests.unit.notify.test_heartbeat import Switch
from tests.unit.notify.test_message import MESSAGES

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from svcnode.notify.message import Message
    from svcnode.notify.targets import NotificationTarget
    from tests.wording.conftest import Snapshot


class Target:
    name = "https://hooks.example.com"
    resend_interval_s: ClassVar[float | None] = None

    def __init__(self, error: DeliveryError | None = None, *, is_hanging: bool = False) -> None:
        self.error = error
        self.is_hanging = is_hanging

    async def deliver(self, message: Message, lost: int) -> DeliveryError | None:
        if self.is_hanging:
            await asyncio.sleep(1e9)
        return self.error


FAILING = DeliveryError("connection refused: 127.0.0.1:8080", ReasonCode.CONNECTION_REFUSED)


def test_messages(snapshot: Snapshot) -> None:
    texts = [
        f"## {name} ({notify_type})\n{built.document()['text']}" for name, (built, notify_type) in MESSAGES.items()
    ]
    texts += [f"## lost: {lost}\n{MESSAGES['node recovered'][0].document(lost)['text']}" for lost in (1, 3)]
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
        queues = Dispatcher(NotifyStatus())
        queues.set_targets([target])
        queues.dispatch(message(), {})
        await asyncio.sleep(60)
        target.error = None
        await asyncio.sleep(dispatcher.MAX_BACKOFF_S)
        target.error = FAILING
        queues.dispatch(message(), {})
        await asyncio.sleep(2 * MAX_MESSAGE_AGE_S)
        for _ in range(MAX_QUEUED + 1):
            queues.dispatch(message(), {})
        queues.set_targets([])
        queues.set_targets([Target(FAILING)])
        queues.dispatch(message(), {})
        await queues.close()
        async with Notifier(make_node("node", version="v1"), None, NotifyStatus()) as notifier:
            notifier.apply(NotifySettings(targets=(Target(), Target()), policy=AlertPolicy()))
            notifier.apply(None)
        await send_heartbeats()

    with caplog.at_level(logging.INFO, logger="svcnode.notify"):
        scenario()
        from_json("{}", lambda at_s: at_s)
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
