"""The sources of the Debian package, built by Debian's tools with an empty environment. tests/deploy has the whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from svcnode.version import __version__
from tests.support.processes import DEADLINE_S
from tests.support.servers.provision import program

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "build_deb.sh"
COMMAND = f"{Path(sys.executable).parent}/svcnode"
SOURCES = ("CHANGELOG.md", "LICENSE", "README.md", "deploy", "pyproject.toml", "requirements", "scripts", "src")
FILES = {
    "/lib/systemd/system/svcnode.service",
    "/lib/systemd/system/svcnode.socket",
    "/usr/bin/svcnode",
    "/usr/lib/svcnode/bin/python",
    "/usr/lib/svcnode/bin/svcnode",
    "/usr/lib/svcnode/pyvenv.cfg",
    "/usr/share/bash-completion/completions/svcnode",
    "/usr/share/doc/svcnode/CHANGELOG.md.gz",
    "/usr/share/doc/svcnode/changelog.gz",
    "/usr/share/doc/svcnode/copyright",
    "/usr/share/fish/vendor_completions.d/svcnode.fish",
    "/usr/share/lintian/overrides/svcnode",
    "/usr/share/man/man1/svcnode.1.gz",
    "/usr/share/man/man5/svcnode.toml.5.gz",
    "/usr/share/svcnode/svcnode.schema.json",
    "/usr/share/svcnode/svcnode.toml",
    "/usr/share/zsh/vendor-completions/_svcnode",
}
# Makes an environment whose interpreter is that of the tests, and installs nothing into it but the command.
UV = """#!{python}
import sys
from pathlib import Path
if sys.argv[1] == "venv":
    version = Path(sys.argv[sys.argv.index("--python") + 1]).name
    folder = Path(sys.argv[-1])
    (folder / "lib" / version / "site-packages" / "a.dist-info").mkdir(parents=True)
    (folder / "lib" / version / "site-packages" / "a.libs").mkdir()
    (folder / "bin").mkdir()
    for name in ("python", "svcnode", "activate"):
        (folder / "bin" / name).write_text('#!/bin/sh\\nexec {python} "$@"\\n')
        (folder / "bin" / name).chmod(0o755)
"""

pytestmark = [pytest.mark.wide, pytest.mark.skipif(not SCRIPT.exists(), reason="the script is not part of the wheel")]


def output_of(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built in a copy of the checkout."""
    program("dpkg-buildpackage", "dpkg-dev")
    program("dh", "debhelper")
    checkout = tmp_path_factory.mktemp("checkout")
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    (checkout / ".venv").symlink_to(sys.prefix)
    (checkout / "uv").write_text(UV.format(python=sys.executable))
    (checkout / "uv").chmod(0o755)
    environ = {**os.environ, "UV": str(checkout / "uv"), "SOURCE_DATE_EPOCH": "1700000000"}
    built = subprocess.run(
        [checkout / "scripts" / "build_deb.sh"], env=environ, capture_output=True, text=True, timeout=110, check=False
    )
    assert built.returncode == 0, built.stderr
    return checkout / built.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def content(package: Path) -> Path:
    """The files of the package, and its control files in DEBIAN."""
    folder = package.parent / "content"
    output_of("dpkg-deb", "--raw-extract", package, folder)
    return folder


def field(package: Path, name: str) -> str:
    return output_of("dpkg-deb", "--field", package, name).strip()


def test_the_package_has_the_version_and_the_architecture_of_its_content(package: Path) -> None:
    architecture = output_of("dpkg", "--print-architecture").strip()
    assert package.name == f"svcnode_{__version__}_{architecture}.deb"
    assert (field(package, "Version"), field(package, "Architecture")) == (__version__, architecture)


def test_the_package_needs_the_python_that_it_is_built_for(package: Path, content: Path) -> None:
    python = (content / "usr" / "lib" / "svcnode" / "bin" / "python").readlink()
    assert {python.name, "adduser", "tzdata"} <= set(field(package, "Depends").split(", "))


def test_every_file_is_where_debian_expects_it(content: Path) -> None:
    files = {f"/{path.relative_to(content)}" for path in content.rglob("*") if path.is_symlink() or path.is_file()}
    assert {file for file in files if not file.startswith(("/DEBIAN/", "/usr/lib/svcnode/lib/"))} == FILES
    assert (content / "etc" / "svcnode").is_dir()


def test_no_upgrade_asks_about_a_changed_configuration(content: Path) -> None:
    assert not (content / "DEBIAN" / "conffiles").exists()


def test_the_scripts_of_the_package_are_shell_and_stop_at_an_error(content: Path) -> None:
    for name in ("postinst", "prerm", "postrm"):
        script = content / "DEBIAN" / name
        output_of("sh", "-n", script)
        assert "\nset -e\n" in script.read_text()
        assert "svcnode.service" in script.read_text()


def test_the_configuration_of_the_package_is_valid(content: Path) -> None:
    output_of(COMMAND, "check-config", content / "usr" / "share" / "svcnode" / "svcnode.toml")


def test_systemd_accepts_the_units_of_the_package(content: Path, tmp_path: Path) -> None:
    analyze = program("systemd-analyze", "systemd")
    for name in ("svcnode.service", "svcnode.socket"):
        text = (content / "lib" / "systemd" / "system" / name).read_text()
        assert "/opt/" not in text
        (tmp_path / name).write_text(text.replace("=/usr/bin/svcnode ", f"={COMMAND} "))
    assert f"ExecStart={COMMAND} " in (tmp_path / "svcnode.service").read_text()
    command = [analyze, "verify", "--man=no", *map(str, tmp_path.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert [line for line in done.stderr.splitlines() if "svcnode" in line] == []


def test_without_the_tools_of_debian_their_packages_are_named(tmp_path: Path) -> None:
    done = subprocess.run(["/bin/sh", SCRIPT], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "apt-get install --no-install-recommends dpkg-dev debhelper" in line
