"""What starting costs: the modules that are loaded, held in a list so that it stays as short as it is."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from svcnode import probes
from tests.support.processes import run_command

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DEADLINE_S = 20.0

# Each is heavy, or is for something else than answering; whoever needs one loads it then.
NOT_LOADED = {
    "click",
    "difflib",
    "email",
    "encodings.idna",
    "html",
    "http.client",
    "http.server",
    "httpx",
    "httpx2",
    "importlib.metadata",
    "importlib.resources",
    "msgspec",
    "multiprocessing",
    "pkg_resources",
    "prometheus_client",
    "rich",
    "sqlite3",
    "tempfile",
    "unicodedata",
    "unittest",
    "urllib.request",
    "uuid",
    "xml",
    "zoneinfo",
    "aio_pika",
    "aiomcache",
    "aiormq",
    "apprise",
    "asyncmy",
    "cryptography",
    "grpc",
    "h2",
    "nats",
    "psycopg",
    "redis",
    "watchfiles",
    "yarl",
}


# The kinds by the URL that loads one.
KINDS = {
    "beacon+http://127.0.0.1:1": "beacon",
    "disk:/": "disk",
    "etcd://127.0.0.1:1": "etcd",
    "ethereum+http://127.0.0.1:1": "ethereum",
    "exec:/bin/true": "exec",
    "file:/run/app.pid": "file",
    "heartbeat:30s": "heartbeat",
    "http://127.0.0.1:1": "http",
    "ipfs+http://127.0.0.1:1": "ipfs",
    "memcached://127.0.0.1:1": "memcached",
    "sqlite:/a.db": "sqlite",
    "svc+http://127.0.0.1:1": "svc",
    "tcp://127.0.0.1:1": "tcp",
}
# Those that bring a driver, which brings what it likes, but no driver of another kind.
KINDS_WITH_A_DRIVER = {
    "amqp://127.0.0.1:1": ("amqp", "aiormq"),
    "grpc://127.0.0.1:1": ("grpc", "h2"),
    "mysql://me:pw@127.0.0.1:1": ("mysql", "asyncmy"),
    "nats://127.0.0.1:1": ("nats", "nats"),
    "postgresql://127.0.0.1:1": ("postgresql", "psycopg"),
    "redis://127.0.0.1:1": ("redis", "redis"),
}

IMPORT = "import svcnode"
# Serves as the command line does, and tells itself to stop as soon as it looks and answers.
SERVE = """
import os, signal, sys
from svcnode import agent
from svcnode.cli import main

probe_and_serve = agent.Agent._probe_and_serve

async def probe_serve_and_stop(self):
    os.kill(os.getpid(), signal.SIGTERM)
    return await probe_and_serve(self)

