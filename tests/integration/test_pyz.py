"""svcnode.pyz unpacks its packages safely, and says in one line why it cannot. The real file is in tests/deploy."""

from __future__ import annotations

import ast
import fcntl
import os
import random
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

MAIN = Path(pyz.__file__).with_name("pyz_main.py")
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
        out, err = process.communicate(timeout=30)
    return process.returncode, out, err


def error_of(file: Path, home: Path, environ: Mapping[str, str] | None = None) -> str:
    """The one line of a start that fails."""
    code, out, err = run(file, home, environ)
    assert (code, out, err.count("\n")) == (1, "", 1)
    return err


def test_the_packages_are_unpacked_into_a_folder_of_this_user_only(file: Path, home: Path) -> None:
    code, out, err = run(file, home)
    cache = home / ".cache" / "svcnode-pyz"
    (folder,) = cache.iterdir()
    assert (code, out, err) == (7, f"{folder}/svcnode/cli.py version\n", "")
    assert {path.stat().st_mode & 0o777 for path in (cache, folder)} == {0o700}
    assert (folder / "svcnode" / "data.txt").read_text() == ABI


def test_a_second_start_unpacks_nothing(file: Path, home: Path) -> None:
    run(file, home)
    (program,) = home.rglob("cli.py")
    program.write_text("def main():\n    return 8\n")
    assert run(file, home)[0] == 8


def test_processes_that_start_at_once_share_one_folder(file: Path, home: Path) -> None:
    processes = [start(file, home) for _ in range(6)]
    outputs = {process.communicate(timeout=60) for process in processes}
    assert len(outputs) == 1
    assert [process.returncode for process in processes] == [7] * 6
    assert len(list((home / ".cache" / "svcnode-pyz").iterdir())) == 1


def test_what_a_killed_process_has_left_is_removed(file: Path, home: Path) -> None:
    cache = home / ".cache" / "svcnode-pyz"
    (cache / "partial-1" / "svcnode").mkdir(mode=0o700, parents=True)
    cache.chmod(0o700)
    assert run(file, home)[0] == 7
    assert [path.name for path in cache.glob("partial-*")] == []


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


@pytest.mark.parametrize(("days", "stays"), [(29, True), (31, False)])
def test_another_version_is_removed_when_it_was_not_used_for_30_days(
    file: Path, home: Path, days: float, stays: bool
) -> None:
    other = other_version(home, days)
    assert run(file, home)[0] == 7
    assert other.exists() == stays
    assert len(list(other.parent.iterdir())) == 1 + stays


def test_a_version_that_runs_for_months_is_not_removed(file: Path, home: Path) -> None:
    other = other_version(home, days=100)
    descriptor = os.open(other, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)  # as each process does
        assert run(file, home)[0] == 7
        assert other.exists()
    finally:
        os.close(descriptor)


