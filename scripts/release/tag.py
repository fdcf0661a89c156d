"""A release is a commit whose tag, version and newest section of CHANGELOG.md agree."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from scripts.release.commands import check_clone, git

if TYPE_CHECKING:
    from pathlib import Path

_HEADING = re.compile(r"^## \[?(?P<version>\S+?)\]?(?: - (?P<date>\d{4}-\d\d-\d\d))?$", re.MULTILINE)


class Section(NamedTuple):
    version: str  # or "Unreleased"
    date: str  # such as 2026-11-16; empty if it has none
    text: str


class Release(NamedTuple):
    version: str
    commit_time: str  # in seconds since 1970: the SOURCE_DATE_EPOCH of all builds
    notes: str


def checked_release(root: Path) -> Release:
    """Ends the program with one line if this checkout cannot be released."""
    version = _version(root)
    check_clone(root)
    if git(root, "status", "--porcelain"):
        _refuse("the checkout has changes (see git status): commit or stash them")
    tags = [tag for tag in git(root, "tag", "--points-at", "HEAD").split() if re.match(r"v\d", tag)]
    if not tags:
        _refuse(f"this commit has no tag: git tag -a v{version} -m v{version}, or check out a tag")
    if f"v{version}" not in tags:
        _refuse(
            f"the tag is {tags[0]}, and src/svcnode/version.py has {version}: "
            f"git tag -d {tags[0]}, correct the version, commit, and tag again"
        )
    section = newest_section((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if section.version != version or not section.date:
        _refuse(
            f'the newest section of CHANGELOG.md is "{section.version}" and must be "## {version} - YYYY-MM-DD": '
            f"git tag -d v{version}, correct it, commit, and tag again"
        )
    return Release(version, git(root, "log", "-1", "--format=%ct"), section.text)


def newest_section(changelog: str) -> Section:
    first, *others = list(_HEADING.finditer(changelog)) or _refuse("CHANGELOG.md has no section")
    end = others[0].start() if others else len(changelog)
    return Section(first["version"], first["date"] or "", changelog[first.end() : end].strip() + "\n")


def _version(root: Path) -> str:
    text = (root / "src" / "svcnode" / "version.py").read_text(encoding="utf-8")
    found = re.search(r'__version__ = "(.+)"', text)
    return found[1] if found else _refuse("no __version__ in src/svcnode/version.py")


def _refuse(reason: str) -> NoReturn:
    sys.exit(f"make release: {reason}")
