"""Answers of the operator surface that are not the interface's JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from svcnode.spec import Answer, answer_with


def json_answer(document: Any, code: int = 200) -> Answer:  # noqa: ANN401  whatever JSON can hold
    return answer_with(code, json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


def typed_answer(body: bytes, content_type: str, *more_headers: tuple[str, str]) -> Answer:
    """Never kept by anybody in between: what it says may be another thing a second later."""
    headers = (
        ("Content-Type", content_type),
        *more_headers,
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("Content-Length", str(len(body))),
    )
    return Answer(200, body, headers)


def iso_time(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
