"""Every test here runs over every transport; in `make test` over those of this process."""

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


WIDE = ("wsgi-request-uri", "uvicorn", "gunicorn")  # in `make test-all` only: under these the application is the same


@pytest.fixture(
    params=[pytest.param(one, id=one.name, marks=[pytest.mark.wide] if one.name in WIDE else []) for one in TRANSPORTS]
)
def transport(request: pytest.FixtureRequest) -> Transport:
    transport: Transport = request.param
    return transport


@pytest.fixture
def fetch_from(transport: Transport) -> Iterator[Callable[[str], Fetch]]:
    """Opens a node case by its name."""
    with ExitStack() as opened:
        yield lambda case_name: opened.enter_context(transport.open(case_name))


@pytest.fixture
def fetch(fetch_from: Callable[[str], Fetch]) -> Fetch:
    """The worked example."""
    return fetch_from("worked example")
