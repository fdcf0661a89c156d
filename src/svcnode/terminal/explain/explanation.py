"""What an explanation is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from svcnode.core.model import Health, Status

INDENT = "  "


class Section(NamedTuple):
    title: str
    sentences: tuple[str, ...]


class Explanation(NamedTuple):
    """Every text is one line, with nothing in it that steers a terminal."""

    finding: Status | Health
    head: str
    about: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def lines(self) -> list[str]:
        lines = [self.head, *(INDENT + one for one in self.about)]
        for title, sentences in self.sections:
            lines += ["", title, *(INDENT + one for one in sentences)]
        return lines
