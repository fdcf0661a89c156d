"""The static files of the page: only those that are listed, under a name that changes with their contents."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from svcnode.api.spec import NOT_FOUND
from svcnode.operator.static_files import STATIC_FILES, read_static, static_file, static_hash, static_name
from tests.support.operator_context import OperatorHarness


@pytest.fixture
def harness() -> OperatorHarness:
    return OperatorHarness()


@pytest.mark.parametrize("name", STATIC_FILES)
def test_each_static_file_is_served_under_a_hash_with_its_type_and_kept_by_browsers(
    harness: OperatorHarness, name: str
) -> None:
    response = harness.request(static_file, static_name(name))
    headers = dict(response.headers)
    assert response.code == 200
    assert re.sub(rf"\.{static_hash()}".encode(), b"", response.body) == read_static(name)
    assert headers["Content-Type"].startswith(
        {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}[name.rpartition(".")[2]]
    )
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "public, max-age=31536000, immutable"
    imported = re.findall(rb'from "\./(.*?)"', response.body)
    assert {one.decode() for one in imported} <= {static_name(one) for one in STATIC_FILES}


@pytest.mark.parametrize(
    "name",
    [
        "page.html",
        "",
        ".",
        "..",
        "../page.py",
        "/etc/passwd",
        "page.js/",
        "PAGE.JS",
        "x\0",
        "page.js",
        "page.0123456789abcdef.js",
    ],
)
def test_other_static_files_are_not_found(harness: OperatorHarness, name: str) -> None:
    assert harness.request(static_file, name) is NOT_FOUND


def test_every_static_file_but_the_template_is_listed() -> None:
    folder = resources.files("svcnode.operator").joinpath("static")
    assert {file.name for file in folder.iterdir()} == {*STATIC_FILES, "page.html"}


@pytest.mark.parametrize("name", STATIC_FILES)
def test_no_static_file_loads_anything_from_other_hosts(name: str) -> None:
    text = read_static(name).decode().replace('"http://www.w3.org/2000/svg"', "")
    assert "//" not in "".join(line for line in text.splitlines() if "://" in line)
    assert "innerHTML" not in text
    assert "@import" not in text
