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
        (b"x" * 201, "x" * 200 + "… (201 bytes in all)"),
        ("x" * 300, "x" * 200 + "… (300 characters in all)"),
    ],
)
def test_what_a_stranger_sent_is_shown_on_one_line_and_does_no_harm(raw: str | bytes, text: str) -> None:
    assert safe_text(raw) == text


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_are_listed_as_in_a_sentence(words: list[str], text: str) -> None:
    assert join_items(words) == text
    assert join_items(words, limit=3) == text


def test_of_many_words_the_others_are_counted() -> None:
    assert join_items(["a", "b", "c", "d"], limit=3) == "a, b, c and 1 more"
    assert join_items(["a", "b", "c", "d"], limit=1) == "a and 3 more"
