"""A bare Debian of this machine's release, as a tarball and unpacked: a stand-in for a base image and a new machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.servers.provision import cache_folder, program, skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUILD_TIMEOUT_S = 600
PRINT_VERSION = ("python3", "-c", "import platform; print(platform.python_version())")
_ROOT = Path(__file__).parents[2]
_SDISTS = "nkeys,oncalendar"  # packages that have no wheel
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SOURCES = (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.sources")))


def bare_debian(*packages: str) -> Path:
    """The tarball of a minimal system with these packages. It is built once and kept in the cache of the tests."""
    mmdebstrap = program("mmdebstrap", "mmdebstrap")
    sources = [str(path) for path in _SOURCES if path.exists()]
    if not sources:
        skip_or_fail("no list of Debian's packages in /etc/apt: a bare Debian cannot be built")
    names = ",".join(sorted(packages))
    tarball = f"debian-{_release()}-{hashlib.sha256(names.encode()).hexdigest()[:12]}.tar"
    with cache_folder("debian") as folder:
        if not (folder / tarball).exists():
            options = ["--quiet", "--variant=minbase", *([f"--include={names}"] if names else [])]
            partial = folder / f"partial-{tarball}"
            _build([mmdebstrap, *options, _release(), str(partial), *sources])
            partial.rename(folder / tarball)
        return folder / tarball


def _release() -> str:
    for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
        name, _, value = line.partition("=")
        if name == "VERSION_CODENAME":
            return value.strip('"')
    pytest.skip("this machine does not run a release of Debian")


def _build(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode:
        skip_or_fail(f"{command[0]} failed: {done.stderr[-500:]}")


def download_packages(folder: Path, version: str, *pins: str, more: Sequence[str] = ()) -> None:
    """The pinned packages of requirements/ for this version of Python: what is tested needs no index.

    `more` are further packages, in the versions of requirements/dev.txt.
    """
    python = _ROOT / ".uv" / "bin" / "python"
    if not python.exists():
        skip_or_fail("no .uv: run make setup")
    folder.mkdir(exist_ok=True)
    pinned = folder / "pins.txt"
    files = [str(_ROOT / "requirements" / f"{name}.txt") for name in pins]
    select = ["--generate-hashes", "--python-version", version, "--python-platform", "linux"]
    download = ["--no-deps", "--require-hashes", "--only-binary=:all:", f"--no-binary={_SDISTS}"]
    download += ["--python-version", version.rpartition(".")[0], "--dest", str(folder), "--requirement", str(pinned)]
    named = folder / "more.in"
    named.write_text("\n".join(more), encoding="utf-8")
    select += ["--constraint", str(_ROOT / "requirements" / "dev.txt")] if more else ["--no-deps"]
    uv = str(python.with_name("uv"))
    _build([uv, "pip", "compile", "--quiet", *select, *files, str(named), "--output-file", str(pinned)])
    _build([str(python), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *download])


class Machine:
    """A bare Debian unpacked into a folder. Commands run in it by chroot, with a /proc that ends with them."""

    def __init__(self, tarball: Path, folder: Path) -> None:
        self.root = folder / "machine"
        self.root.mkdir()
        folder.chmod(0o755)
        _build(["tar", "--extract", "--numeric-owner", f"--file={tarball}", f"--directory={self.root}"])

    def command(self, *command: str, user: str = "root", environ: Mapping[str, str] | None = None) -> list[str]:
        """What runs the command. It becomes the process that is started, so that signals reach it."""
        enter = f'mount -t proc proc {self.root}/proc && exec "$@"'
        chroot = ["chroot", f"--userspec={user}:", str(self.root), "/usr/bin/env", "--ignore-environment"]
        variables = {"PATH": _PATH, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", **(environ or {})}
        assignments = [f"{name}={value}" for name, value in variables.items()]
        return ["unshare", "--mount", "sh", "-c", enter, "sh", *chroot, *assignments, *command]

    def run(self, *command: str, user: str = "root", environ: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            self.command(*command, user=user, environ=environ),
            capture_output=True,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout

    def path(self, name: str) -> Path:
        return self.root / name.lstrip("/")

    def files(self) -> set[str]:
        """All files and folders, by their absolute names in it."""
        walked = ((folder.removeprefix(str(self.root)), *names) for folder, *names in os.walk(self.root))
        return {f"{folder}/{name}" for folder, folders, files in walked for name in (*folders, *files)}
