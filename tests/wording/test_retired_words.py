"""Retired words stay out of names, comments, docstrings, messages and documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORDS = Path(__file__).with_name("retired_words.txt")
FOLDERS = ("src", "tests", "docs", "benchmarks", "examples", "deploy", "scripts", ".ci")
SUFFIXES = {".py", ".md", ".js", ".css", ".html", ".toml", ".json", ".yml", ".yaml", ".txt", ".sh", ".svg", ""}
# "nobody" is a Unix user; `retired_words.txt` holds the words themselves.
ALLOWED = re.compile(r"[\"'`]nobody[\"'`]|\bNOBODY\b|nobody:|user nobody")
NAME_PARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_+")


def retired() -> re.Pattern[str]:
    lines = (line.strip() for line in WORDS.read_text(encoding="utf-8").splitlines())
    words = [line.replace(" ", r"(?:\s|#|\*)+") for line in lines if line and not line.startswith("#")]
    return re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)


def checked_files() -> list[Path]:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*")]
    files += [*ROOT.glob("*.md"), ROOT / "Makefile", ROOT / "pyproject.toml"]
    return sorted(
        file
        for file in files
        if file.is_file() and file.suffix in SUFFIXES and "__pycache__" not in file.parts and file != WORDS
    )


def found_in(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Line number and retired word of each use."""
    plain = NAME_PARTS.sub(" ", ALLOWED.sub("", text))
    return [f"{plain.count(chr(10), 0, hit.start()) + 1}: {hit.group()!r}" for hit in pattern.finditer(plain)]


@pytest.mark.parametrize(
    "text",
    [
        "the service was told",
        "def look_once(self): ...",
        "class LookOnce: ...",
        "NEXT_LOOK_S = 1",
        "a sign of\nlife",
        "# a sign of\n# life",
        "Nobody listens",
    ],
)
def test_a_retired_word_is_found_in_prose_and_names(text: str) -> None:
    assert found_in(text, retired())


@pytest.mark.parametrize("text", ["look up the host", "a lookup", "it looks like JSON", "recommend", 'user = "nobody"'])
def test_ordinary_words_are_allowed(text: str) -> None:
    assert found_in(text, retired()) == []


def test_no_retired_word_is_used() -> None:
    if not (ROOT / "docs").exists():
        pytest.skip("the documentation is not part of the wheel")
    pattern = retired()
    found = {
        str(file.relative_to(ROOT)): hits
        for file in checked_files()
        if file != Path(__file__) and (hits := found_in(file.read_text(encoding="utf-8", errors="ignore"), pattern))
    }
    assert found == {}
