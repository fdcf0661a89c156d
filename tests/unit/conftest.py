from __future__ import annotations

import pytest

from svcnode.core import redaction


@pytest.fixture(autouse=True)
def _isolated_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that one test keeps must not blot out the words of another."""
    monkeypatch.setattr(redaction, "_secrets", set())
    monkeypatch.setattr(redaction, "_lengths_by_prefix", {})
