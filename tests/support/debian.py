"""A bare Debian of this machine's release as a tarball: the stand-in for a new machine and for a base image."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.support.servers.provision import cache_folder, program, skip_or_fail

BUILD_TIMEOUT_S = 600
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
        skip_or_fail(f"mmdebstrap failed: {done.stderr[-500:]}")
