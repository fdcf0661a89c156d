from __future__ import annotations

import pytest

from svcnode.core import redaction


@pytest.fixture(autouse=True)
def _isolated_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret that one test registers must not be redacted in another."""
    monkeypatch.setattr(redaction, "_secrets", {})
    monkeypatch.setattr(redaction, "_lengths_by_prefix", {})
