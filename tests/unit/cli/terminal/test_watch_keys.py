"""Bytes from a terminal as keys."""

from __future__ import annotations

import pytest

from svcnode.cli.terminal.watch.keys import Key, KeyReader


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        (b"\x1b[A", Key.UP),
        (b"\x1bOB", Key.DOWN),
        (b"\x1b[1;5A", Key.UP),
        (b"\x1b[5~", Key.PAGE_UP),
        (b"\x1b[6;2~", Key.PAGE_DOWN),
        (b"\x1b[1~", Key.HOME),
        (b"\x1bOF", Key.END),
        (b"\r", Key.ENTER),
        (b"\n", Key.ENTER),
        (b"\x7f", Key.BACKSPACE),
        (b"q", "q"),
        ("検".encode(), "検"),
    ],
)
def test_a_key_is_read_in_one_piece_and_byte_by_byte(sent: bytes, key: Key | str) -> None:
    assert KeyReader().feed(sent) == [key]
    reader = KeyReader()
    assert [found for byte in sent for found in reader.feed(bytes([byte]))] == [key]
    assert not reader.is_pending


def test_several_keys_may_arrive_at_once_and_invalid_utf_8_does_not_hide_the_next_one() -> None:
    assert KeyReader().feed(b"jj\x1b[B/a\r") == ["j", "j", Key.DOWN, "/", "a", Key.ENTER]
    assert KeyReader().feed(b"\xffq")[-1] == "q"


def test_escape_is_a_key_if_nothing_or_another_key_follows() -> None:
    reader = KeyReader()
    assert reader.feed(b"\x1b") == []
    pending = [reader.is_pending]
    assert reader.flush() == [Key.ESCAPE]
    assert [*pending, reader.is_pending] == [True, False]
    assert reader.feed(b"[A") == ["[", "A"]
    assert KeyReader().feed(b"\x1bq") == [Key.ESCAPE, "q"]
    assert reader.feed(b"\x1b\x1b") == [Key.ESCAPE]
    assert reader.flush() == [Key.ESCAPE]


@pytest.mark.parametrize("sent", [b"\x1b[24~", b"\x1b[200~", b"\x1b[<0;1;1M", b"\x1b[C", b"\x00\x01\x0c", b"\x1bOP"])
def test_unknown_sequences_are_ignored_as_a_whole(sent: bytes) -> None:
    assert KeyReader().feed(sent + b"q") == ["q"]


def test_an_incomplete_sequence_is_dropped() -> None:
    reader = KeyReader()
    assert reader.feed(b"\x1b[1;") == []
    assert reader.flush() == []
    assert reader.feed(b"q") == ["q"]
