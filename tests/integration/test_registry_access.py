"""A replica and the commands, where the login of the registry changes, and where others have written large values."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import commands
from tests.support.certificates import Certificate, make_certificate
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.servers.base import wait_until
from tests.support.servers.etcd import PASSWORD, USER, EtcdServer
from tests.support.servers.etcd_gateway import EtcdGateway
from tests.support.servers.http_request import http_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SEVERAL_MACHINES = Path(__file__).parents[2] / "docs" / "several-machines.md"
NODE = "ledger"
ROOT = f"/svcnode/v1/{NODE}/"
LARGE_COUNT, LARGE_VALUE = 60, bytes(1_400_000)


@pytest.fixture(scope="module")
def auth_etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("auth"), requires_auth=True) as server:
        server.grant(ROOT)
        yield server


def config(server: EtcdServer, *, user: str = "", sharing: str = "") -> str:
    return f"""
[node]
name = "{NODE}"
[server]
listen = "127.0.0.1:{free_port()}"
[history]
keep = false
[sharing]
registry = "etcd://{user}{server.host}:{server.port}"
replica = "host-1"
{sharing}
[[services]]
id = "web"
status = "Up"
"""


def wait_for_key(server: EtcdServer, key: str, *, before: Any = None) -> Any:
    """Until there is another value than before."""
    token = server.root_token()  # a login is much work for etcd
    body = {"key": base64.b64encode(f"{ROOT}{key}".encode()).decode()}

    def found() -> Any:
        return next(iter(server.call("/v3/kv/range", body, token=token)[1].get("kvs", [])), None)

    wait_until(lambda: found() not in (before, None), f"{key} is written")
    return found()


def join(agent: Agent, server: EtcdServer) -> Any:
    """The key of the replica."""
    agent.wait_for_event("registry_joined")
    return wait_for_key(server, "replicas/host-1")


def sharing(agent: Agent) -> Any:
    return agent.request("/details").json["node"]["sharing"]


# ---- logins


@pytest.mark.parametrize("by_reload", [False, True])
def test_a_new_password_is_used_without_a_restart_and_the_lease_stays(
    auth_etcd: EtcdServer, tmp_path: Path, by_reload: bool
) -> None:
    file = tmp_path / "password"
    file.write_text("first-secret\n")
    before = config(auth_etcd, user=f"{USER}@", sharing="password = { file = 'password' }")
    if by_reload:
        before = before.replace("{ file = 'password' }", '"first-secret"')
    try:
        auth_etcd.set_password("first-secret")
        with Agent(tmp_path, config=before) as agent:
            joined = join(agent, auth_etcd)
            if by_reload:
                agent.reload(before.replace("first-secret", "second-secret"))
            else:
                file.write_text("second-secret\n")
            auth_etcd.set_password("second-secret")
            wait_for_key(auth_etcd, "evidence/host-1", before=wait_for_key(auth_etcd, "evidence/host-1"))
            wait_until(lambda: sharing(agent)["connected"], "the replica is connected")
            assert wait_for_key(auth_etcd, "replicas/host-1") == joined, "with the same lease"
            assert not any("second-secret" in line for line in agent.lines)
    finally:
        auth_etcd.set_password(PASSWORD)


def test_a_replica_comes_back_when_an_etcd_with_authentication_is_restored(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd", requires_auth=True) as server:
        server.grant(ROOT)
        server.save_snapshot(tmp_path / "snapshot")
        token = server.root_token()
        for _ in range(100):  # so that the token of the replica is younger than all that etcd has after the restore
            server.call("/v3/kv/put", {"key": "YQ=="}, token=token)
        text = config(server, user=f"{USER}@", sharing=f'password = "{PASSWORD}"')
        with Agent(tmp_path, config=text) as agent:
            join(agent, server)
            server.kill()
            server.restore_snapshot(tmp_path / "snapshot")
            server.start()
            server.wait_until_ready()
            agent.wait_for_event("registry_restored")
            wait_until(lambda: sharing(agent)["connected"], "the replica is connected")
            wait_for_key(server, "replicas/host-1")


def test_a_client_without_tls_is_told_that_etcd_may_require_it(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd", certificate=make_certificate(tmp_path)) as server:
        ended = commands.svcnode(
            "registry", "show", "--registry", f"etcd://{server.host}:{server.port}", folder=tmp_path
        )
        assert ended.returncode == 1
        assert "SVCNODE_SHARING_TLS" in ended.stderr


def test_a_reload_that_moves_the_registry_names_its_key(auth_etcd: EtcdServer, tmp_path: Path) -> None:
    before = config(auth_etcd, user=f"{USER}@", sharing=f'password = "{PASSWORD}"')
    with Agent(tmp_path, config=before) as agent:
        agent.reload(before.replace(f":{auth_etcd.port}", f":{auth_etcd.port}/other"))
        assert agent.events("reload_failed")[0]["key"] == "sharing.registry"
        agent.reload(before.replace("[sharing]", '[sharing]\nlease = "20s"'))
        assert agent.events("reload_failed")[1]["key"] == "sharing.lease"


def test_a_user_where_authentication_is_off_is_a_problem_until_it_is_on(tmp_path: Path) -> None:
    with EtcdServer(tmp_path / "etcd", requires_auth=True) as server:
        server.grant(ROOT)
        server.disable_auth()
        text = config(server, user=f"{USER}@", sharing=f'password = "{PASSWORD}"')
        (tmp_path / "svcnode.toml").write_text(text)
        for command in (["check"], ["show"]):
            ended = commands.svcnode("registry", *command, folder=tmp_path)
            assert ended.returncode == 1
            assert PASSWORD not in ended.stdout + ended.stderr
        registry = f"etcd://{USER}@{server.host}:{server.port}"
        arguments = ["register", "--registry", registry, "--node", NODE, "job", "--ttl", "60s"]
        assert commands.svcnode(*arguments, folder=tmp_path, SVCNODE_SHARING_PASSWORD=PASSWORD).returncode == 1
        with Agent(tmp_path, config=text) as agent:
            agent.wait_for_event("registry_problem")
            assert not sharing(agent)["connected"]
            assert "etcdctl auth enable" in sharing(agent)["problem"]
            server.enable_auth()
            join(agent, server)
            server.disable_auth()
            wait_until(lambda: not sharing(agent)["connected"], "the replica notices it")
            server.enable_auth()
            wait_until(lambda: sharing(agent)["connected"], "the replica is connected again")
        ended = commands.svcnode("registry", "check", folder=tmp_path)
        assert ended.returncode == 0, ended.stdout


def test_check_and_replica_log_in_where_the_status_of_a_member_needs_it(auth_etcd: EtcdServer, tmp_path: Path) -> None:
    """As etcd does since 3.6.9: after the restart of etcd, too."""
    with EtcdGateway(auth_etcd) as gateway:
        registry = f"etcd://{USER}@{gateway.host}:{gateway.port}"
        for password, code, login in ((PASSWORD, 0, "ok"), ("not-the-password", 1, "failed")):
            arguments = ["registry", "check", "--registry", registry, "--node", NODE]
            ended = commands.svcnode(*arguments, folder=tmp_path, SVCNODE_SHARING_PASSWORD=password)
            assert ended.returncode == code
            assert [login, "login"] in [line.split()[:2] for line in ended.stdout.splitlines()]
        text = config(auth_etcd, user=f"{USER}@", sharing=f'password = "{PASSWORD}"')
        with Agent(tmp_path, config=text.replace(f":{auth_etcd.port}", f":{gateway.port}")) as agent:
            join(agent, auth_etcd)
            auth_etcd.restart()
            auth_etcd.wait_until_ready()
            wait_for_key(auth_etcd, "evidence/host-1", before=wait_for_key(auth_etcd, "evidence/host-1"))
            wait_until(lambda: sharing(agent)["connected"], "the replica is connected again")


# ---- certificates


class DocumentedEtcd(EtcdServer):
    """With the certificates of docs/several-machines.md."""

    def __init__(self, folder: Path, files: Path) -> None:
        self.ca = files / "ca.pem"
        self.svcnode = Certificate(files / "svcnode.pem", files / "svcnode.key")
        flags = {"client-cert-auth": "true", "trusted-ca-file": self.ca}
        member = Certificate(files / "m1.pem", files / "m1.key")
        super().__init__(folder, certificate=member, requires_auth=True, flags=flags)

    def call(self, path: str, body: Mapping[str, object] | None = None, *, token: str = "") -> tuple[int, Any]:
        headers = {"Authorization": token} if token else {}
        return http_request(
            self.port, path, method="POST", body=body or {}, headers=headers, ca_file=self.ca, client=self.svcnode
        )


def test_the_documented_certificates_are_those_that_etcd_and_a_replica_need(tmp_path: Path) -> None:
    text = SEVERAL_MACHINES.read_text().partition("### Certificates")[2]
    script = text.partition("```sh\n")[2].partition("```")[0].replace("IP:10.0.0.1", "IP:127.0.0.1")
    subprocess.run(["sh", "-e", "-c", script], cwd=tmp_path, check=True, capture_output=True)
    with DocumentedEtcd(tmp_path / "etcd", tmp_path) as server:
        server.grant(ROOT)
        files = 'tls = true\nca = "ca.pem"\nclient_certificate = "svcnode.pem"\nclient_key = "svcnode.key"\n'
        text = config(server, user=f"{USER}@", sharing=f'password = "{PASSWORD}"\n{files}')
        (tmp_path / "svcnode.toml").write_text(text)
        ended = commands.svcnode("registry", "check", folder=tmp_path)
        assert ended.returncode == 0, ended.stdout


# ---- large values


def test_large_values_of_other_programs_stop_nothing_and_are_named(tmp_path: Path) -> None:
    """Of the node and of none, also under keys of the format; before the replica joins, and while it follows."""
    with EtcdServer(tmp_path / "etcd", flags={"quota-backend-bytes": 1_000_000_000}) as server:
        for number in range(LARGE_COUNT):
            server.put(f"{ROOT}archive/{number:02}", LARGE_VALUE)
        server.put(f"{ROOT}services/large/other", LARGE_VALUE)
        server.put(f"{ROOT}replicas/large", LARGE_VALUE)
        with Agent(tmp_path, config=config(server)) as agent:
            join(agent, server)
            for number in range(3):
                server.put(f"{ROOT}later/{number}", LARGE_VALUE)
            arguments = ["--registry", f"etcd://{server.host}:{server.port}", "--node", NODE]
            ended = commands.svcnode("register", *arguments, "job", "--ttl", "60s", folder=tmp_path)
            assert ended.returncode == 0, ended.stderr
            wait_until(lambda: "job" in agent.statuses(), "the replica follows the registry")
            assert agent.statuses()["web"] == "Up"
            counts = sharing(agent)["ignored_keys"]
            assert (counts["unknown_key"], counts["too_large"]) == (LARGE_COUNT + 3, 2)
            ended = commands.svcnode("registry", "check", folder=tmp_path)
            assert ended.returncode == 0, ended.stdout
            for key in ("archive/00", "services/large/other", "replicas/large"):
                assert f"{ROOT}{key}" in ended.stdout
            ended = commands.svcnode("registry", "show", *arguments, folder=tmp_path)
            assert "job" in ended.stdout
            ended = commands.svcnode("status", *arguments[:2], folder=tmp_path)
            assert NODE in ended.stdout
