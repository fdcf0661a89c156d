from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    import pytest

# A busy machine makes an example slow; that says nothing about the code.
settings.register_profile("svcnode", deadline=None)
settings.load_profile("svcnode")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-wording", action="store_true", help="write the snapshots of tests/wording again")


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay in memory; freezing them keeps each garbage collection short."""
    gc.collect()
    gc.freeze()
