"""The commands that use the registry of a node on several machines, with real etcd and a real replica."""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pytest

from svcnode.core.address import parse_registry_url
from svcnode.sharing import check
from svcnode.sharing.check import FindingLevel, check_registry
from svcnode.sharing.etcd import EtcdClient
from tests.support import commands
from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent
from tests.support.servers.base import wait_until
from tests.support.servers.etcd import PASSWORD, USER, EtcdServer
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

NODE = "ledger"
ROOT = f"/svcnode/v1/{NODE}/"
OWNER = f"{socket.gethostname()}-client"
SVCNODE = (sys.executable, "-W", "error", "-m", "svcnode")
LEASE_S = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def etcd(server: EtcdServer) -> EtcdServer:
    """Without keys."""
    server.call("/v3/kv/deleterange", {"key": encoded("/"), "range_end": encoded("0")})
    return server


@pytest.fixture(scope="module")
def auth_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("auth"), requires_auth=True) as server:
        server.grant(ROOT)
        server.grant("/svcnode/v1/read-only/", "READ")
        yield server


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def documents(server: EtcdServer) -> dict[str, Any]:
    """All documents of the node, by the end of their key."""
    _, answer = server.call("/v3/kv/range", {"key": encoded(ROOT), "range_end": encoded(ROOT[:-1] + "0")})
    return {
        unquote(base64.b64decode(kv["key"]).decode().removeprefix(ROOT)): json.loads(base64.b64decode(kv["value"]))
        for kv in answer.get("kvs", [])
    }


def put(server: EtcdServer, key: str, document: Mapping[str, Any], *, lease_s: int = 0) -> None:
    lease = server.call("/v3/lease/grant", {"TTL": lease_s})[1]["ID"] if lease_s else 0
    body = {"key": encoded(key), "value": encoded(json.dumps(document)), "lease": lease}
    assert server.call("/v3/kv/put", body)[0] == 200


def svcnode(folder: Path, *arguments: str, **environ: Any) -> subprocess.CompletedProcess[str]:
    return commands.svcnode(*arguments, folder=folder, **environ)


def at(server: EtcdServer, node: str = NODE) -> list[str]:
    return ["--registry", f"etcd://{server.host}:{server.port}", "--node", node]


def replica_config(server: EtcdServer, port: int, *, name: str = "host-1", services: str = "") -> str:
    return f"""
[node]
name = "{NODE}"
[server]
listen = "127.0.0.1:{port}"
[history]
keep = false
[control]
listen = "unix:c.sock"
path = "c.db"
[sharing]
registry = "{server.url}"
replica = "{name}"
url = "http://127.0.0.1:{port}"
lease = "{LEASE_S}s"
{services}
"""


