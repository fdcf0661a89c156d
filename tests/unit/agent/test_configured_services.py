from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from svcnode.agent.configured_services import BATCH, ConfigDiff, ConfiguredServices, changed_parts
from svcnode.config import ServiceSettings, load
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Change, ChangeKind, Status, Verdict
from svcnode.node.definition import Definition, define
from tests.support.nodes import make_node, record

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.node.node_state import NodeState


class Setup:
    def __init__(self) -> None:
        self.node = make_node("validator-7", version="v1")
        self.services = ConfiguredServices(self.node)
        self.changes: list[tuple[ChangeKind, str | None]] = []
        self.node.subscribe(self._record)

    def _record(self, change: Change) -> None:
        self.changes.append((change.kind, change.service_id))

    def apply(self, services: list[ServiceSettings]) -> ConfigDiff:
        return asyncio.run(self.services.apply(services))

    @property
    def statuses(self) -> dict[str, Status]:
        return {service.id: state.status for service, state in self.node}


@pytest.fixture
def setup() -> Setup:
    return Setup()


def probed(service_id: str, name: str = "") -> ServiceSettings:
    return ServiceSettings(definition=define(service_id, name=name, probe="tcp://127.0.0.1:1"))


def fixed(service_id: str, status: Status = Status.UP) -> ServiceSettings:
    return ServiceSettings(definition=define(service_id), status=status)


def test_services_are_replaced_added_and_removed_in_this_order_and_the_diff_has_their_ids(setup: Setup) -> None:
    first = setup.apply([probed("a"), probed("b"), fixed("c"), fixed("d")])
    assert first == ConfigDiff(added=("a", "b", "c", "d"))
    setup.changes.clear()
    services = [probed("b", "Ledger"), fixed("c", Status.DOWN), fixed("d"), probed("e"), fixed("f")]
    second = setup.apply(services)
    assert second == ConfigDiff(removed=("a",), added=("e", "f"), changed=("b", "c"))
    assert second.counts == {"removed": 1, "added": 2, "changed": 2}
    up, initializing, down = Status.UP, Status.INITIALIZING, Status.DOWN
    assert setup.statuses == {"b": initializing, "c": down, "d": up, "e": initializing, "f": up}
    assert setup.changes == [
        (ChangeKind.REPLACED, "b"),
        (ChangeKind.STATUS, "c"),
        (ChangeKind.REGISTERED, "e"),
        (ChangeKind.REGISTERED, "f"),
        (ChangeKind.STATUS, "f"),
        (ChangeKind.DEREGISTERED, "a"),
    ]


