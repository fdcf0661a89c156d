"""`make release-check`: the wheel works without the repository, and the sdist is the repository.

The wheel is installed into an empty virtual environment, as docs/install.md says. The commands come from README, from
docs/install.md and, for `make run`, from the Makefile, so that a page with a wrong command fails here.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.release.artefacts import build_sdist_and_wheel
from scripts.release.commands import ROOT, check_clone, clean_environ, git, run

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTALL = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:8420"  # in the pages; a free port is used here
START_TIMEOUT_S = 30
# Runs until it is interrupted, so only its help is printed.
INTERACTIVE = {"serve", "watch"}


def main() -> None:
    check_clone(ROOT)
    with tempfile.TemporaryDirectory(prefix="svcnode-check-") as name:
        folder = Path(name)
        build_sdist_and_wheel(folder / "dist")
        check_sdist(folder)
        installed = install(folder)
        check_readme(installed, folder)
        install(folder, extra="[all]")
        check_configuration(installed, folder)
    print("release-check: passed")


# ---- the sdist


def check_sdist(folder: Path) -> None:
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / sdist.name.removesuffix(".tar.gz")
    files = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    tracked = set(git(ROOT, "ls-files", "-z").strip("\0").split("\0"))
    if files != tracked | {"PKG-INFO"}:
        fail(f"the sdist is not the repository: {', '.join(sorted(files ^ tracked))}")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "direct", ROOT)
    (direct,) = (folder / "direct").glob("*.whl")
    if direct.read_bytes() != (folder / "dist" / direct.name).read_bytes():
        fail("the sdist and the repository build different wheels")
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only", "tests", cwd=unpacked)
    print("sdist: all files of the repository; builds the same wheel; its tests can be collected")


# ---- the wheel


def install(folder: Path, extra: str = "") -> Path:
    """By the commands of docs/install.md, and return the folder of the programs."""
    (block,) = re.findall(r"^```console\n([^`]*?\.whl[^`]*)^```$", INSTALL, re.MULTILINE)
    environment = folder / "environment"
    for line in block.replace("/opt/svcnode", str(environment)).splitlines():
        command = shlex.split(line, comments=True)
        if command[0] == "make":
            continue  # builds the wheel
        run(*(part.replace("[all]", extra) for part in command), cwd=folder)
    location = run(environment / "bin" / "python", "-c", "import svcnode; print(svcnode.__file__)", cwd=folder)
    if not location.startswith(str(environment)):
        fail(f"svcnode is imported from {location.strip()}, not from the wheel")
    print(f"wheel{extra}: installed by the commands of docs/install.md")
    return environment / "bin"


def check_readme(installed: Path, folder: Path) -> None:
    for command in re.findall(r"^\$ (curl .*)\n(.*)$", README, re.MULTILINE) or fail("README has no example of curl"):
        with serving(installed, folder) as address:
            check_output(*command, address=address)
            for line in dict.fromkeys(re.findall(r"`(svcnode [a-z-]+)`", README)):
                run_mentioned(line, installed, folder, address)


@contextmanager
def serving(installed: Path, folder: Path) -> Iterator[str]:
    """Run what `make run` runs, and yield its address when it is healthy."""
    recipe = re.search(r"^run:.*\n\t\$\(BIN\)/(.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    program, *arguments = shlex.split(recipe[1]) if recipe else fail("the Makefile has no recipe of make run")
    address = free_address()
    environ = environ_in(folder) | {"SVCNODE_SERVER_LISTEN": address}
    with subprocess.Popen(
        [installed / program, *arguments], cwd=folder, env=environ, stderr=subprocess.PIPE
    ) as process:
        try:
            wait_for_health(installed, folder, address)
            yield address
        finally:
            process.terminate()


def wait_for_health(installed: Path, folder: Path, address: str) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    command = [installed / "svcnode", "status", f"http://{address}"]
    while subprocess.run(command, cwd=folder, env=environ_in(folder), capture_output=True, check=False).returncode:
        if time.monotonic() > deadline_s:
            fail(f"the node is not healthy after {START_TIMEOUT_S} s")
        time.sleep(0.2)


def check_output(command: str, first_line: str, *, address: str) -> None:
    printed = run(*shlex.split(command.replace(ADDRESS, address))).splitlines()[0]
    if printed != first_line:
        fail(f"README: {command}: expected {first_line!r}, printed {printed!r}")
    print(f"README: {command}: {printed}")


def run_mentioned(line: str, installed: Path, folder: Path, address: str) -> None:
    program, command = line.split()
    arguments = {"conform": [f"http://{address}"]}.get(command, [])
    options = ["--help"] if command in INTERACTIVE else arguments
    environ = environ_in(folder) | {"SVCNODE_SERVER_LISTEN": address}
    run(installed / program, command, *options, cwd=folder, environ=environ)
    print(f"README: {' '.join([line, *options])}: exit code 0")


def check_configuration(installed: Path, folder: Path) -> None:
    (config,) = re.findall(r"^```toml\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
    (folder / "svcnode.toml").write_text(config, encoding="utf-8")
    secrets = dict.fromkeys(re.findall(r"\$\{(\w+)\}", config), "secret")
    run(installed / "svcnode", "check-config", "svcnode.toml", cwd=folder, environ=environ_in(folder) | secrets)
    print("README: svcnode check-config accepts the configuration")


def environ_in(folder: Path) -> dict[str, str]:
    """State is written into this folder only."""
    return clean_environ() | {"HOME": str(folder), "XDG_STATE_HOME": str(folder / "state"), "PATH": os.defpath}


def free_address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def fail(problem: str) -> str:
    sys.exit(f"make release-check: {problem}")


if __name__ == "__main__":
    main()