FILE_SERVICES = """
[[services]]
id = "worker"
probe = "heartbeat:60s"
[[services]]
id = "root"
probe = "disk:/"
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EtcdServer, Agent]]:
    """A replica, and the etcd that it uses."""
    folder = tmp_path_factory.mktemp("r")
    with EtcdServer(folder / "etcd") as server, replica(folder, server) as agent:
        yield server, agent


@contextmanager
def replica(folder: Path, server: EtcdServer) -> Iterator[Agent]:
    with Agent(folder, config=replica_config(server, free_port(), services=FILE_SERVICES)) as agent:
        wait_until(lambda: "replicas/host-1" in documents(server), "the replica has joined")
        wait_until(lambda: "services/worker/replica:host-1" in documents(server), "it has published")
        yield agent


# ---- register, deregister, beat


def test_a_registration_is_in_the_registry_and_one_with_a_probe_ends_the_reports_of_the_earlier_one(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    assert svcnode(tmp_path, "register", *at(etcd), "web", "--ttl", "60s").returncode == 0
    svcnode(tmp_path, "beat", *at(etcd), "web")
    svcnode(tmp_path, "register", *at(etcd), "web", "--ttl", "30s")
    assert set(documents(etcd)) == {f"services/web/{OWNER}", f"reports/web/{OWNER}"}
    svcnode(tmp_path, "register", *at(etcd), "web", "--probe", "tcp://10.0.0.7:80", "--set", "interval=5s")
    options = {"interval": "5s", "probe": "tcp://10.0.0.7:80"}
    assert documents(etcd) == {f"services/web/{OWNER}": {"version": 1, "position": 0, "options": options}}


def test_replicas_show_a_service_that_a_client_registers_and_reports(
    live: tuple[EtcdServer, Agent], tmp_path: Path
) -> None:
    etcd, agent = live
    assert svcnode(tmp_path, "register", *at(etcd), "indexer", "--ttl", "60s").returncode == 0
    agent.wait_until(lambda: agent.statuses().get("indexer") == "Initializing")
    assert svcnode(tmp_path, "beat", *at(etcd), "indexer", "--reason", "block 812").returncode == 0
    agent.wait_until(lambda: agent.statuses().get("indexer") == "Up")
    assert svcnode(tmp_path, "beat", *at(etcd), "indexer", "down", "--code", "x_disk").returncode == 0
    agent.wait_until(lambda: agent.statuses().get("indexer") == "Down")
    assert svcnode(tmp_path, "deregister", *at(etcd), "indexer").returncode == 0
    agent.wait_until(lambda: "indexer" not in agent.statuses())
    assert not any("indexer" in key for key in documents(etcd))


def test_a_registration_at_a_node_without_a_replica_warns_and_names_the_other_nodes(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    document = {"version": 1, "instance": "1", "url": "", "software": "1"}
    put(etcd, f"{ROOT}replicas/host-1", document, lease_s=60)
    right = svcnode(tmp_path, "register", *at(etcd), "job", "--ttl", "60s")
    assert (right.returncode, right.stderr) == (0, "")
    wrong = svcnode(tmp_path, "register", *at(etcd, "legder"), "job", "--ttl", "60s")
    assert wrong.returncode == 0
    assert wrong.stderr.startswith("svcnode: warning: ")
    assert wrong.stderr.endswith(f": {NODE}\n")
    put(etcd, "/svcnode/v1/legder/replicas/host-1", document)  # without a lease, it is no live replica
    wrong = svcnode(tmp_path, "run", *at(etcd, "legder"), "--service", "job", "--", "true")
    assert wrong.returncode == 0
    assert NODE in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1


def test_each_owner_has_its_own_registration_and_the_last_one_takes_the_reports_with_it(
    etcd: EtcdServer, tmp_path: Path
) -> None:
    for owner in ("a", "b"):
        assert svcnode(tmp_path, "register", *at(etcd), "job", "--ttl", "60s", "--owner", owner).returncode == 0
        assert svcnode(tmp_path, "beat", *at(etcd), "job", "--owner", owner).returncode == 0
    assert svcnode(tmp_path, "beat", *at(etcd), "job", "--owner", "c").returncode == 0
    assert svcnode(tmp_path, "deregister", *at(etcd), "job", "--owner", "c").returncode == 1
    assert svcnode(tmp_path, "deregister", *at(etcd), "job", "--owner", "a").returncode == 0
    assert set(documents(etcd)) == {"services/job/b", "reports/job/b", "reports/job/c"}
    assert svcnode(tmp_path, "deregister", *at(etcd), "job", "--owner", "b").returncode == 0
    assert documents(etcd) == {}


@pytest.mark.parametrize("command", ["register", "deregister"])
def test_a_document_of_a_newer_version_is_kept(etcd: EtcdServer, tmp_path: Path, command: str) -> None:
    put(etcd, f"{ROOT}services/job/{OWNER}", {"version": 2})
    options = ["--ttl", "60s"] if command == "register" else []
    assert svcnode(tmp_path, command, *at(etcd), "job", *options).returncode == 1
    assert documents(etcd) == {f"services/job/{OWNER}": {"version": 2}}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["register", "a", "--probe", "exec:/bin/true"], 2),
        (["register", "a", "--probe", "redis://:hunter2hunter2@127.0.0.1"], 2),
        (["register", "a", "--ttl", "15s", "--owner", "replica:host-1"], 2),
        (["register", "..", "--ttl", "15s"], 2),
        (["beat", "a"], 1),
        (["beat", "", "up"], 2),
        (["deregister", "a"], 1),
    ],
)
def test_what_is_refused_writes_nothing_and_shows_no_password(
    etcd: EtcdServer, tmp_path: Path, arguments: list[str], code: int
) -> None:
    ended = svcnode(tmp_path, *arguments, *at(etcd))
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.startswith("svcnode: ")
    assert "hunter2" not in ended.stderr
    assert documents(etcd) == {}


def test_the_password_is_in_a_variable(auth_etcd: EtcdServer, tmp_path: Path) -> None:
    endpoint = f"{auth_etcd.host}:{auth_etcd.port}"
    options = ["--node", NODE, "job", "--ttl", "60s"]
    in_url = ["register", "--registry", f"etcd://{USER}:${{ETCD_PASSWORD}}@{endpoint}", *options]
    ended = svcnode(tmp_path, *in_url, ETCD_PASSWORD=PASSWORD)
    assert ended.returncode == 0
    assert "permission" not in ended.stderr  # the other nodes are not named: the user may not read their keys
    user_only = ["register", "--registry", f"etcd://{USER}@{endpoint}", *options]
    assert svcnode(tmp_path, *user_only, SVCNODE_SHARING_PASSWORD=PASSWORD).returncode == 0
    wrong = svcnode(tmp_path, *in_url, ETCD_PASSWORD="not-the-password")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "not-the-password" not in wrong.stderr
    forbidden = svcnode(tmp_path, *in_url[:3], "--node", "read-only", *options[2:], ETCD_PASSWORD=PASSWORD)
    assert (forbidden.returncode, forbidden.stdout) == (1, "")
    assert "permission denied" in forbidden.stderr


# ---- run


def test_run_reports_the_life_of_a_command_to_all_replicas(live: tuple[EtcdServer, Agent], tmp_path: Path) -> None:
    etcd, agent = live
    command = [*SVCNODE, "run", *at(etcd), "--service", "job", "--ttl", "60s", "--", "sleep", "600"]
    with subprocess.Popen(command, cwd=tmp_path) as process:
        agent.wait_until(lambda: agent.statuses().get("job") == "Up")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 128 + signal.SIGTERM
    assert documents(etcd)[f"reports/job/{OWNER}"]["reason"] == "ended by SIGTERM"
    agent.wait_until(lambda: agent.statuses()["job"] == "Down")
    ended = svcnode(tmp_path, "run", *at(etcd), "--service", "job", "--remove", "--", "true")
    assert (ended.returncode, ended.stderr) == (0, "")
    agent.wait_until(lambda: "job" not in agent.statuses())


# ---- status and watch


def test_status_asks_every_replica_that_has_a_url(live: tuple[EtcdServer, Agent], tmp_path: Path) -> None:
    etcd, agent = live
    registry = at(etcd)[:2]
    svcnode(tmp_path, "beat", *at(etcd), "worker")
    agent.wait_until(lambda: agent.health() == 200)
    ended = svcnode(tmp_path, "status", *registry, "--json")
    (line,) = map(json.loads, ended.stdout.splitlines())
    assert ended.returncode == 0
    assert (line["identity"]["node_name"], line["overall_health"], line["remarks"]) == (NODE, "healthy", [])
    svcnode(tmp_path, "register", *at(etcd, "other"), "job", "--ttl", "60s")
    ended = svcnode(tmp_path, "status", *registry, "--json")
    first, second = map(json.loads, ended.stdout.splitlines())
    assert ended.returncode == 4
    assert (first["health"], second["health"], second["services"]) == (200, None, None)
    assert second["errors"][0]["kind"] == "UnreachableError"
    assert "services: 1" in second["remarks"][0]


def test_status_names_what_does_not_respond(etcd: EtcdServer, tmp_path: Path) -> None:
    assert svcnode(tmp_path, "status", *at(etcd)[:2]).returncode == 4  # no node
    url = f"http://127.0.0.1:{free_port()}"
    put(etcd, f"{ROOT}replicas/host-9", {"version": 1, "instance": "1", "url": url, "software": "1"}, lease_s=60)
    ended = svcnode(tmp_path, "status", *at(etcd)[:2])
    assert ended.returncode == 4
    assert [word in ended.stdout for word in (NODE, url, "replica host-9")] == [True] * 3
    ended = svcnode(tmp_path, "status", "--registry", f"etcd://127.0.0.1:{free_port()}")
    assert (ended.returncode, ended.stdout) == (4, "")
    assert "connection refused" in ended.stderr


@pytest.mark.wide
def test_watch_shows_replicas_that_join_and_those_that_are_gone_also_while_the_registry_is_away(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd") as server, Terminal(tmp_path) as terminal:
        svcnode(tmp_path, "register", *at(server), "worker", "--ttl", "60s")
        terminal.start(f"svcnode watch --interval 200ms {' '.join(at(server)[:2])}")
        terminal.wait_for_text(rf"^  ! unreachable +{NODE} ")
        with replica(tmp_path, server):
            terminal.wait_for_text(rf"^ .◐ partial +{NODE} ")
            terminal.wait_for_text("^1 replica: 1 partial")
        terminal.wait_for_text(rf"^ .! gone +{NODE} ")
        server.kill()
        terminal.wait_for_text(r"registry: .* refused  every 0.2 s$")
        assert NODE in terminal.screen
        terminal.press("q")
        assert terminal.wait_for_exit() == ("", 0)


# ---- registry check, show, forget


def findings(ended: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The levels by subject."""
    lines = [line.split() for line in ended.stdout.splitlines()[1:]]
    return {subject: level for level, subject, *_ in lines}