class OtherSource:
    """Registers services that the node may also have from elsewhere, and never removes one."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self.calls: list[tuple[str, str]] = []

    def __contains__(self, service_id: object, /) -> bool:
        return service_id in self._node

    def add(self, definition: Definition, /, *, registered_at_s: float | None = None) -> None:
        self.calls.append(("add", definition.service.id))
        self._node.add(definition, registered_at_s=registered_at_s)

    def replace(self, definition: Definition, /) -> None:
        self.calls.append(("replace", definition.service.id))

    def deregister(self, service_id: str, /) -> None:
        self.calls.append(("deregister", service_id))


def test_another_object_can_register_the_services(setup: Setup) -> None:
    service_list = OtherSource(setup.node)
    services = ConfiguredServices(setup.node, service_list)
    asyncio.run(services.apply([probed("a"), probed("b")]))
    asyncio.run(services.apply([probed("b", "Ledger")]))
    assert service_list.calls == [("add", "a"), ("add", "b"), ("replace", "b"), ("deregister", "a")]
    assert setup.statuses.keys() == {"a", "b"}


def test_after_an_error_the_next_attempt_applies_the_rest(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.apply([probed("old")])
    wanted = [probed("a"), fixed("b"), probed("c")]
    with monkeypatch.context() as patched:
        patched.setattr(setup.node, "report", _fail)
        with pytest.raises(MemoryError):
            setup.apply(wanted)
    assert setup.statuses.keys() == {"old", "a", "b"}
    setup.apply(wanted)
    assert setup.statuses == {"a": Status.INITIALIZING, "b": Status.UP, "c": Status.INITIALIZING}


def _fail(*_: object) -> None:
    raise MemoryError


def fields_of(records: list[logging.LogRecord], *names: str) -> list[tuple[object, ...]]:
    return [tuple(getattr(record, name, None) for name in names) for record in records]


def test_services_with_a_fixed_status_are_logged_in_one_line_when_they_change(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "svcnode")
    for services in (
        [fixed("a"), fixed("b"), fixed("c", Status.DOWN)],
        [fixed("a"), fixed("b"), fixed("c", Status.DOWN), probed("d")],
        [fixed("a")],
        [],
    ):
        setup.apply(services)
    lines = [line for line in fields_of(caplog.records, "event", "services") if line[0] != "node_health"]
    assert lines == [("fixed_status", 3), ("fixed_status", 1), ("fixed_status", 0)]


def test_changes_are_logged_and_a_status_down_and_node_health_503_are_warnings_but_a_drain_is_not(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    setup.apply([probed("db")])
    caplog.set_level(logging.INFO, "svcnode")
    refused = Verdict.failed("refused", code=ReasonCode.CONNECTION_REFUSED)
    for verdict in (Verdict.ready(), *[refused] * 3, *[Verdict.ready()] * 2):
        record(setup.node, "db", verdict)
    setup.node.overrides.drain()
    of_service, of_node = (
        [record for record in caplog.records if vars(record)["event"] == event]
        for event in ("service_status", "node_health")
    )
    assert fields_of(of_service, "levelname", "service", "status", "previous", "code", "reason", "node_health") == [
        ("INFO", "db", "Up", "Initializing", "ok", "", 200),
        ("WARNING", "db", "Down", "Up", "connection_refused", "refused", 503),
        ("INFO", "db", "Up", "Down", "ok", "", 200),
    ]
    assert fields_of(of_node, "levelname", "previous", "node_health") == [
        ("INFO", 206, 200),
        ("WARNING", 200, 503),
        ("INFO", 503, 200),
        ("INFO", 200, 503),
    ]


def test_the_state_has_a_line_for_each_service_that_is_not_up_but_not_for_thousands(
    setup: Setup, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("svcnode.agent.configured_services.MAX_LOGGED_STATES", 2)
    setup.apply([fixed("a"), fixed("b", Status.DOWN), probed("c")])
    caplog.set_level(logging.INFO, "svcnode")
    setup.services.log_not_up()
    fields = ("event", "service", "status", "code", "reason")
    assert fields_of(caplog.records, *fields) == [
        ("state", "b", "Down", "fixed", "set in the configuration"),
        ("state", "c", "Initializing", "no_evidence", "no evidence yet"),
    ]
    setup.apply([fixed(name, Status.DOWN) for name in "bdefg"])
    caplog.clear()
    setup.services.log_not_up()
    assert fields_of(caplog.records, "event", "service") == [("state", "b"), ("state", "d"), ("state", None)]
    assert caplog.records[-1].args == (3,)


def test_other_callbacks_run_while_many_services_are_applied(setup: Setup) -> None:
    seen: list[int] = []

    async def watch() -> None:
        while True:
            seen.append(len(setup.node))
            await asyncio.sleep(0)

    async def main(services: list[ServiceSettings]) -> None:
        watching = asyncio.create_task(watch())
        await setup.services.apply(services)
        watching.cancel()

    asyncio.run(main([probed(f"s{number}") for number in range(10 * BATCH)]))
    assert max(after - before for before, after in pairwise(seen)) == BATCH
    assert len(seen) >= 10
    seen.clear()
    asyncio.run(main([probed("s0")]))
    assert max(before - after for before, after in pairwise(seen)) == BATCH, "as they are removed"


# ---- what else a reload changes

CONFIG = """
[security]
operator_token = "0123456789abcdef"
[notify]
webhook = "https://hooks.example.com/a"
[[services]]
id = "a"
status = "Up"
"""


def parts_changed(tmp_path: Path, *replaced: tuple[str, str]) -> tuple[str, ...]:
    file, new = tmp_path / "svcnode.toml", CONFIG
    file.write_text(CONFIG)
    before = load(file, {"HOME": "/nowhere"})
    for old, text in replaced:
        new = new.replace(old, text)
    file.write_text(new)
    return changed_parts(before, load(file, {"HOME": "/nowhere"}))


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("", "", ()),
        ("0123456789abcdef", "fedcba9876543210", ("operator token",)),
        ("example.com/a", "example.com/b", ("[notify]",)),
        ("[security]", '[server]\ndrain = "1s"\n[security]', ("[server]",)),
        ("[security]", '[server]\nlisten = "127.0.0.1:1"\n[security]', ("addresses",)),
        ("[security]", "[history]\nmax_age = '1d'\n[security]", ("[history]",)),
        ("[security]", "[control]\nallow_exec = true\n[security]", ("[control]",)),
        ("[security]", "[log]\nlevel = 'debug'\n[security]", ("[log]",)),
        ("[security]", "[node]\nname = 'other'\n[security]", ()),  # the diff says it with other words
        ('status = "Up"', 'status = "Down"', ()),
        ("[security]", "[[maintenance]]\nstart = '02:00'\nduration = '1h'\n[security]", ("[[maintenance]]",)),
    ],
)
def test_what_else_has_changed_is_named(old: str, new: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    assert parts_changed(tmp_path, (old, new)) == parts
    assert all(part in str(ConfigDiff(others=parts)) for part in parts)