agent.Agent._probe_and_serve = probe_serve_and_stop
assert main(["serve", "--listen", "127.0.0.1:0", "--drain", "0s", *sys.argv[1:]]) == 0
"""
PROBE = """
import sys
from svcnode.cli import main
main(["probe", *sys.argv[1:]])
"""
# History is written in a thread of its own, which brings SQLite along; what else is loaded is seen without it.
NO_HISTORY = {"SVCNODE_HISTORY_KEEP": "false"}
PRINT_MODULES = "\nimport sys; modules = sorted(sys.modules); import json; print(json.dumps(modules))"


def modules_after(script: str, folder: Path, *arguments: str, environ: Mapping[str, str] = NO_HISTORY) -> set[str]:
    """What is loaded after a script, beyond what the interpreter itself had loaded."""
    return _modules(script, folder, environ, *arguments) - _modules("", folder, environ)


def _modules(script: str, folder: Path, environ: Mapping[str, str], *arguments: str) -> set[str]:
    ended = run_command([sys.executable, "-P", "-c", script + PRINT_MODULES, *arguments], folder, **environ)
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout.splitlines()[-1]))


def third_party(modules: set[str]) -> set[str]:
    names = {module.partition(".")[0] for module in modules}
    # What uvloop's compiler leaves behind is no package.
    return {name for name in names - sys.stdlib_module_names if not name.startswith(("_cython", "cython_runtime"))}


def kinds(modules: set[str]) -> set[str]:
    """Those of the files in probes/ that are kinds."""
    names = {module.removeprefix("svcnode.probes.") for module in modules if module.startswith("svcnode.probes.")}
    return {name for name in names if name.partition(".")[0] != "tools"}


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    (tmp_path / "svcnode.toml").write_text('[[services]]\nid = "db"\nstatus = "Up"\n')
    return tmp_path


def test_importing_svcnode_loads_no_other_package_and_no_loop(tmp_path: Path) -> None:
    modules = modules_after(IMPORT, tmp_path)
    assert third_party(modules) == {"svcnode"}
    assert not modules & (NOT_LOADED | {"tomllib", "argparse"})
    assert not modules & {"asyncio", "socket", "ssl", "subprocess"}
    assert not modules & {
        "svcnode.agent",
        "svcnode.cli",
        "svcnode.config",
        "svcnode.server.server",
        "svcnode.scheduler",
    }
    assert not {module for module in modules if module.startswith("svcnode.probes.")}


def test_serving_loads_two_other_packages(configured: Path) -> None:
    assert third_party(modules_after(SERVE, configured)) == {"svcnode", "httptools", "uvloop"}


def test_serving_loads_nothing_that_it_does_not_need(configured: Path) -> None:
    modules = modules_after(SERVE, configured)
    assert not modules & NOT_LOADED
    assert not modules & {"svcnode.cli.init", "svcnode.cli.probe", "svcnode.discovery", "svcnode.store"}
    assert kinds(modules) == set()


def test_sqlite_is_loaded_when_a_service_needs_it(tmp_path: Path) -> None:
    modules = modules_after(SERVE, tmp_path)
    assert modules & NOT_LOADED == {"sqlite3"}
    assert kinds(modules) == {"sqlite"}


def test_history_brings_sqlite_and_nothing_else_and_no_sooner_than_it_begins(configured: Path) -> None:
    assert modules_after(SERVE, configured, environ={}) & NOT_LOADED == {"sqlite3"}
    assert "sqlite3" not in modules_after("import svcnode.agent", configured, environ={})


@pytest.mark.parametrize("url", KINDS)
def test_a_kind_is_loaded_alone_and_only_when_a_service_uses_it(url: str, tmp_path: Path) -> None:
    """TLS and the running of programs are not in question: an event loop brings them along by itself."""
    modules = modules_after(SERVE, tmp_path, "--allow-exec", "--service", f"x={url}")
    kind = KINDS[url]
    assert kinds(modules) == {kind}
    assert modules & (NOT_LOADED | {"tomllib"}) == ({"sqlite3"} if kind == "sqlite" else set())
    assert ("shlex" in modules) == (kind == "exec")
    assert third_party(modules) == {"svcnode", "httptools", "uvloop"}


@pytest.mark.parametrize("url", KINDS_WITH_A_DRIVER)
def test_a_driver_is_loaded_alone_and_only_when_a_service_uses_it(url: str, tmp_path: Path) -> None:
    modules = modules_after(SERVE, tmp_path, "--service", f"x={url}")
    kind, driver = KINDS_WITH_A_DRIVER[url]
    assert kinds(modules) == {kind}
    assert modules & {driver for _, driver in KINDS_WITH_A_DRIVER.values()} == {driver}


def test_the_lists_of_urls_here_name_every_kind() -> None:
    rows = {target.partition(":")[0].removeprefix("svcnode.probes.") for target in probes.KINDS.values()}
    named = {*KINDS.values(), *(kind for kind, _ in KINDS_WITH_A_DRIVER.values())}
    assert named == rows - {"jsonrpc"}, "jsonrpc has an option that it needs, and --service gives none"


def test_one_check_from_the_command_line_loads_no_server(tmp_path: Path) -> None:
    modules = modules_after(PROBE, tmp_path, "tcp://127.0.0.1:1")
    assert kinds(modules) == {"tcp"}
    assert third_party(modules) == {"svcnode"}
    assert not modules & NOT_LOADED
    assert not modules & {"svcnode.agent", "svcnode.config", "svcnode.server.server"}


def test_toml_is_read_only_where_there_is_a_file(configured: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert "tomllib" in modules_after(SERVE, configured)
    assert "tomllib" not in modules_after(SERVE, tmp_path_factory.mktemp("empty"))


def test_the_lines_of_the_file_are_counted_only_when_something_is_wrong(configured: Path) -> None:
    assert "svcnode.config.toml_lines" not in modules_after(SERVE, configured)


def test_checking_a_configuration_starts_no_server(configured: Path) -> None:
    modules = modules_after('from svcnode.cli import main; main(["check-config", "/dev/null"])', configured)
    assert not modules & {"uvloop", "httptools", "svcnode.agent", "svcnode.server.server"}
