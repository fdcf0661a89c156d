from __future__ import annotations

import pytest

from tests.support.check_runner import certificate, check, resolver  # noqa: F401  fixtures
from tests.support.http_server import LOOPS


@pytest.fixture(params=[pytest.param(name, marks=() if name == "uvloop" else pytest.mark.wide) for name in LOOPS])
def loop_name(request: pytest.FixtureRequest) -> str:
    """The loop of the agent, and the others in `make test-all`. `tests/contract` runs every kind on all of them."""
    return str(request.param)
