"""From what a terminal sends to the keys that were pressed."""

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
# What is meant by a sequence does not depend on whether Shift or Ctrl was held; those are its numbers.
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
    """Bytes may come in any pieces: in the middle of a character, or of a sequence."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._pending = ""

    @property
    def is_pending(self) -> bool:
        """So far, it may be Escape, or the beginning of another key."""
        return bool(self._pending)

    def feed(self, data: bytes) -> list[Key | str]:
        """Characters are themselves; what has no meaning here is left out."""
        text = self._pending + self._decoder.decode(data)
        self._pending = ""
        keys: list[Key | str | None] = []
        while text:
            if found := _SEQUENCE.match(text):
                keys.append(_key_from_sequence(found))
                text = text[found.end() :]
            elif _PARTIAL_SEQUENCE.fullmatch(text):
                self._pending, text = text, ""
            else:
                keys.append(_key_from_char(text[0]))
                text = text[1:]
        return [key for key in keys if key is not None]

    def flush(self) -> list[Key | str]:
        """Nothing more has come: what came so far was all."""
        rest, self._pending = self._pending, ""
        return [Key.ESCAPE] if rest == ESCAPE else []


def _key_from_sequence(found: re.Match[str]) -> Key | None:
    if found["final"] == "~":
        return _NUMBERS.get(found["numbers"].partition(";")[0])
    return _LETTERS.get(found["final"] or found["letter"])


def _key_from_char(char: str) -> Key | str | None:
    if char == ESCAPE:
        return Key.ESCAPE
    return _CONTROLS.get(char, char if char.isprintable() else None)
