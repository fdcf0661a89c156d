"""The modules that a start loads, and what an idle node does."""

from __future__ import annotations

import json
import re
import sys
import time
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import cli, probes
from svcnode.cli import COMMANDS
from tests.support.backends import Backend, sending
from tests.support.processes import Agent, run_command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Slow to import, or not needed to serve.
# fmt: off
NOT_LOADED = {
    "click", "difflib", "bz2", "email", "encodings.idna", "hashlib", "hmac", "html", "http.client", "http.server",
    "httpx", "httpx2", "importlib.metadata", "importlib.resources", "msgspec", "multiprocessing", "pkg_resources",
    "prometheus_client", "random", "rich", "secrets", "shutil", "sqlite3", "tempfile", "unicodedata", "unittest",
    "urllib.request", "uuid", "wsgiref", "xml", "zoneinfo", "aio_pika", "aiomcache", "aiormq", "apprise", "asyncmy",
    "cryptography", "grpc", "h2", "nats", "psycopg", "redis", "watchfiles", "yarl",
}
# fmt: on


# The kinds by a URL that loads each.
KINDS = {
    "beacon+http://127.0.0.1:1": "beacon",
    "bitcoin+http://127.0.0.1:1": "bitcoin",
    "clock:": "clock",
    "cometbft+http://127.0.0.1:1": "cometbft",
    "disk:/": "disk",
    "etcd://127.0.0.1:1": "etcd",
    "ethereum+http://127.0.0.1:1": "ethereum",
    "exec:/bin/true": "exec",
    "file:/run/app.pid": "file",
    "icmp:127.0.0.1": "icmp",
    "heartbeat:30s": "heartbeat",
    "http://127.0.0.1:1": "http",
    "ipfs+http://127.0.0.1:1": "ipfs",
    "memcached://127.0.0.1:1": "memcached",
    "mevboost+http://127.0.0.1:1": "mevboost",
    "opnode+http://127.0.0.1:1": "opnode",
    "solana+http://127.0.0.1:1": "solana",
    "sqlite:/a.db": "sqlite",
    "substrate+http://127.0.0.1:1": "substrate",
    "svc+http://127.0.0.1:1": "svc",
    "tcp://127.0.0.1:1": "tcp",
    "web3signer+http://127.0.0.1:1": "web3signer",
}
# Kinds with a driver; a driver may load anything but the driver of another kind.
KINDS_WITH_A_DRIVER = {
    "amqp://127.0.0.1:1": ("amqp", "aiormq"),
    "dns:example.org": ("dns", "dns"),
    "ethereum+ws://127.0.0.1:1": ("ethereum_ws", "websockets"),
    "grpc://127.0.0.1:1": ("grpc", "h2"),
    "mysql://me:pw@127.0.0.1:1": ("mysql", "asyncmy"),
    "nats://127.0.0.1:1": ("nats", "nats"),
    "postgresql://127.0.0.1:1": ("postgresql", "psycopg"),
    "redis://127.0.0.1:1": ("redis", "redis"),
    "systemd:svcnode": ("systemd", "jeepney"),
    "redis+sentinel://127.0.0.1:1/mymaster": ("redis_sentinel", "redis"),
}
# Other kinds are loaded by a plain URL, and their driver has the name of its extra.
_LISTED = {"jsonrpc", "metrics", *KINDS.values(), *(kind for kind, _ in KINDS_WITH_A_DRIVER.values())}  # need an option
for _scheme, _target in probes.KINDS.items():
    _module = _target.partition(":")[0].removeprefix("svcnode.probes.")
    if _module not in _LISTED and "[" in _target:
        KINDS_WITH_A_DRIVER[f"{_scheme}://127.0.0.1:1"] = (_module, _target.partition("[")[2].rstrip("]"))
    elif _module not in _LISTED:
        KINDS[f"{_scheme}://127.0.0.1:1"] = _module