def test_check_says_what_works_and_writes_nothing(etcd: EtcdServer, tmp_path: Path) -> None:
    endpoint = f"{etcd.host}:{etcd.port}"
    (tmp_path / "svcnode.toml").write_text(replica_config(etcd, 8420, services=FILE_SERVICES))
    ended = svcnode(tmp_path, "registry", "check")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert findings(ended) == {
        endpoint: "ok",
        "read": "ok",
        "write": "ok",
        "format": "ok",
        "writes": "note",
        "restricted": "note",
        "replica": "ok",
    }
    assert documents(etcd) == {}
    put(etcd, f"{ROOT}services/web/client", {"version": 2})
    other = {"version": 1, "instance": "1", "url": "http://10.0.0.9:1", "software": "1"}
    put(etcd, f"{ROOT}replicas/host-1", other, lease_s=60)
    ended = svcnode(tmp_path, "registry", "check")
    assert (ended.returncode, findings(ended)["format"], findings(ended)["replica"]) == (0, "warning", "warning")


def test_check_finds_missing_permissions_and_a_wrong_password(auth_etcd: EtcdServer, tmp_path: Path) -> None:
    def check_as(password: str, node: str) -> tuple[int, dict[str, str]]:
        registry = f"etcd://{USER}@{auth_etcd.host}:{auth_etcd.port}"
        command = ["registry", "check", "--registry", registry, "--node", node]
        ended = svcnode(tmp_path, *command, SVCNODE_SHARING_PASSWORD=password)
        assert password not in ended.stdout + ended.stderr
        levels = findings(ended)
        assert levels.pop(f"{auth_etcd.host}:{auth_etcd.port}") == "ok"
        return ended.returncode, levels

    assert check_as(PASSWORD, NODE) == (0, {"login": "ok", "read": "ok", "write": "ok", "format": "ok"})
    assert check_as(PASSWORD, "read-only") == (1, {"login": "ok", "read": "ok", "write": "failed", "format": "ok"})
    assert check_as(PASSWORD, "secret") == (1, {"read": "failed"})
    assert check_as("not-the-password", NODE) == (1, {"login": "failed"})


