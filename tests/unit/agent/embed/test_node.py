"""The public node: what programs see of it. Its parts have tests of their own."""

from __future__ import annotations

import inspect
from typing import Any, cast

import pytest

from svcnode import InvalidValueError, Node
from svcnode.agent.embed.node import internals_of
from svcnode.core.model import Impact, Verdict
from svcnode.probes.function import FunctionProbe


@pytest.fixture
def node() -> Node:
    return Node("validator-7", version="v1")


def test_every_public_name_is_explained_and_there_are_few_enough_to_remember() -> None:
    public = {name: value for name, value in vars(Node).items() if not name.startswith("_")}
    assert len(public) <= 25
    assert [name for name, value in public.items() if not inspect.getdoc(value)] == []


def test_a_node_has_its_services_and_is_true_without_any(node: Node) -> None:
    assert (len(node), bool(node), "db" in node) == (0, True, False)
    node.register("db").up()
    assert (len(node), "db" in node, node.health) == (1, True, 200)
    assert [(service.id, state) for service, state in node] == [("db", node.state("db"))]
    assert node.handle("db").state == node.state("db")
    node.deregister("db")
    assert "db" not in node


def test_the_verdict_of_a_check_can_be_recorded(node: Node) -> None:
    node.register("db", probe="tcp://127.0.0.1:1")
    assert node.record("db", Verdict.ready("fine"), duration_s=0.5) == node.state("db")
    assert node.health == 200


def test_the_check_decorator_registers_a_service_and_returns_the_function(node: Node) -> None:
    @node.check("cache", name="Cache", interval="5s", impact="critical")
    def is_warm() -> bool:
        return True

    assert is_warm() is True
    probe_config = internals_of(node).state.probe_config("cache")
    assert probe_config is not None
    assert probe_config.probe == FunctionProbe(is_warm)
    assert probe_config.schedule.interval_s == 5.0
    [(service, _)] = node
    assert (service.name, service.impact) == ("Cache", Impact.CRITICAL)


def test_a_check_without_a_service_id_is_rejected(node: Node) -> None:
    check = cast("Any", node.check)
    with pytest.raises(InvalidValueError, match=r"@node\.check"):
        check(lambda: None)
    assert len(node) == 0


@pytest.mark.parametrize("option", ["intervall", "probe", "ttl"])
def test_an_option_that_a_check_does_not_have_is_refused_at_once(node: Node, option: str) -> None:
    with pytest.raises(TypeError, match=f'"{option}"'):
        node.check("db-1", **{option: "5s"})  # type: ignore[arg-type]