def test_a_running_process_holds_the_lock_of_its_folder(tmp_path: Path, home: Path) -> None:
    locked = tmp_path / "locked.pyz"
    code = (
        b"import fcntl, os, sys\ndef main():\n    fcntl.flock(os.open(sys.path[0], 0), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    )
    pyz.write(locked, {ABI: FAKE | {"svcnode/cli.py": code}})
    assert "BlockingIOError" in run(locked, home)[2]


def test_each_start_counts_as_use(file: Path, home: Path) -> None:
    run(file, home)
    (folder,) = (home / ".cache" / "svcnode-pyz").iterdir()
    age(folder, days=100)
    run(file, home)
    assert folder.stat().st_mtime > time.time() - 86400


def test_other_files_in_the_cache_stay(file: Path, home: Path) -> None:
    cache = other_version(home, days=1).parent
    kept = [cache / name for name in ("notes", "f" * 31)]
    for folder in kept:
        folder.mkdir()
        age(folder, days=100)
    assert run(file, home)[0] == 7
    assert all(folder.exists() for folder in kept)


def test_only_this_user_can_write_to_a_cache_that_is_created_without_a_umask(file: Path, home: Path) -> None:
    before = os.umask(0)
    try:
        code, out, _ = run(file, home)
    finally:
        os.umask(before)
    cache = home / ".cache"
    assert (code, out.startswith(f"{cache}/")) == (7, True)
    assert cache.stat().st_mode & 0o777 == 0o700


def test_a_home_that_cannot_be_written_is_replaced_by_the_folder_for_temporary_files(file: Path, home: Path) -> None:
    code, out, _ = run(file, Path("/proc"), {"TMPDIR": str(home)})
    assert (code, out.startswith(f"{home}/svcnode-pyz-{os.geteuid()}/")) == (7, True)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_can_write_is_not_used(file: Path, home: Path, mode: int) -> None:
    for folder in (home / "svcnode-pyz", home / f"svcnode-pyz-{os.geteuid()}"):
        folder.mkdir()
        folder.chmod(mode)
    assert "XDG_CACHE_HOME" in error_of(file, home, {"XDG_CACHE_HOME": str(home), "TMPDIR": str(home)})


def test_a_link_to_a_folder_is_not_used(file: Path, home: Path) -> None:
    (home / "elsewhere").mkdir(mode=0o700)
    for name in ("svcnode-pyz", f"svcnode-pyz-{os.geteuid()}"):
        (home / name).symlink_to(home / "elsewhere")
    assert "XDG_CACHE_HOME" in error_of(file, home, {"XDG_CACHE_HOME": str(home), "TMPDIR": str(home)})


def test_a_folder_that_others_can_replace_is_not_used(file: Path, home: Path) -> None:
    home.chmod(0o777)
    assert str(home) in error_of(file, home, {"TMPDIR": str(home)})
    home.chmod(0o1777)  # as /tmp
    assert run(file, home, {"TMPDIR": str(home)})[0] == 7


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


def test_a_file_without_its_last_bytes_is_named_in_one_line(file: Path, tmp_path: Path, home: Path) -> None:
    """Python finds the end of an inner zip file, which has no program."""
    incomplete = tmp_path / "svcnode.pyz"
    incomplete.write_bytes(file.read_bytes()[:-300])
    assert "svcnode.pyz" in error_of(incomplete, home)


def test_a_full_disk_is_named_with_the_folder_and_leaves_nothing(file: Path, home: Path) -> None:
    if not mounted(home):
        pytest.skip("needs root, to mount a small file system")
    try:
        (home / "fill").write_bytes(bytes(os.statvfs(home).f_bavail * os.statvfs(home).f_frsize - 4096))
        error = error_of(file, home)
        assert str(home) in error
        assert "XDG_CACHE_HOME" in error
        assert list((home / ".cache" / "svcnode-pyz").iterdir()) == []
    finally:
        subprocess.run(["umount", home], check=True)


def mounted(folder: Path) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(folder)]
    return os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_a_python_without_packages_in_the_file_is_named(tmp_path: Path, home: Path) -> None:
    other = tmp_path / "other.pyz"
    pyz.write(other, {"cpython-399-other": FAKE})
    error = error_of(other, home)
    assert ABI in error
    assert "cpython-399-other" in error


def test_an_old_python_is_named(file: Path) -> None:
    code = f"import runpy, sys; sys.version_info = (3, 9, 2); runpy.run_path({str(file)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert {"3.11", "3.9"} <= set(done.stderr.replace(":", " ").split())


def test_an_old_python_can_parse_the_first_module() -> None:
    new = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef, ast.FunctionDef)
    assert not [node for node in ast.walk(ast.parse(MAIN.read_text())) if isinstance(node, new)]


def test_the_same_packages_give_the_same_bytes(file: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.pyz"
    pyz.write(again, {ABI: dict(reversed([*FAKE.items(), *COMPILED.items()])), "cpython-399-other": FAKE})
    assert again.read_bytes() == file.read_bytes()
    assert os.access(again, os.X_OK)