def test_check_finds_a_full_registry_and_works_with_a_member_that_is_down(etcd: EtcdServer, tmp_path: Path) -> None:
    endpoints = [f"{etcd.host}:{etcd.port}", f"127.0.0.1:{free_port()}"]
    with etcd.storage_full():
        ended = svcnode(tmp_path, "registry", "check", *at(etcd))
        assert (ended.returncode, findings(ended)["write"]) == (1, "failed")
        assert findings(ended)[endpoints[0]] == "warning"
    ended = svcnode(tmp_path, "registry", "check", "--registry", f"etcd://{','.join(endpoints)}", "--node", NODE)
    assert ended.returncode == 0
    assert [findings(ended)[endpoint] for endpoint in endpoints] == ["ok", "warning"]


def test_check_warns_of_a_history_that_is_not_compacted(etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def levels() -> dict[str, FindingLevel]:
        registry = parse_registry_url(f"etcd://{etcd.host}:{etcd.port}")
        async with EtcdClient.at(registry, None) as client:
            return {finding.subject: finding.level for finding in await check_registry(client, registry, NODE)}

    assert "history" not in asyncio.run(levels())
    monkeypatch.setattr(check, "LONG_HISTORY", 5)
    monkeypatch.setattr(check, "LARGE_DATABASE_BYTES", 10)
    for _ in range(10):
        put(etcd, "/other", {})
    assert asyncio.run(levels()).items() >= {("history", FindingLevel.WARNING), ("size", FindingLevel.WARNING)}
    etcd.compact()
    assert "history" not in asyncio.run(levels())


def test_show_lists_nodes_replicas_services_and_ignored_keys(live: tuple[EtcdServer, Agent], tmp_path: Path) -> None:
    etcd, _ = live
    svcnode(tmp_path, "register", *at(etcd, "other"), "job", "--ttl", "60s")
    put(etcd, f"{ROOT}services/web/client", {"version": 2})
    put(etcd, f"{ROOT}nonsense", {})
    put(etcd, "/svcnode/v1/nonsense", {})
    ended = svcnode(tmp_path, "registry", "show", *at(etcd)[:2], "--json")
    assert "differs" not in svcnode(tmp_path, "registry", "show", *at(etcd)[:2]).stdout
    shown = json.loads(ended.stdout)
    ledger, other = shown["nodes"]
    assert [one["name"] for one in ledger["replicas"]] == ["host-1"]
    services = {one["id"]: (one["owners"], one["observers"], one["restricted"]) for one in ledger["services"]}
    assert services == {"worker": (["replica:host-1"], [], False), "root": (["replica:host-1"], ["host-1"], True)}
    assert [one["kind"] for one in ledger["ignored"]] == ["unknown_key", "newer_version"]
    assert shown["foreign_keys"] == ["/svcnode/v1/nonsense"]
    assert (other["name"], other["replicas"], other["services"][0]["owners"]) == ("other", [], [OWNER])
    put(etcd, f"{ROOT}services/worker/replica%3Ahost-2", {"version": 1, "position": 0, "options": {"ttl": "9s"}})
    text = svcnode(tmp_path, "registry", "show", *at(etcd)).stdout
    assert "replica:host-1 (differs), replica:host-2 (gone) " in text
    assert "nonsense" in text
    assert "other" not in text


def test_forget_removes_what_a_lost_replica_has_left_and_nothing_else(etcd: EtcdServer, tmp_path: Path) -> None:
    definition = {"version": 1, "position": 0, "options": {"ttl": "1s"}}
    svcnode(tmp_path, "register", *at(etcd), "job", "--ttl", "60s")
    put(etcd, f"{ROOT}services/root/replica%3Ahost-10", definition)
    put(etcd, f"{ROOT}services/root/replica%3Ahost-1", definition)
    put(etcd, f"{ROOT}issues/keys/replica%3Ahost-1", {"version": 1})
    replica_document = {"version": 1, "instance": "1", "url": "", "software": "1"}
    put(etcd, f"{ROOT}replicas/host-1", replica_document, lease_s=600)
    before = documents(etcd)
    is_live = svcnode(tmp_path, "registry", "forget", *at(etcd), "host-1")
    assert (is_live.returncode, is_live.stdout) == (1, "")
    assert documents(etcd) == before
    put(etcd, f"{ROOT}replicas/host-1", replica_document, lease_s=1)
    wait_until(lambda: "replicas/host-1" not in documents(etcd), "the lease is over")
    assert svcnode(tmp_path, "registry", "forget", *at(etcd), "host-1").returncode == 0
    assert set(documents(etcd)) == {f"services/job/{OWNER}", "services/root/replica:host-10"}
    assert svcnode(tmp_path, "registry", "forget", *at(etcd), "host-1").returncode == 1


def test_accept_lets_go_what_the_registry_has_lost_and_nothing_else(etcd: EtcdServer, tmp_path: Path) -> None:
    definition = {"version": 1, "position": 0, "options": {"ttl": "1s"}}
    assert svcnode(tmp_path, "registry", "accept", *at(etcd)).returncode == 1
    svcnode(tmp_path, "register", *at(etcd), "job", "--ttl", "60s")
    for name in ("web", "db"):
        put(etcd, f"{ROOT}services/{name}/lost%3Ashop-1", definition)
    put(etcd, f"{ROOT}issues/keys/lost%3Ashop-1", {"version": 1})
    shown = svcnode(tmp_path, "registry", "show", *at(etcd))
    assert "shop-1 (lost)" in shown.stdout
    services = json.loads(svcnode(tmp_path, "registry", "show", *at(etcd), "--json").stdout)["nodes"][0]["services"]
    assert {one["id"]: one["lost"] for one in services} == {"job": False, "web": True, "db": True}
    assert svcnode(tmp_path, "registry", "accept", *at(etcd), "job").returncode == 1
    accepted = svcnode(tmp_path, "registry", "accept", *at(etcd), "web")
    assert (accepted.returncode, "web" in accepted.stdout, "db" in accepted.stdout) == (0, True, False)
    assert {*documents(etcd)} == {f"services/job/{OWNER}", "services/db/lost:shop-1", "issues/keys/lost:shop-1"}
    accepted = svcnode(tmp_path, "registry", "accept", *at(etcd))
    assert (accepted.returncode, "db" in accepted.stdout, "keys" in accepted.stdout) == (0, True, True)
    assert {*documents(etcd)} == {f"services/job/{OWNER}"}
    assert svcnode(tmp_path, "register", *at(etcd), "job", "--ttl", "1s", "--owner", "lost:me").returncode == 2
