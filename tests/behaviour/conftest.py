"""One suite over every surface: each test here is asked of all of them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.surfaces import SERVERS, SURFACES, Ask, Surface

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session", autouse=True)
def _servers() -> Iterator[None]:
    yield
    SERVERS.close()


@pytest.fixture(params=SURFACES, ids=str)
def surface(request: pytest.FixtureRequest) -> Surface:
    found: Surface = request.param
    return found


@pytest.fixture
def ask_in(surface: Surface) -> Iterator[Callable[[str], Ask]]:
    """How to ask the node of a named world."""
    with ExitStack() as opened:
        yield lambda world_name: opened.enter_context(surface.open(world_name))


@pytest.fixture
def ask(ask_in: Callable[[str], Ask]) -> Ask:
    """How to ask the node of the worked example."""
    return ask_in("worked example")
