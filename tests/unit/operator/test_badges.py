"""One word about the node or a service, as a picture that anybody can read and nobody can break out of."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from svcnode.api.spec import NOT_FOUND, SERVICE_NOT_FOUND
from svcnode.core.model import Verdict
from svcnode.operator.badges import badge, svg
from tests.support.operator_context import OperatorHarness

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def scene() -> OperatorHarness:
    made = OperatorHarness()
    made.node.register("db", name="Ledger database").up()
    made.node.register("indexer", impact="none").down("out of disk")
    made.node.register("storage", impact="none").initializing("loading")
    return made


def drawn(scene: OperatorHarness, name: str, query: str = "") -> ET.Element:
    answer = scene.request(badge, name, query)
    assert answer.code == 200
    assert dict(answer.headers)["Content-Type"] == "image/svg+xml"
    return ET.fromstring(answer.body)


def words(picture: ET.Element) -> list[str | None]:
    return [text.text for text in picture.iter(f"{SVG}text")]


def test_a_service_is_told_by_its_name_and_status(scene: OperatorHarness) -> None:
    assert words(drawn(scene, "db.svg")) == ["Ledger database", "Up"]
    assert words(drawn(scene, "indexer.svg")) == ["indexer", "Down"]
    assert words(drawn(scene, "storage.svg")) == ["storage", "Initializing"]


def test_the_node_is_told_by_its_name_and_health(scene: OperatorHarness) -> None:
    assert words(drawn(scene, "node.svg")) == ["validator-7", "healthy"]
    scene.node.register("other")
    assert words(drawn(scene, "node.svg")) == ["validator-7", "partial"]
    scene.node.set_issue("no key")
    assert words(drawn(scene, "node.svg")) == ["validator-7", "unhealthy"]


def test_a_service_called_node_has_a_picture_too(scene: OperatorHarness) -> None:
    assert scene.request(badge, "node.svg", "service") is SERVICE_NOT_FOUND
    scene.node.register("node", name="Execution client").down("gone")
    assert words(drawn(scene, "node.svg")) == ["validator-7", "partial"]
    assert words(drawn(scene, "node.svg", "service")) == ["Execution client", "Down"]


def test_the_three_have_colours_of_their_own(scene: OperatorHarness) -> None:
    fills = {
        drawn(scene, name).findall(f"{SVG}rect")[1].get("fill") for name in ("db.svg", "indexer.svg", "storage.svg")
    }
    assert len(fills) == 3


def test_who_cannot_see_it_can_hear_it(scene: OperatorHarness) -> None:
    picture = drawn(scene, "db.svg")
    assert picture.get("role") == "img"
    assert picture.get("aria-label") == "Ledger database: Up"
    title = picture.find(f"{SVG}title")
    assert title is not None
    assert title.text == "Ledger database: Up"


@pytest.mark.parametrize("name", ["nothing.svg", ".svg"])
def test_an_unknown_id_is_not_found(scene: OperatorHarness, name: str) -> None:
    assert scene.request(badge, name) is SERVICE_NOT_FOUND


@pytest.mark.parametrize("name", ["db", "node", "db.png", "db.svg.png", "db.SVG"])
def test_what_is_not_called_a_picture_is_not_found(scene: OperatorHarness, name: str) -> None:
    assert scene.request(badge, name) is NOT_FOUND


@pytest.mark.parametrize(
    "service_id", ["a/b", "a.svg", "naïve db", "%2F", "...", "<script>", "\"&'", "数据库", "a" * 256]
)
def test_an_id_may_hold_any_character(scene: OperatorHarness, service_id: str) -> None:
    scene.node.register(service_id).up()
    assert drawn(scene, f"{service_id}.svg").get("aria-label") == f"{service_id}: Up"


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", '"/><script/>', "a & b", "]]>", "a\u202eb", "\ufffe", "x\u2028"]
)
def test_a_name_is_shown_and_not_obeyed(scene: OperatorHarness, name: str) -> None:
    scene.node.register("odd", name=name).up()
    picture = drawn(scene, "odd.svg")
    assert {element.tag for element in picture.iter()} == {
        f"{SVG}{tag}" for tag in ("svg", "title", "rect", "g", "text")
    }
    if name.isprintable():
        assert words(picture) == [name, "Up"]


def test_a_picture_that_is_opened_by_itself_may_load_and_run_nothing(scene: OperatorHarness) -> None:
    headers = dict(scene.request(badge, "db.svg").headers)
    assert headers["Content-Security-Policy"] == "default-src 'none'"
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_long_name_is_cut_and_told_in_full(scene: OperatorHarness) -> None:
    scene.node.register("long", name="a" * 200).up()
    picture = drawn(scene, "long.svg")
    assert words(picture) == ["a" * 39 + "…", "Up"]
    assert picture.get("aria-label") == "a" * 200 + ": Up"


def test_the_more_there_is_to_say_the_wider_it_is() -> None:
    widths = [
        int(ET.fromstring(svg(text, "Up", "#000")).get("width", "0")) for text in ("iiii", "aaaa", "MMMM", "数据库数")
    ]
    assert widths == sorted(set(widths))


def test_silence_is_judged_when_the_picture_is_asked_for(scene: OperatorHarness) -> None:
    scene.node.register("beat", ttl="5s").up()
    scene.clock.advance(6)
    assert words(drawn(scene, "beat.svg")) == ["beat", "Down"]
    scene.record("beat", Verdict.ready())
    assert words(drawn(scene, "beat.svg")) == ["beat", "Up"]
