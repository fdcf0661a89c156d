from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Thousands of tests are loaded by now, and stay: those who collect garbage need not go through them each time."""
    gc.collect()
    gc.freeze()
