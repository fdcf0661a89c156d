"""The terminal: taken, drawn on, and given back as it was."""

from __future__ import annotations

import os
import select
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from rich.cells import cell_len
from rich.console import Console

from svcnode.core.errors import InvalidValueError
from svcnode.core.wording import system_words
from svcnode.terminal.drawing import Symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

# The alternate screen, no cursor, and what is too long for a line is cut instead of going on in the next.
_TAKE = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
_GIVE_BACK = "\x1b[0m\x1b[H\x1b[2J\x1b[?7h\x1b[?25h\x1b[?1049l"
_CLEAR = "\x1b[H\x1b[2J"
_TO_LINE = "\x1b[{};1H"
_REST_OF_LINE = "\x1b[K"
_NO_TERMINALS = ("", "dumb", "unknown")


class Screen:
    """Ours for as long as the `with` block runs."""

    def __init__(self) -> None:
        if sys.stdout is None or not sys.stdout.isatty():
            raise InvalidValueError("watch needs a terminal to draw on; elsewhere, use svcnode status")
        if os.environ.get("TERM", "").lower() in _NO_TERMINALS:
            raise InvalidValueError(
                f'watch cannot draw on this terminal (TERM="{os.environ.get("TERM", "")}"); use svcnode status'
            )
        self._file = sys.stdout.fileno()
        self._encoding = sys.stdout.encoding
        self.keys_file, self._is_opened = _keys(self._file)
        self.symbols = Symbols.for_stream(is_terminal=True, encoding=self._encoding)
        self._settings = termios.tcgetattr(self.keys_file)
        self._shown: list[str] = []
        self._console = Console(highlight=False, emoji=False, markup=False)

    def __enter__(self) -> Self:
        try:
            self.take()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.give_back()
        if self._is_opened:
            os.close(self.keys_file)

    def take(self) -> None:
        settings = termios.tcgetattr(self.keys_file)
        settings[0] &= ~termios.IXON  # Ctrl-S would hold us up, and then nobody could stop us
        settings[3] &= ~(termios.ICANON | termios.ECHO)
        settings[6][termios.VMIN], settings[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.keys_file, termios.TCSANOW, settings)
        self._write(_TAKE)
        self._shown = []

    def give_back(self) -> None:
        """Also when the terminal is no more."""
        with suppress(OSError):
            self._write(_GIVE_BACK)
        with suppress(OSError, termios.error):
            termios.tcsetattr(self.keys_file, termios.TCSANOW, self._settings)

    # ---- drawing

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines. Asked anew each time: a terminal may be resized."""
        try:
            columns, lines = os.get_terminal_size(self._file)
        except OSError:
            return 80, 24
        return columns or 80, lines or 24  # one that has no size says 0

    def forget(self) -> None:
        """What is on the screen may be anything now."""
        self._write(_CLEAR)
        self._shown = []

    def show(self, lines: Sequence[Text], width: int) -> None:
        """Only lines that have changed are written, in one go: nothing flickers, and slow connections suffice."""
        rendered = [self._rendered(line, width) for line in lines]
        known = [*self._shown, *[""] * (len(rendered) - len(self._shown))]
        changed = [
            f"{_TO_LINE.format(number)}{line}"
            for number, (line, before) in enumerate(zip(rendered, known, strict=False), start=1)
            if line != before
        ]
        if changed:
            self._write("".join(changed))
        self._shown = rendered

    def _rendered(self, line: Text, width: int) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        # In the last column, the rest of the line would begin with what stands there.
        return captured.get() + (_REST_OF_LINE if line.cell_len < width else "")

    def _write(self, text: str) -> None:
        data = self._spelled(text)
        while data:
            try:
                data = data[os.write(self._file, data) :]
            except BlockingIOError:  # another program has made the terminal so, and left it so
                select.select([], [self._file], [])

    def _spelled(self, text: str) -> bytes:
        """What the terminal cannot spell must not move what stands beside it."""
        try:
            return text.encode(self._encoding)
        except UnicodeEncodeError:
            return b"".join(_spelled(char, self._encoding) for char in text)


def _spelled(char: str, encoding: str) -> bytes:
    try:
        return char.encode(encoding)
    except UnicodeEncodeError:
        return b"?" * cell_len(char)


def _keys(file: int) -> tuple[int, bool]:
    """Where keys are read, and whether it was opened for that: what is piped into stdin may be a list of nodes."""
    if sys.stdin is not None and sys.stdin.isatty():
        return sys.stdin.fileno(), False
    try:
        return os.open(os.ttyname(file), os.O_RDONLY | os.O_NOCTTY), True
    except OSError as exc:
        raise InvalidValueError(f"watch cannot read keys from this terminal: {system_words(exc)}") from exc
