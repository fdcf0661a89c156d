from __future__ import annotations

import pytest

from tests.support.wire import LOOPS


@pytest.fixture(params=list(LOOPS))
def loop_name(request: pytest.FixtureRequest) -> str:
    """Whatever asks for it runs once on every event loop that we serve on."""
    return str(request.param)
