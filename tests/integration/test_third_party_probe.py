"""A probe kind of another package: built, installed and used; and packages with faults.

A pure Python wheel is installed by unpacking it into a folder on PYTHONPATH.
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
SCHEDULE = {
    "SVCNODE_DEFAULTS_INTERVAL": "6s",
    "SVCNODE_DEFAULTS_TIMEOUT": "5s",
    "SVCNODE_DEFAULTS_TRANSITION_INTERVAL": "100ms",
    "SVCNODE_DEFAULTS_START_PERIOD": "0s",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the installed package."""
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


def python(folder: Path, *arguments: str, pythonpath: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(pythonpath)}
    command = [sys.executable, "-W", "error", "-m", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def svcnode(folder: Path, *arguments: str, pythonpath: Path) -> subprocess.CompletedProcess[str]:
    return python(folder, "svcnode", *arguments, pythonpath=pythonpath)


def error_line(process: subprocess.CompletedProcess[str]) -> str:
    """The error of a command, which is one line."""
    assert process.stdout == ""
    assert re.fullmatch(r"svcnode: [^\n]*\n", process.stderr), process.stderr
    return process.stderr.rstrip("\n")


# ---- the package


def test_the_wheel_contains_the_module_and_its_entry_point(installed: Path) -> None:
    assert (installed / "svcnode_spool" / "__init__.py").is_file()
    (entries,) = installed.glob("svcnode_probe_spool-*.dist-info/entry_points.txt")
    assert entries.read_text().split("\n")[:2] == ["[svcnode.probes]", "spool = svcnode_spool:SpoolProbe"]


def test_the_tests_of_the_package_pass(installed: Path, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    process = python(tmp_path, "pytest", "-q", "tests", pythonpath=installed)
    assert process.returncode == 0, process.stdout


# ---- svcnode probe


@pytest.mark.parametrize(
    ("files", "expected"),
    [(2, (0, "ready", "ok")), (3, (1, "not_ready", "lagging")), (4, (1, "not_ready", "lagging"))],
)
def test_the_command_runs_a_check(
    installed: Path, tmp_path: Path, spool: Path, files: int, expected: tuple[int, str, str]
) -> None:
    fill(spool, files)
    process = svcnode(tmp_path, "probe", f"spool:{spool}", "-o", "max_files=3", "--json", pythonpath=installed)
    result = json.loads(process.stdout)
    assert (result["url"], process.stderr) == (f"spool:{spool}", "")
    assert (process.returncode, result["outcome"], result["code"]) == expected


def test_a_missing_folder_is_failed(installed: Path, tmp_path: Path) -> None:
    process = svcnode(tmp_path, "probe", f"spool:{tmp_path}/missing", "--json", pythonpath=installed)
    assert process.returncode == 3
    assert json.loads(process.stdout)["code"] == "file_not_found"


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("max_files=0", "1"),
        ("max_files=-1", "-1"),
        ("max_files=many", "string"),
        ("max_flies=3", '"max_files"?'),
        ("_thread=1", "unknown"),
    ],
)
def test_an_invalid_option_is_rejected_by_name(
    installed: Path, tmp_path: Path, spool: Path, option: str, hint: str
) -> None:
    process = svcnode(tmp_path, "probe", f"spool:{spool}", "-o", option, pythonpath=installed)
    assert process.returncode == 2
    assert error_line(process).startswith(f"svcnode: {option.partition('=')[0]}: ")
    assert hint in error_line(process)


@pytest.mark.parametrize("url", ["spool:", "spool:outbox"])
def test_a_url_that_the_kind_rejects_is_an_error_of_the_command(installed: Path, tmp_path: Path, url: str) -> None:
    process = svcnode(tmp_path, "probe", url, pythonpath=installed)
    assert process.returncode == 2
    assert "spool:/var/spool/app" in error_line(process)


def test_the_scheme_is_suggested_for_a_misspelled_one(installed: Path, tmp_path: Path) -> None:
    process = svcnode(tmp_path, "probe", "spol:/tmp", pythonpath=installed)
    assert process.returncode == 2
    assert '"spool"?' in error_line(process)


