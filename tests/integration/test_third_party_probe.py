"""A kind that another package brings: built, installed and used as its author's users would, and its ways to be broken.

A pure Python wheel is installed by unpacking it into a folder that Python searches.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.support.example_apps import EXAMPLES
from tests.support.processes import Agent

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = EXAMPLES / "svcnode-probe-spool"
DEADLINE_S = 60.0
SOON = {"SVCNODE_DEFAULTS_INTERVAL": "100ms", "SVCNODE_DEFAULTS_START_PERIOD": "0s"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the package is installed in."""
    dist, folder = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(dist), str(PACKAGE)]
    built = subprocess.run(build, cwd=dist, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = dist.glob("svcnode_probe_spool-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "spool"
    folder.mkdir()
    return folder


def fill(folder: Path, count: int) -> None:
    for number in range(count):
        (folder / f"{number}.msg").touch()


def python(where: Path, *arguments: str, searched: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(where), "PYTHONPATH": str(searched)}
    command = [sys.executable, "-W", "error", "-m", *arguments]
    return subprocess.run(
        command, cwd=where, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def svcnode(where: Path, *arguments: str, searched: Path) -> subprocess.CompletedProcess[str]:
    return python(where, "svcnode", *arguments, searched=searched)


def the_line(ended: subprocess.CompletedProcess[str]) -> str:
    """All that a command said, of what is wrong: one line."""
    assert ended.stdout == ""
    assert re.fullmatch(r"svcnode: [^\n]*\n", ended.stderr), ended.stderr
    return ended.stderr.rstrip("\n")


# ---- the package


def test_its_wheel_holds_the_kind_and_names_it(installed: Path) -> None:
    assert (installed / "svcnode_spool" / "__init__.py").is_file()
    (entries,) = installed.glob("svcnode_probe_spool-*.dist-info/entry_points.txt")
    assert entries.read_text().split("\n")[:2] == ["[svcnode.probes]", "spool = svcnode_spool:SpoolProbe"]


def test_its_own_tests_pass(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    ended = python(tmp_path, "pytest", "-q", "tests", searched=installed)
    assert ended.returncode == 0, ended.stdout


# ---- the command that looks once


@pytest.mark.parametrize(
    ("files", "seen"),
    [
        (2, (0, "ready", "")),
        (3, (1, "not_ready", "3 files or more wait there: {}")),
        (4, (1, "not_ready", "3 files or more wait there: {}")),
    ],
)
def test_the_command_checks_with_it(
    installed: Path, tmp_path: Path, spool: Path, files: int, seen: tuple[int, str, str]
) -> None:
    fill(spool, files)
    ended = svcnode(tmp_path, "probe", f"spool:{spool}", "-o", "max_files=3", "--json", searched=installed)
    told = json.loads(ended.stdout)
    assert (told["url"], ended.stderr) == (f"spool:{spool}", "")
    code, verdict, reason = seen
    assert (ended.returncode, told["verdict"], told["reason"]) == (code, verdict, reason.format(spool))


def test_a_missing_folder_is_failed(installed: Path, tmp_path: Path) -> None:
    ended = svcnode(tmp_path, "probe", f"spool:{tmp_path}/gone", searched=installed)
    assert ended.returncode == 2
    assert ended.stdout.startswith(f"failed: no such file or directory: {tmp_path}/gone\n")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("max_files=0", "max_files: is at least 1"),
        ("max_files=-1", "max_files: must be a whole number from 0 on, not -1"),
        ("max_files=many", "max_files: must be a whole number from 0 on, not a string"),
        ("max_flies=3", 'max_flies: unknown option; did you mean "max_files"?'),
        ("_thread=1", "_thread: unknown option"),
    ],
)
def test_a_wrong_option_is_refused_by_name(
    installed: Path, tmp_path: Path, spool: Path, option: str, says: str
) -> None:
    ended = svcnode(tmp_path, "probe", f"spool:{spool}", "-o", option, searched=installed)
    assert ended.returncode == 3
    assert the_line(ended).startswith(f"svcnode: {says}")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("spool:", 'names no folder; write its path, as in "spool:/var/spool/app"'),
        ("spool:outbox", 'names a folder by a relative path; write all of it, as in "spool:/var/spool/app"'),
    ],
)
def test_what_it_refuses_itself_is_said_as_anything_else_is(
    installed: Path, tmp_path: Path, url: str, says: str
) -> None:
    ended = svcnode(tmp_path, "probe", url, searched=installed)
    assert ended.returncode == 3
    assert the_line(ended) == f"svcnode: {says}"


def test_a_scheme_that_is_nearly_right_is_told_from_it(installed: Path, tmp_path: Path) -> None:
    ended = svcnode(tmp_path, "probe", "spol:/tmp", searched=installed)
    assert the_line(ended) == 'svcnode: unknown scheme "spol"; did you mean "spool"?'