IMPORT = "import svcnode"
# Serves, and stops itself as soon as it probes and serves.
SERVE = """
import os, signal, sys
from svcnode.agent import agent
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
# History loads SQLite in its own thread.
NO_HISTORY = {"SVCNODE_HISTORY_KEEP": "false"}
COMMAND = "from svcnode.cli import main\ntry: main({arguments!r})\nexcept SystemExit: pass"
PRINT_MODULES = "\nimport sys; modules = sorted(sys.modules); import json; print(json.dumps(modules))"


def modules_after(script: str, folder: Path, *arguments: str, environ: Mapping[str, str] = NO_HISTORY) -> set[str]:
    """The modules after a script, without those of the interpreter itself."""
    return _modules(script, folder, environ, *arguments) - _modules_of_the_interpreter()


@cache
def _modules_of_the_interpreter() -> set[str]:
    return _modules("", Path("/"), NO_HISTORY)


def _modules(script: str, folder: Path, environ: Mapping[str, str], *arguments: str) -> set[str]:
    ended = run_command([sys.executable, "-P", "-c", script + PRINT_MODULES, *arguments], folder, **environ)
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout.splitlines()[-1]))


def third_party(modules: set[str]) -> set[str]:
    names = {module.partition(".")[0] for module in modules}
    # Cython's modules in uvloop are not packages.
    return {name for name in names - sys.stdlib_module_names if not name.startswith(("_cython", "cython_runtime"))}


def kinds(modules: set[str]) -> set[str]:
    """The loaded kinds of probes."""
    kind_modules = {target.partition(":")[0] for target in probes.KINDS.values()}
    return {module.removeprefix("svcnode.probes.") for module in modules & kind_modules}


def commands(modules: set[str]) -> set[str]:
    return {name for module in modules if "." not in (name := module.removeprefix("svcnode.cli.")) and name != module}


@pytest.fixture
def configured(tmp_path: Path) -> Path:
    (tmp_path / "svcnode.toml").write_text('[[services]]\nid = "db"\nstatus = "Up"\n')
    return tmp_path


def starting_with(modules: set[str], *names: str) -> set[str]:
    return {module for module in modules if module.startswith(names)}


def test_importing_svcnode_loads_no_other_package_and_no_loop(tmp_path: Path) -> None:
    modules = modules_after(IMPORT, tmp_path)
    assert third_party(modules) == {"svcnode"}
    assert not modules & (NOT_LOADED | {"tomllib", "argparse", "asyncio", "socket", "ssl", "subprocess"})
    layers_above = ("agent", "cli", "config", "server", "node.scheduler", "testing")
    assert not starting_with(modules, *(f"svcnode.{layer}" for layer in layers_above))
    assert starting_with(modules, "svcnode.probes.") == {"svcnode.probes.base"}


def test_embedding_a_node_loads_nothing_of_the_operator_surface_and_of_tests(tmp_path: Path) -> None:
    script = """
import asyncio
import svcnode.testing
from svcnode import Node, asgi, wsgi
node = Node("validator-7", version="v1")
asgi(node), wsgi(node)
async def probe():
    async with node.probing():
        pass