def test_the_list_of_schemes_contains_installed_kinds(installed: Path, tmp_path: Path) -> None:
    with_it = error_line(svcnode(tmp_path, "probe", "quux:/tmp", pythonpath=installed))
    without = error_line(svcnode(tmp_path, "probe", "quux:/tmp", pythonpath=tmp_path))
    assert ", spool, sqlite, " in with_it
    assert "spool" not in without
    assert "sqlite" in without


# ---- svcnode serve and check-config


def test_the_agent_checks_a_service_of_this_kind(installed: Path, tmp_path: Path, spool: Path) -> None:
    arguments = ("--listen", "127.0.0.1:0", "--service", f"outbox=spool:{spool}")
    with Agent(tmp_path, *arguments, environ={"PYTHONPATH": str(installed), **SCHEDULE}) as agent:
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Up"})
        fill(spool, 100)
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Initializing"})
        shutil.rmtree(spool)
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Down"})
        spool.mkdir()
        agent.wait_until(lambda: agent.statuses() == {"outbox": "Up"})


def test_an_invalid_option_in_a_file_is_reported_with_its_line(installed: Path, tmp_path: Path, spool: Path) -> None:
    file = tmp_path / "svcnode.toml"
    text = f'[[services]]\nid = "outbox"\n[services.probe]\nurl = "spool:{spool}"\nmax_files = 20\n'
    file.write_text(text)
    assert svcnode(tmp_path, "check-config", pythonpath=installed).returncode == 0
    file.write_text(text.replace("20", '"20"'))
    process = svcnode(tmp_path, "check-config", pythonpath=installed)
    assert "services.outbox.probe.max_files: " in process.stderr
    assert "svcnode.toml:5" in process.stderr
    assert "Traceback" not in process.stderr


# ---- packages with faults


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package in which every entry point has a fault."""
    folder = tmp_path_factory.mktemp("broken")
    about = folder / "broken-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    entries = {
        "no-module": "missing_module:Kind",
        "no-class": "broken:NoSuchKind",
        "no-driver": "broken_driver:Kind",
        "no-form": "broken",
        "no-kind": "broken:function",
        "no-dataclass": "broken:Plain",
        "no-python": "broken_python:Kind",
        "no-import": "broken_import:Kind",
        "tcp": "missing_module:Kind",
    }
    (about / "entry_points.txt").write_text(
        "[svcnode.probes]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
    )
    (folder / "broken.py").write_text("def function(url): ...\n\nclass Plain:\n    def __init__(self, url): ...\n")
    (folder / "broken_driver.py").write_text("import missing_driver\n")
    (folder / "broken_python.py").write_text("class Kind(:\n")
    (folder / "broken_import.py").write_text("raise RuntimeError('first\\nsecond')\n")
    return folder


@pytest.mark.parametrize(
    ("scheme", "detail"),
    [
        ("no-module", "missing_module"),
        ("no-class", "'NoSuchKind'"),
        ("no-driver", "missing_driver"),
        ("no-form", '"module:Class"'),
        ("no-kind", '"broken:function"'),
        ("no-dataclass", '"broken:Plain"'),
        ("no-python", "SyntaxError"),
        ("no-import", r"RuntimeError: first\nsecond"),
    ],
)
def test_a_fault_of_a_package_is_one_line(broken: Path, tmp_path: Path, scheme: str, detail: str) -> None:
    process = svcnode(tmp_path, "probe", f"{scheme}:x", pythonpath=broken)
    assert process.returncode == 2
    assert scheme in error_line(process)
    assert detail in error_line(process)


def test_the_agent_does_not_start_with_a_faulty_package_and_names_the_service(broken: Path, tmp_path: Path) -> None:
    process = svcnode(tmp_path, "serve", "--listen", "127.0.0.1:0", "--service", "x=no-class:y", pythonpath=broken)
    assert process.returncode == 2
    assert error_line(process).startswith("svcnode: services.x.probe: ")
    assert "no-class" in error_line(process)


def test_a_faulty_package_does_not_affect_built_in_kinds(broken: Path, tmp_path: Path) -> None:
    (tmp_path / "beat").touch()
    assert svcnode(tmp_path, "probe", f"file:{tmp_path}/beat", pythonpath=broken).returncode == 0


def test_no_package_can_replace_a_built_in_kind(broken: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        assert svcnode(tmp_path, "probe", url, pythonpath=broken).returncode == 0
