"""The files that the page is made of, and nothing beside them."""

from __future__ import annotations

from importlib import resources

import pytest

from svcnode.api.spec import NOT_FOUND
from svcnode.operator.page import STATIC_FILES, read_static, static_file
from tests.support.operator_context import OperatorHarness


@pytest.mark.parametrize("name", STATIC_FILES)
def test_each_file_comes_whole_with_its_type(name: str) -> None:
    answer = OperatorHarness().request(static_file, name)
    headers = dict(answer.headers)
    assert answer.code == 200
    assert answer.body == read_static(name)
    assert headers["Content-Type"].startswith(
        {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
    )
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["page.html", "", ".", "..", "../page.py", "/etc/passwd", "page.js/", "PAGE.JS", "x\0"]
)
def test_nothing_else_is_served(name: str) -> None:
    assert OperatorHarness().request(static_file, name) is NOT_FOUND


def test_every_file_is_listed_but_the_template() -> None:
    folder = resources.files("svcnode.operator").joinpath("static")
    assert {file.name for file in folder.iterdir()} == {*STATIC_FILES, "page.html"}


@pytest.mark.parametrize("name", STATIC_FILES)
def test_no_file_asks_for_anything_from_elsewhere(name: str) -> None:
    text = (
        read_static(name)
        .decode()
        .replace('xmlns="http://www.w3.org/2000/svg"', "")
        .replace('"http://www.w3.org/2000/svg"', "")
    )
    assert "//" not in "".join(line for line in text.splitlines() if "://" in line)
    assert "innerHTML" not in text
    assert "@import" not in text
