"""JSON as it goes over the wire."""

from __future__ import annotations

import json
from typing import Any

# Made once: an encoder that is made for each text takes longer than most of the texts.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def compact_json(value: Any) -> str:  # noqa: ANN401  whatever JSON can hold
    """Without blanks, and with letters as they are."""
    return _encode(value)