asyncio.run(probe())
"""
    modules = modules_after(script, tmp_path)
    assert third_party(modules) == {"svcnode"}
    assert not modules & NOT_LOADED
    assert not starting_with(modules, *(f"svcnode.{layer}" for layer in ("agent.agent", "config", "history", "notify")))
    assert not modules & {"svcnode.agent.embed.embedding", "svcnode.agent.embed.operator_app"}
    assert not starting_with(modules, "svcnode.operator")


def test_serving_loads_only_what_it_needs(configured: Path) -> None:
    modules = modules_after(SERVE, configured)
    assert third_party(modules) == {"svcnode", "httptools", "uvloop"}
    assert not modules & NOT_LOADED
    assert not modules & {"svcnode.cli.init", "svcnode.agent.store", "svcnode.client", "svcnode.cli.terminal"}
    assert starting_with(modules, "svcnode.control.") == {"svcnode.control.app"}
    assert not starting_with(modules, "svcnode.sharing")
    assert not modules & {"svcnode.config.sharing", "svcnode.config.registration", "svcnode.config.toml_lines"}
    assert not modules & {"svcnode.agent.embed.asgi", "svcnode.agent.embed.wsgi", "svcnode.api.cors"}
    assert not starting_with(modules, "svcnode.notify.")
    assert commands(modules) == {"_args", "serve"}
    assert kinds(modules) == set()
    assert "tomllib" in modules
    (configured / "svcnode.toml").write_text('[notify]\nwebhook = "http://127.0.0.1:1/"\n')
    assert not modules_after(SERVE, configured) & {"apprise", "requests", "httpx2", "svcnode.core.remedies"}


def test_without_a_file_sqlite_is_loaded_and_tomllib_is_not(tmp_path: Path) -> None:
    modules = modules_after(SERVE, tmp_path)
    assert modules & (NOT_LOADED | {"tomllib"}) == {"sqlite3"}
    assert kinds(modules) == {"sqlite"}


def test_history_loads_only_sqlite(configured: Path) -> None:
    assert modules_after(SERVE, configured, environ={}) & NOT_LOADED == {"sqlite3"}


def wide_but_for(chosen: str, names: Iterable[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name == chosen else [pytest.mark.wide]) for name in names]


@pytest.mark.parametrize("url", wide_but_for("http://127.0.0.1:1", KINDS))
def test_a_kind_is_loaded_only_if_a_service_uses_it(url: str, tmp_path: Path) -> None:
    modules = modules_after(SERVE, tmp_path, "--allow-exec", "--service", f"x={url}")
    kind = KINDS[url]
    assert kinds(modules) == {kind}
    assert modules & (NOT_LOADED | {"tomllib"}) == ({"sqlite3"} if kind == "sqlite" else set())
    assert ("shlex" in modules) == (kind == "exec")
    assert third_party(modules) == {"svcnode", "httptools", "uvloop"}


@pytest.mark.parametrize("url", wide_but_for("redis://127.0.0.1:1", KINDS_WITH_A_DRIVER))
def test_a_driver_is_loaded_only_if_a_service_uses_it(url: str, tmp_path: Path) -> None:
    modules = modules_after(SERVE, tmp_path, "--service", f"x={url}")
    kind, driver = KINDS_WITH_A_DRIVER[url]
    # The master of a Sentinel is a redis, and what both kinds of Ethereum read is the same.
    assert kinds(modules) == {kind, kind.removesuffix("_sentinel").removesuffix("_ws")}
    assert modules & {driver for _, driver in KINDS_WITH_A_DRIVER.values()} == {driver}


def test_svcnode_probe_loads_no_server(tmp_path: Path) -> None:
    modules = modules_after(PROBE, tmp_path, "tcp://127.0.0.1:1")
    assert kinds(modules) == {"tcp"}
    assert third_party(modules) == {"svcnode"}
    assert not modules & (NOT_LOADED | {"svcnode.agent.agent", "svcnode.config", "svcnode.server.server"})


@pytest.mark.parametrize(
    "command",
    [
        ["check-config"],
        pytest.param(["status", "127.0.0.1:1"], marks=pytest.mark.wide),
        pytest.param(["beat", "a", "--socket", "c"], marks=pytest.mark.wide),
        pytest.param(["conform", "127.0.0.1:1"], marks=pytest.mark.wide),
    ],
)
def test_server_and_registry_are_loaded_only_if_a_command_uses_them(command: list[str], configured: Path) -> None:
    modules = modules_after(COMMAND.format(arguments=command), configured)
    assert not starting_with(modules, "svcnode.sharing", "svcnode.cli._registry_args")
    assert not modules & {"uvloop", "httptools", "svcnode.agent.agent", "svcnode.server.server"}
    if command[0] == "conform":
        assert not modules & {"svcnode.client", "httpx2", "rich", "xml.etree"}


@pytest.mark.parametrize("arguments", [["--help"], pytest.param(["wat"], marks=pytest.mark.wide)], ids=" ".join)
def test_without_a_command_no_command_is_loaded(arguments: list[str], tmp_path: Path) -> None:
    modules = modules_after(f"{COMMAND.format(arguments=arguments)}\nprint()", tmp_path)
    assert commands(modules) == {"_args"}
    for_a_hint = {"difflib"} if arguments == ["wat"] else set()
    assert not modules & (NOT_LOADED - for_a_hint | {"asyncio", "svcnode.config"})


MODULES = {command.name: command.module.removeprefix("svcnode.cli.") for command in COMMANDS}


@pytest.mark.parametrize("name", wide_but_for("status", MODULES))
def test_a_command_loads_no_other_command(name: str, tmp_path: Path) -> None:
    modules = modules_after(COMMAND.format(arguments=[name, "--help"]), tmp_path)
    assert commands(modules) & set(MODULES.values()) == {MODULES[name]}


def test_every_command_module_is_in_the_table() -> None:
    for name in MODULES.values():
        module = import_module(f"svcnode.cli.{name}")
        assert callable(module.configure)
        assert callable(module.run_command)
    shared = {
        "__init__",
        "_problems",
        "_args",
        "_checks",
        "_node_args",
        "_notifications",
        "_past",
        "_container_init",
        "_registry_args",
        "operator_requests",
        "operator_url",
        "output",
    }
    files = {file.stem for file in Path(cli.__path__[0]).glob("*.py")} | {"demo", "init"}
    assert set(MODULES.values()) == files - shared


# ---- idle

MAX_WAKE_UPS_PER_S = 8.0  # `make bench` has the bar; each timer of its own would need more than this


@pytest.mark.wide
@pytest.mark.skipif(sys.platform != "linux", reason="counts wake-ups in /proc")
def test_an_idle_node_rarely_wakes_up(tmp_path: Path) -> None:
    with Backend(sending(b"hello")) as backend:
        services = "".join(f'[[services]]\nid = "s{n}"\nprobe = "tcp://{backend.address}"\n' for n in range(10))
        with Agent(tmp_path, config=f'[server]\nlisten = "127.0.0.1:0"\n{services}') as agent:
            agent.wait_until(lambda: agent.health() == 200)
            before, before_s = wake_ups(agent.process.pid), time.monotonic()
            time.sleep(5.0)
            per_s = (wake_ups(agent.process.pid) - before) / (time.monotonic() - before_s)
    assert per_s <= MAX_WAKE_UPS_PER_S


def wake_ups(pid: int) -> int:
    """How often the threads of the process have waited so far."""
    statuses = [status.read_text() for status in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.MULTILINE)[0]) for text in statuses)
