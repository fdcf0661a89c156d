"""`make release` refuses what is no release, and describes its files. The whole release is in tests/deploy."""

from __future__ import annotations

import json
import subprocess

import pytest

pytest.importorskip("scripts.release", reason="the scripts are not part of the wheel")

from typing import TYPE_CHECKING

from scripts.release.artefacts import differing, write_sums
from scripts.release.audit import judge
from scripts.release.tag import checked_release

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide

CHANGELOG = "# Changelog\n\n## 1.2.0 - 2026-11-16\n\n### Added\n\n- One thing.\n\n## 1.1.0 - 2026-10-01\n\n- Another.\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with all that a release needs, except the tag."""
    root = tmp_path / "repository"
    (root / "src" / "svcnode").mkdir(parents=True)
    (root / "src" / "svcnode" / "version.py").write_text('__version__ = "1.2.0"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    git(root, "init", "--quiet")
    commit(root)
    return root


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org")
    command = ["git", "-C", str(root), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "Change")


def refusal(root: Path) -> str:
    with pytest.raises(SystemExit) as caught:
        checked_release(root)
    text = str(caught.value)
    assert text.startswith("make")
    assert "\n" not in text
    return text


def test_a_tagged_commit_with_its_version_and_changes_is_released(repository: Path) -> None:
    git(repository, "tag", "v1.2.0")
    release = checked_release(repository)
    assert release.version == "1.2.0"
    assert release.commit_time == git(repository, "log", "-1", "--format=%ct")
    assert release.notes == "### Added\n\n- One thing.\n"


def test_a_commit_without_a_tag_or_with_that_of_another_version_is_refused(repository: Path) -> None:
    assert "git tag -a v1.2.0" in refusal(repository)
    git(repository, "tag", "v1.3.0")
    text = refusal(repository)
    assert all(part in text for part in ("v1.3.0", "1.2.0", "src/svcnode/version.py", "git tag -d v1.3.0"))


@pytest.mark.parametrize("heading", ["## Unreleased", "## 1.3.0 - 2026-12-01"])
def test_a_changelog_without_the_version_is_refused(repository: Path, heading: str) -> None:
    (repository / "CHANGELOG.md").write_text(f"# Changelog\n\n{heading}\n\n- News.\n")
    commit(repository)
    git(repository, "tag", "v1.2.0")
    assert "## 1.2.0 - YYYY-MM-DD" in refusal(repository)


@pytest.mark.parametrize("name", ["CHANGELOG.md", "new.txt"])
def test_a_checkout_with_changes_is_refused(repository: Path, name: str) -> None:
    git(repository, "tag", "v1.2.0")
    (repository / name).write_text("changed\n")
    assert "commit or stash" in refusal(repository)


def test_the_checksums_are_those_of_the_files(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_text(name)
    write_sums(tmp_path)
    write_sums(tmp_path)  # does not sum itself
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "a.tar.gz: OK\nb.whl: OK\n"


def test_two_builds_are_compared_file_by_file(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        (folder / "same").write_text("same")
        (folder / "other").write_text(folder.name)
    (second / "new").touch()
    assert differing(first, second) == ["new", "other"]


# ---- make audit

PINS = {"redis": "8.0", "rich": "15.0"}


def report(*packages: dict[str, object]) -> str:
    return json.dumps({"dependencies": packages, "fixes": []})


def audited(name: str, *ids: str) -> dict[str, object]:
    return {"name": name, "version": PINS[name], "vulns": [{"id": id_} for id_ in ids]}


def skipped(name: str) -> dict[str, object]:
    return {"name": name, "skip_reason": "not found"}


@pytest.mark.parametrize("text", ["", report(), report(skipped("redis"), skipped("rich"))])
def test_an_audit_without_a_database_is_no_success_and_lists_the_versions(text: str) -> None:
    code, lines = judge(text, PINS)
    assert code == 3
    assert [line.split()[-2:] for line in lines[:-1]] == [["redis", "8.0"], ["rich", "15.0"]]
    assert "nothing was audited" in lines[-1]


def test_an_audit_finds_vulnerabilities_or_none_or_not_all_packages() -> None:
    code, lines = judge(report(audited("redis"), skipped("rich")), PINS)
    assert (code, len(lines)) == (3, 2)
    assert "rich 15.0" in lines[0]
    assert judge(report(audited("redis"), audited("rich")), PINS)[0] == 0
    code, lines = judge(report(audited("redis", "CVE-1"), audited("rich")), PINS)
    assert code == 1
    assert "CVE-1" in lines[0]
