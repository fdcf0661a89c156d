from __future__ import annotations

import pytest

from svcnode.conformance.text import join_items, safe_text


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"plain", "plain"),
        ("Größe ☃", "Größe ☃"),
        ("Größe ☃".encode(), "Größe ☃"),
        (b"\xff\xfe", r"\xff\xfe"),
        ("a\nb\x1b[2J\x00", r"a\nb\x1b[2J\x00"),
        ("\ud800\ufffe\u202e", r"\ud800\ufffe\u202e"),
        (b"x" * 200, "x" * 200),
        (b"x" * 201, "x" * 200 + "… (201 bytes total)"),
        ("x" * 300, "x" * 200 + "… (300 characters total)"),
    ],
)
def test_untrusted_text_is_one_line_without_control_characters(raw: str | bytes, text: str) -> None:
    assert safe_text(raw) == text


@pytest.mark.parametrize(
    ("items", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_items_are_joined(items: list[str], text: str) -> None:
    assert join_items(items) == text
    assert join_items(items, limit=3) == text


def test_items_beyond_the_limit_are_counted() -> None:
    assert join_items(["a", "b", "c", "d"], limit=3) == "a, b, c and 1 more"
    assert join_items(["a", "b", "c", "d"], limit=1) == "a and 3 more"
