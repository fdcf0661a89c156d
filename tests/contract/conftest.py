from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from tests.support.check_runner import certificate, check, resolver  # noqa: F401  fixtures
from tests.support.http_server import LOOPS

FOLDER = Path(__file__).parent


@pytest.fixture(params=list(LOOPS))
def loop_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test runs on one of the event loops, about half of them on each; on the other one it is `wide`."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        is_here = item.path.parent == FOLDER  # pytest passes the tests of all folders
        if is_here and callspec is not None and "loop_name" in callspec.params:
            name = item.name.replace(callspec.params["loop_name"], "")
            chosen = sorted(LOOPS)[crc32(name.encode()) % len(LOOPS)]
            if callspec.params["loop_name"] != chosen:
                item.add_marker(pytest.mark.wide)