def test_a_list_of_the_schemes_holds_it_where_it_is_installed_and_only_there(installed: Path, tmp_path: Path) -> None:
    with_it = the_line(svcnode(tmp_path, "probe", "quux:/tmp", searched=installed))
    without = the_line(svcnode(tmp_path, "probe", "quux:/tmp", searched=tmp_path))
    assert ", spool, sqlite, " in with_it
    assert "spool" not in without
    assert "sqlite" in without


# ---- a node


def test_a_node_follows_a_service_of_its_kind(installed: Path, tmp_path: Path, spool: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--service", f"outbox=spool:{spool}")
    with Agent(tmp_path, *arguments, environ={"PYTHONPATH": str(installed), **SOON}) as agent:
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Up"})
        fill(spool, 100)
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Initializing"})
        shutil.rmtree(spool)
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Down"})
        spool.mkdir()
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Up"})


def test_a_file_may_set_its_options_and_a_wrong_one_is_found_by_its_line(
    installed: Path, tmp_path: Path, spool: Path
) -> None:
    file = tmp_path / "svcnode.toml"
    text = f'[[services]]\nid = "outbox"\n[services.probe]\nurl = "spool:{spool}"\nmax_files = 20\n'
    file.write_text(text)
    assert svcnode(tmp_path, "check-config", searched=installed).returncode == 0
    file.write_text(text.replace("20", '"20"'))
    ended = svcnode(tmp_path, "check-config", searched=installed)
    assert "services.outbox.probe.max_files: must be a whole number" in ended.stderr
    assert "svcnode.toml:5" in ended.stderr
    assert "Traceback" not in ended.stderr


# ---- packages that are broken


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package whose every entry has something wrong with it."""
    folder = tmp_path_factory.mktemp("broken")
    about = folder / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    entries = {
        "no-module": "nowhere_to_be_found:Kind",
        "no-class": "broken:NoSuchKind",
        "no-driver": "broken_driver:Kind",
        "no-form": "broken",
        "no-kind": "broken:function",
        "no-dataclass": "broken:Plain",
        "no-python": "broken_python:Kind",
        "no-luck": "broken_luck:Kind",
        "tcp": "nowhere_to_be_found:Kind",
    }
    (about / "entry_points.txt").write_text(
        "[svcnode.probes]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
    )
    (folder / "broken.py").write_text("def function(url): ...\n\nclass Plain:\n    def __init__(self, url): ...\n")
    (folder / "broken_driver.py").write_text("import a_driver_that_is_not_there\n")
    (folder / "broken_python.py").write_text("class Kind(:\n")
    (folder / "broken_luck.py").write_text("raise RuntimeError('no luck\\ntoday')\n")
    return folder


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        ("no-module", "no-module probes need their driver: install the package that brings nowhere_to_be_found"),
        ("no-class", "the kind of no-class cannot be loaded: .* has no attribute 'NoSuchKind'"),
        ("no-driver", "no-driver probes need their driver: install the package that brings a_driver_that_is_not_there"),
        ("no-form", '"broken", which another package names for no-form, is not of the form "module:Class"'),
        ("no-kind", '"broken:function", which another package names for no-kind, is not a dataclass, as a kind is'),
        ("no-dataclass", '"broken:Plain", which another package names for no-dataclass, is not a dataclass, .*'),
        ("no-python", "the kind of no-python cannot be loaded: SyntaxError: .*"),
        ("no-luck", r"the kind of no-luck cannot be loaded: RuntimeError: no luck\\ntoday"),
    ],
)
def test_a_broken_package_is_told_in_one_line(broken: Path, tmp_path: Path, scheme: str, says: str) -> None:
    ended = svcnode(tmp_path, "probe", f"{scheme}:x", searched=broken)
    assert ended.returncode == 3
    assert re.fullmatch(f"svcnode: {says}", the_line(ended)), ended.stderr


def test_a_node_with_a_broken_package_says_for_which_service_and_does_not_start(broken: Path, tmp_path: Path) -> None:
    ended = svcnode(tmp_path, "serve", "--listen", "127.0.0.1:0", "--service", "x=no-class:y", searched=broken)
    assert ended.returncode == 2
    assert the_line(ended).startswith("svcnode: services.x.probe: the kind of no-class cannot be loaded: ")


def test_what_is_broken_elsewhere_does_not_touch_our_own_kinds(broken: Path, tmp_path: Path) -> None:
    (tmp_path / "beat").touch()
    assert svcnode(tmp_path, "probe", f"file:{tmp_path}/beat", searched=broken).returncode == 0


def test_no_other_package_replaces_our_own_kinds(broken: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert svcnode(tmp_path, "probe", url, searched=broken).returncode == 0
