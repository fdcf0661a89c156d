"""The terminal: alternate screen, drawing, and restoring its settings."""

from __future__ import annotations

import codecs
import os
import select
import sys
import termios
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Self

from rich.cells import cell_len
from rich.console import Console

from svcnode.cli.terminal.render import Symbols
from svcnode.core.errors import InvalidValueError
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

# The alternate screen, no cursor, no line wrap.
_ENTER_SCREEN = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_RESTORE_SCREEN = "\x1b[0m\x1b[H\x1b[2J\x1b[?7h\x1b[?25h\x1b[?1049l"
_CLEAR = "\x1b[H\x1b[2J"
_MOVE_TO_LINE = "\x1b[{};1H"
_CLEAR_TO_LINE_END = "\x1b[K"
_UNUSABLE_TERMS = ("", "dumb", "unknown")


class Screen:
    """In use for the duration of the `with` block."""

    def __init__(self) -> None:
        if sys.stdout is None or not sys.stdout.isatty():
            raise InvalidValueError("watch needs a terminal as stdout; in a pipe or a script, use svcnode status")
        if os.environ.get("TERM", "").lower() in _UNUSABLE_TERMS:
            raise InvalidValueError(
                f'watch does not support this terminal (TERM="{os.environ.get("TERM", "")}"); use svcnode status'
            )
        self._fd = sys.stdout.fileno()
        self._encoding = sys.stdout.encoding
        self.keys_fd = _open_keys(self._fd)
        self.symbols = Symbols.for_stream(is_terminal=True, encoding=self._encoding)
        self._settings = termios.tcgetattr(self.keys_fd)
        self._drawn_lines: list[str] = []
        self._console = Console(highlight=False, emoji=False, markup=False)

    def __enter__(self) -> Self:
        try:
            self.enter()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()
        os.close(self.keys_fd)

    def enter(self) -> None:
        settings = termios.tcgetattr(self.keys_fd)
        settings[0] &= ~termios.IXON  # Ctrl-S would block all output, and Ctrl-C with it
        settings[3] &= ~(termios.ICANON | termios.ECHO)
        settings[6][termios.VMIN], settings[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.keys_fd, termios.TCSANOW, settings)
        self._write(_ENTER_SCREEN)
        self.invalidate()

    def restore(self) -> None:
        """Works also if the terminal is closed."""
        with suppress(OSError):
            self._write(_RESTORE_SCREEN)
        with suppress(OSError, termios.error):
            termios.tcsetattr(self.keys_fd, termios.TCSANOW, self._settings)

    # ---- drawing

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, read again each time: the terminal may be resized."""
        try:
            columns, lines = os.get_terminal_size(self._fd)
        except OSError:
            return 80, 24
        return columns or 80, lines or 24  # a terminal without a size reports 0

    def invalidate(self) -> None:
        """Draw all lines the next time: the content of the screen is unknown."""
        self._drawn_lines = []

    def show(self, lines: Sequence[Text], width: int) -> None:
        """Writes only the lines that changed, at once: no flicker, little traffic."""
        rendered = [self._render(line, width) for line in lines]
        changed = [
            f"{_MOVE_TO_LINE.format(number)}{line}"
            for number, (line, before) in enumerate(zip_longest(rendered, self._drawn_lines, fillvalue=""), start=1)
            if line != before
        ]
        if changed:
            self._write(("" if self._drawn_lines else _CLEAR) + "".join(changed))
        self._drawn_lines = rendered

    def _render(self, line: Text, width: int) -> str:
        with self._console.capture() as captured:
            self._console.print(line, end="", soft_wrap=True)
        # After a full line the cursor stays on the last column, and clearing would erase its character.
        return captured.get() + (_CLEAR_TO_LINE_END if line.cell_len < width else "")

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "question_marks")
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # another program left the terminal in non-blocking mode
                select.select([], [self._fd], [])


def _question_marks(exc: UnicodeError) -> tuple[bytes, int]:
    """For characters that the encoding lacks: as many as the characters are wide."""
    assert isinstance(exc, UnicodeEncodeError)
    return b"?" * cell_len(exc.object[exc.start : exc.end]), exc.end


codecs.register_error("question_marks", _question_marks)


def _open_keys(file: int) -> int:
    """A new file descriptor for keys: stdin may be a pipe with a list of nodes."""
    try:
        if sys.stdin is not None and sys.stdin.isatty():
            return os.dup(sys.stdin.fileno())
        return os.open(os.ttyname(file), os.O_RDONLY | os.O_NOCTTY)
    except OSError as exc:
        raise InvalidValueError(f"watch cannot read keys from this terminal: {os_error_text(exc)}") from exc
