"""svcnode.pyz unpacks its packages safely, and says in one line why it cannot. The real file is in tests/deploy."""

from __future__ import annotations

import fcntl
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import pytest

pytest.importorskip("scripts.release", reason="the scripts are not part of the wheel")

from scripts.release import pyz
from scripts.release.pyz_unpack import ABI

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.wide

INSTALL = Path(__file__).parents[2] / "docs" / "install.md"

# Stands for svcnode: prints its folder and its arguments.
FAKE = {
    "svcnode/__init__.py": b"",
    "svcnode/cli.py": b"import sys\ndef main():\n    print(__file__, *sys.argv[1:])\n    return 7\n",
}
COMPILED = {"svcnode/data.txt": ABI.encode()}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pyz") / "svcnode.pyz"
    pyz.write(path, {ABI: FAKE | COMPILED, "cpython-399-other": FAKE})
    return path


def start(file: Path, home: Path, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(file), "--version"],
        env={"HOME": str(home), **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(file: Path, home: Path, environ: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    with start(file, home, environ) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def error_of(file: Path, home: Path, environ: Mapping[str, str] | None = None) -> str:
    """The one line of a start that fails."""
    code, out, err = run(file, home, environ)
    assert (code, out, err.count("\n")) == (1, "", 1)
    return err


def test_the_packages_are_unpacked_once_into_a_folder_of_this_user_only(file: Path, home: Path) -> None:
    cache = home / ".cache" / "svcnode-pyz"
    (cache / "partial-1" / "svcnode").mkdir(mode=0o700, parents=True)  # left by a killed process
    (cache / "notes").mkdir()
    cache.chmod(0o700)
    code, out, err = run(file, home)
    (folder,) = (each for each in cache.iterdir() if each.name != "notes")
    assert (code, out, err) == (7, f"{folder}/svcnode/cli.py --version\n", "")
    assert {path.stat().st_mode & 0o777 for path in (cache, folder)} == {0o700}
    assert (folder / "svcnode" / "data.txt").read_text() == ABI
    (folder / "svcnode" / "cli.py").write_text("def main():\n    return 8\n")
    age(folder, days=100)
    assert run(file, home)[0] == 8
    assert folder.stat().st_mtime > time.time() - 86400, "each start counts as use"


def test_the_file_is_a_command_when_it_is_installed_as_documented(file: Path, home: Path, tmp_path: Path) -> None:
    (command,) = re.findall(r"`(install -D svcnode\.pyz /\S+)`", INSTALL.read_text())
    target = command.split()[-1]
    subprocess.run(command.replace(" /", f" {tmp_path}/").split(), cwd=file.parent, check=True)
    environ = {"HOME": str(home), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run([f"{tmp_path}{target}", "serve"], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()[-1]) == (7, "serve"), done.stderr


def test_another_folder_can_be_chosen(file: Path, home: Path, tmp_path: Path) -> None:
    chosen = tmp_path / "chosen"
    chosen.mkdir(mode=0o700)
    code, out, _ = run(file, home, {"XDG_CACHE_HOME": str(chosen)})
    assert (code, out.startswith(f"{chosen}/")) == (7, True)
    assert not (home / ".cache").exists()


def test_processes_that_start_at_once_share_one_folder(file: Path, home: Path) -> None:
    processes = [start(file, home) for _ in range(6)]
    outputs = {process.communicate(timeout=60) for process in processes}
    assert len(outputs) == 1
    assert [process.returncode for process in processes] == [7] * 6
    assert len(list((home / ".cache" / "svcnode-pyz").iterdir())) == 1


def age(folder: Path, days: float) -> None:
    then = time.time() - days * 86400
    os.utime(folder, (then, then))


def other_version(home: Path, days: float) -> Path:
    """A folder of another version that was used last so many days ago."""
    folder = home / ".cache" / "svcnode-pyz" / ("0" * 32)
    folder.mkdir(mode=0o700, parents=True)
    folder.parent.chmod(0o700)
    (folder / "svcnode").mkdir()
    age(folder, days)
    return folder


@pytest.mark.parametrize(("days", "is_locked", "stays"), [(29, False, True), (31, False, False), (100, True, True)])
def test_another_version_is_removed_when_it_was_not_used_for_30_days(
    file: Path, home: Path, days: float, is_locked: bool, stays: bool
) -> None:
    other = other_version(home, days)
    descriptor = os.open(other, os.O_RDONLY)
    try:
        if is_locked:
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # as each process does
        assert run(file, home)[0] == 7
        assert other.exists() == stays
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("mode", [0o770, 0o707, None])
def test_a_folder_that_others_can_write_or_a_link_is_not_used(file: Path, home: Path, mode: int | None) -> None:
    (home / "elsewhere").mkdir(mode=0o700)
    for folder in (home / "svcnode-pyz", home / f"svcnode-pyz-{os.geteuid()}"):
        if mode is None:
            folder.symlink_to(home / "elsewhere")
        else:
            folder.mkdir()
            folder.chmod(mode)
    assert "XDG_CACHE_HOME" in error_of(file, home, {"XDG_CACHE_HOME": str(home), "TMPDIR": str(home)})


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_a_damaged_file_is_named_and_leaves_nothing(file: Path, tmp_path: Path, home: Path, share: float) -> None:
    damaged = tmp_path / "damaged.pyz"
    content = bytearray(file.read_bytes())
    with ZipFile(file) as archive:
        part = archive.getinfo("any.zip")
    at = part.header_offset + int(part.file_size * share)
    content[at : at + 40] = bytes(byte ^ 0xFF for byte in content[at : at + 40])
    damaged.write_bytes(content)
    assert "damaged" in error_of(damaged, home)
    assert list((home / ".cache" / "svcnode-pyz").iterdir()) == []


@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_an_incomplete_file_is_named_in_one_line(tmp_path: Path, home: Path, share: float) -> None:
    incomplete = tmp_path / "svcnode.pyz"
    pyz.write(incomplete, {ABI: FAKE | {"svcnode/data.bin": random.Random(1).randbytes(200_000)}})
    os.truncate(incomplete, int(incomplete.stat().st_size * share))
    assert "svcnode.pyz-is-incomplete" in error_of(incomplete, home)


def test_a_python_without_packages_in_the_file_is_named(tmp_path: Path, home: Path) -> None:
    other = tmp_path / "other.pyz"
    pyz.write(other, {"cpython-399-other": FAKE})
    error = error_of(other, home)
    assert ABI in error
    assert "cpython-399-other" in error
