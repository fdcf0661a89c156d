"""Badges show the health of the node or the status of a service, and escape every text."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from svcnode.api.spec import NOT_FOUND, SERVICE_NOT_FOUND
from svcnode.operator.badges import badge, svg
from tests.support.operator_context import OperatorHarness

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def harness() -> OperatorHarness:
    harness = OperatorHarness()
    harness.node.register("db", name="Ledger database").up()
    harness.node.register("indexer", impact="none").down("out of disk")
    harness.node.register("storage", impact="none").initializing("loading")
    return harness


def badge_of(harness: OperatorHarness, name: str, query: str = "") -> ET.Element:
    response = harness.request(badge, name, query)
    headers = dict(response.headers)
    assert (response.code, headers["Content-Type"]) == (200, "image/svg+xml")
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert headers["Content-Security-Policy"] == "default-src 'none'", "opened on its own, it cannot load anything"
    return ET.fromstring(response.body)


def texts(image: ET.Element) -> list[str | None]:
    return [text.text for text in image.iter(f"{SVG}text")]


def test_a_service_badge_shows_name_and_status_each_in_its_colour(harness: OperatorHarness) -> None:
    harness.node.register("expired", ttl="5s").up()
    harness.clock.advance(6)
    expected = {"db": ["Ledger database", "Up"], "indexer": ["indexer", "Down"], "storage": ["storage", "Initializing"]}
    expected["expired"] = ["expired", "Down"]
    badges = {service_id: badge_of(harness, f"{service_id}.svg") for service_id in expected}
    assert {service_id: texts(image) for service_id, image in badges.items()} == expected
    assert len({image.findall(f"{SVG}rect")[1].get("fill") for image in badges.values()}) == 3
    assert badges["db"].get("role") == "img"
    assert badges["db"].get("aria-label") == badges["db"].findtext(f"{SVG}title") == "Ledger database: Up"
    widths = [
        int(ET.fromstring(svg(text, "Up", "#000")).get("width", "0")) for text in ("iiii", "aaaa", "MMMM", "数据库数")
    ]
    assert widths == sorted(set(widths))


def test_the_node_badge_shows_name_and_health(harness: OperatorHarness) -> None:
    assert texts(badge_of(harness, "node.svg")) == ["validator-7", "healthy"]
    assert harness.request(badge, "node.svg", "service") is SERVICE_NOT_FOUND
    harness.node.register("node", name="Execution client").down("gone")
    assert texts(badge_of(harness, "node.svg")) == ["validator-7", "partial"]
    assert texts(badge_of(harness, "node.svg", "service")) == ["Execution client", "Down"]
    harness.node.overrides.set_issue("no key")
    assert texts(badge_of(harness, "node.svg")) == ["validator-7", "unhealthy"]


def test_an_unknown_id_or_a_name_without_the_suffix_is_not_found(harness: OperatorHarness) -> None:
    for name in ("nothing.svg", ".svg"):
        assert harness.request(badge, name) is SERVICE_NOT_FOUND
    for name in ("db", "node", "db.png", "db.svg.png", "db.SVG"):
        assert harness.request(badge, name) is NOT_FOUND


@pytest.mark.parametrize("service_id", ["a/b", "a.svg", "naïve db", "%2F", "<script>"])
def test_an_id_may_hold_any_character(harness: OperatorHarness, service_id: str) -> None:
    harness.node.register(service_id).up()
    assert badge_of(harness, f"{service_id}.svg").get("aria-label") == f"{service_id}: Up"


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", '"/><script/>', "a & b", "]]>", "a\u202eb", "\ufffe"])
def test_markup_in_a_name_is_escaped(harness: OperatorHarness, name: str) -> None:
    harness.node.register("odd", name=name).up()
    image = badge_of(harness, "odd.svg")
    assert {element.tag for element in image.iter()} == {f"{SVG}{tag}" for tag in ("svg", "title", "rect", "g", "text")}
    if name.isprintable():
        assert texts(image) == [name, "Up"]


def test_a_long_name_is_truncated_but_read_out_in_full(harness: OperatorHarness) -> None:
    harness.node.register("long", name="a" * 200).up()
    image = badge_of(harness, "long.svg")
    assert texts(image) == ["a" * 39 + "…", "Up"]
    assert image.get("aria-label") == "a" * 200 + ": Up"
