"""Bytes from a terminal as keys."""

from __future__ import annotations

import codecs
import re
from enum import Enum, auto


class Key(Enum):
    UP = auto()
    DOWN = auto()
    PAGE_UP = auto()
    PAGE_DOWN = auto()
    HOME = auto()
    END = auto()
    ENTER = auto()
    ESCAPE = auto()
    BACKSPACE = auto()


ESCAPE = "\x1b"
# Shift and Ctrl change the numbers of a sequence; they are ignored.
_LETTERS = {"A": Key.UP, "B": Key.DOWN, "H": Key.HOME, "F": Key.END}
_NUMBERS = {
    "1": Key.HOME,
    "4": Key.END,
    "5": Key.PAGE_UP,
    "6": Key.PAGE_DOWN,
    "7": Key.HOME,
    "8": Key.END,
}
_CONTROLS = {"\r": Key.ENTER, "\n": Key.ENTER, "\x7f": Key.BACKSPACE, "\b": Key.BACKSPACE}
_SEQUENCE = re.compile(r"\x1b(?:\[(?P<numbers>[0-?]*)[ -/]*(?P<final>[@-~])|O(?P<letter>[ -~]))")
_PARTIAL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?")


class KeyReader:
    """Accepts bytes in any pieces: a piece may end inside a character or a sequence."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    @property
    def is_pending(self) -> bool:
        """Whether the bytes so far may be Escape or the beginning of another key."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[Key | str]:
        """Keys and printable characters; all other bytes are ignored."""
        text = self._pending + self._decoder.decode(data)
        self._pending = ""
        keys: list[Key | str | None] = []
        while text:
            if match := _SEQUENCE.match(text):
                keys.append(_key_from_sequence(match))
                text = text[match.end() :]
            elif _PARTIAL_SEQUENCE.fullmatch(text):
                self._pending, text = text, ""
            else:
                keys.append(_key_from_char(text[0]))
                text = text[1:]
        return [key for key in keys if key is not None]

    def flush(self) -> list[Key | str]:
        """The key that the pending bytes are, if no further bytes arrive."""
        pending, self._pending = self._pending, ""
        return [Key.ESCAPE] if pending == ESCAPE else []


def _key_from_sequence(match: re.Match[str]) -> Key | None:
    if match["final"] == "~":
        return _NUMBERS.get(match["numbers"].partition(";")[0])
    return _LETTERS.get(match["final"] or match["letter"])


def _key_from_char(char: str) -> Key | str | None:
    if char == ESCAPE:
        return Key.ESCAPE
    return _CONTROLS.get(char, char if char.isprintable() else None)
