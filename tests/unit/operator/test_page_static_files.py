"""Only the listed static files are served."""

from __future__ import annotations

from importlib import resources

import pytest

from svcnode.api.spec import NOT_FOUND
from svcnode.operator.page import STATIC_FILES, read_static, static_file
from tests.support.operator_context import OperatorHarness


@pytest.mark.parametrize("name", STATIC_FILES)
def test_each_file_is_served_with_its_type(name: str) -> None:
    response = OperatorHarness().request(static_file, name)
    headers = dict(response.headers)
    assert response.code == 200
    assert response.body == read_static(name)
    assert headers["Content-Type"].startswith(
        {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
    )
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "name", ["page.html", "", ".", "..", "../page.py", "/etc/passwd", "page.js/", "PAGE.JS", "x\0"]
)
def test_other_names_are_not_found(name: str) -> None:
    assert OperatorHarness().request(static_file, name) is NOT_FOUND


def test_every_file_but_the_template_is_listed() -> None:
    folder = resources.files("svcnode.operator").joinpath("static")
    assert {file.name for file in folder.iterdir()} == {*STATIC_FILES, "page.html"}


@pytest.mark.parametrize("name", STATIC_FILES)
def test_no_file_loads_anything_from_other_hosts(name: str) -> None:
    text = (
        read_static(name)
        .decode()
        .replace('xmlns="http://www.w3.org/2000/svg"', "")
        .replace('"http://www.w3.org/2000/svg"', "")
    )
    assert "//" not in "".join(line for line in text.splitlines() if "://" in line)
    assert "innerHTML" not in text
    assert "@import" not in text
