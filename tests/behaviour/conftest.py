"""One suite over every transport: each test here is asked of all of them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.support.transports import EXTERNAL_SERVERS, TRANSPORTS, Fetch, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="session", autouse=True)
def _external_servers() -> Iterator[None]:
    yield
    EXTERNAL_SERVERS.close()


@pytest.fixture(params=TRANSPORTS, ids=str)
def transport(request: pytest.FixtureRequest) -> Transport:
    found: Transport = request.param
    return found


@pytest.fixture
def fetch_from(transport: Transport) -> Iterator[Callable[[str], Fetch]]:
    """How to fetch the node of a named node_case."""
    with ExitStack() as opened:
        yield lambda world_name: opened.enter_context(transport.open(world_name))


@pytest.fixture
def fetch(fetch_from: Callable[[str], Fetch]) -> Fetch:
    """How to fetch the node of the worked example."""
    return fetch_from("worked example")
