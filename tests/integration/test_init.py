"""`svcnode init` against real servers and against what only looks like one; what it writes is served as it is."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.discovery.catalog import CATALOG
from svcnode.discovery.scan import ScanResult, scan
from tests.support.backends import (
    Backend,
    HttpBackend,
    Peer,
    close,
    closed_port,
    full_backlog,
    http_response,
    open_file_count,
    reset,
    sending,
    server_tls,
    unresponsive,
)
from tests.support.certificates import make_certificate
from tests.support.http_server import becomes_true
from tests.support.processes import Agent, has_ipv6, run_command
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.ganache import GanacheServer
from tests.support.servers.ipfs import IpfsServer
from tests.support.servers.mariadb import MariaDbServer
from tests.support.servers.memcached import MemcachedServer
from tests.support.servers.nats import NatsServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.rabbitmq import RabbitServer
from tests.support.servers.redis import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.servers.base import RealServer

DEADLINE_S = 30.0
REFERENCE = (Path(__file__).parents[2] / "docs" / "reference.md").read_text()
ANYWHERE = ("--listen", "127.0.0.1:0")
SOON_S = 0.3
KINDS = [known.kind for known in CATALOG]
BY_KIND = {known.kind: known for known in CATALOG}
# Over HTTP, the server waits for the end of a request, which a TLS handshake never has.
HTTP_KINDS = ["etcd", "ethereum", "beacon", "ipfs", "node"]

# A guarded etcd tells everybody whether it is well.
OPEN: dict[str, Callable[[Path], RealServer]] = {
    "redis": RedisServer,
    "memcached": MemcachedServer,
    "etcd": lambda folder: EtcdServer(folder, requires_auth=True),
    "ethereum": GanacheServer,
    "beacon": BeaconServer,
    "ipfs": IpfsServer,
}
WITH_AUTH: dict[str, Callable[[Path], RealServer]] = {
    "postgresql": PostgresServer,
    "mysql": MariaDbServer,
    "redis": lambda folder: RedisServer(folder, password="ledger-password"),
    "amqp": RabbitServer,
    "nats": NatsServer,
}


class TrustAuthPostgres(PostgresServer):
    def configure(self) -> None:
        super().configure()
        (self.data / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 trust\n")


@pytest.fixture
def unused_port() -> Iterator[int]:
    with closed_port() as port:
        yield port


def init(
    folder: Path, ports: dict[str, list[int]], unused_port: int, *arguments: str, code: int = 0, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Kinds that are not named are looked for where unused_port is, whatever runs on this machine."""
    where = {kind: ports.get(kind, [unused_port]) for kind in KINDS}
    options = [word for kind in KINDS for port in where[kind] for word in ("--port", f"{kind}={port}")]
    ended = run_command(
        [sys.executable, "-W", "error", "-m", "svcnode", "init", *arguments, *options], folder, **environ
    )
    assert ended.returncode == code, ended.stderr
    return ended


def check_config(folder: Path, **environ: str) -> None:
    ended = run_command([sys.executable, "-W", "error", "-m", "svcnode", "check-config"], folder, **environ)
    assert (ended.returncode, ended.stderr) == (0, "")


def written(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "svcnode.toml").read_text())


def is_served(folder: Path, statuses: dict[str, str], *arguments: str, **environ: str) -> None:
    with Agent(folder, *(arguments or ANYWHERE), environ=environ) as agent:
        agent.wait_until(lambda: agent.statuses() == statuses)
        assert agent.health() == 200
        assert agent.request("/svc/node").json["node_name"] == written(folder)["node"]["name"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "node"
    made.mkdir()
    return made


# ---- real servers


@pytest.mark.parametrize("kind", OPEN)
def test_a_server_that_lets_us_in_is_probed_with_the_right_kind(
    kind: str, folder: Path, tmp_path: Path, unused_port: int
) -> None:
    with OPEN[kind](tmp_path / "server") as server:
        ended = init(folder, {kind: [server.port]}, unused_port)
        probe = BY_KIND[kind].url.format(place=f"127.0.0.1:{server.port}")
        assert ended.stdout.splitlines()[:2] == ["Found on this host:", f"  {BY_KIND[kind].title}  {probe}  ready"]
        (service,) = written(folder)["services"]
        assert (service["id"], service["probe"]) == (kind, probe)
        check_config(folder)
        is_served(folder, {kind: "Up"})


@pytest.mark.parametrize("kind", WITH_AUTH)
def test_a_server_that_asks_for_a_password_is_checked_from_outside_until_it_has_one(
    kind: str, folder: Path, tmp_path: Path, unused_port: int
) -> None:
    with WITH_AUTH[kind](tmp_path / "server") as server:
        ended = init(folder, {kind: [server.port]}, unused_port)
        assert "shows only that something listens; a closer look failed: " in ended.stdout
        assert "no answer" not in ended.stdout, "it answered, and said no"
        (service,) = written(folder)["services"]
        assert (service["id"], service["probe"]) == (kind, f"tcp://127.0.0.1:{server.port}")
        check_config(folder)
        is_served(folder, {kind: "Up"})


def test_a_database_that_trusts_this_host_is_probed_with_the_right_kind(
    folder: Path, tmp_path: Path, unused_port: int
) -> None:
    with TrustAuthPostgres(tmp_path / "server") as server:
        init(folder, {"postgresql": [server.port]}, unused_port)
        probe = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
        assert [service["probe"] for service in written(folder)["services"]] == [probe]
        is_served(folder, {"postgresql": "Up"})


def test_the_better_probe_works_as_it_stands_there_with_a_user_and_a_password(
    folder: Path, tmp_path: Path, unused_port: int
) -> None:
    with RedisServer(tmp_path / "server", password="ledger-password") as server:
        init(folder, {"redis": [server.port]}, unused_port)
        file = folder / "svcnode.toml"
        lines = [line for line in file.read_text().splitlines() if not line.startswith("probe =")]
        file.write_text("\n".join(lines).replace("# probe =", "probe ="))
        assert "tcp://" not in file.read_text()
        check_config(folder, REDIS_PASSWORD="ledger-password")
        is_served(folder, {"redis": "Up"}, REDIS_PASSWORD="ledger-password")


def test_several_services_stand_in_one_file(folder: Path, tmp_path: Path, unused_port: int) -> None:
    with (
        BeaconServer(tmp_path / "one") as one,
        BeaconServer(tmp_path / "two") as two,
        IpfsServer(tmp_path / "ipfs") as ipfs,
    ):
        init(folder, {"beacon": [one.port, two.port], "ipfs": [ipfs.port]}, unused_port)
        ids = [f"beacon-{one.port}", f"beacon-{two.port}", "ipfs"]
        assert [service["id"] for service in written(folder)["services"]] == ids
        check_config(folder)
        is_served(folder, dict.fromkeys(ids, "Up"))


def test_a_server_that_is_not_ready_yet_is_probed_with_the_right_kind(
    folder: Path, tmp_path: Path, unused_port: int
) -> None:
    with BeaconServer(tmp_path / "server") as server:
        server.set(is_syncing=True)
        ended = init(folder, {"beacon": [server.port]}, unused_port)
        assert f"beacon+http://127.0.0.1:{server.port}  not ready: " in ended.stdout
        assert "# When this was written: not ready: " in (folder / "svcnode.toml").read_text()
        assert written(folder)["services"][0]["probe"] == f"beacon+http://127.0.0.1:{server.port}"


def test_without_the_driver_it_says_what_to_install(folder: Path, tmp_path: Path, unused_port: int) -> None:
    hidden = tmp_path / "hidden" / "redis"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('No module named redis', name='redis')")
    with RedisServer(tmp_path / "server") as server:
        ended = init(folder, {"redis": [server.port]}, unused_port, PYTHONPATH=str(hidden.parent))
        fix = 'redis probes need their driver: pip install "svcnode[redis]"'
        assert f"tcp://127.0.0.1:{server.port}  shows only that something listens: {fix}\n" in ended.stdout
        assert f"#   {fix}\n" in (folder / "svcnode.toml").read_text()
        is_served(folder, {"redis": "Up"})


def test_another_node_is_found(folder: Path, tmp_path: Path, unused_port: int) -> None:
    with Agent(tmp_path, "--listen", "127.0.0.1:0", config='[[services]]\nid = "a"\nstatus = "Up"\n') as other:
        init(folder, {"node": [other.port]}, unused_port)
        (service,) = written(folder)["services"]
        assert service["probe"] == f"svc+http://127.0.0.1:{other.port}"
        check_config(folder)
        is_served(folder, {"node": "Up"})


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_what_listens_only_on_ipv6_is_found_there(folder: Path) -> None:
    identity = '{"node_name": "n", "spec_version": "v0.0.1", "node_version": "v1"}'
    with closed_port() as unused_port, HttpBackend(http_response(200, identity), host="::1") as backend:
        init(folder, {"node": [backend.port]}, unused_port)
        (service,) = written(folder)["services"]
        assert service["probe"] == f"svc+http://[::1]:{backend.port}"
        check_config(folder)


def test_with_nothing_found_the_node_answers_for_its_own_store(folder: Path, unused_port: int) -> None:
    ended = init(folder, {}, unused_port)
    assert ended.stdout.startswith("No known service was found on this host")
    check_config(folder)
    is_served(folder, {"store": "Up"}, "--log-level", "info")  # and listens where the file says


# ---- what cannot be confirmed


def scan_output(kinds: list[str], port: int, deadline_s: float = SOON_S) -> ScanResult:
    with closed_port() as unused_port:
        places = {kind: [port] if kind in kinds else [unused_port] for kind in KINDS}
        return asyncio.run(scan(places, deadline_s))


def reasons(seen: ScanResult) -> set[str]:
    return {one.reason for one in seen.unconfirmed}


GARBAGE = {
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "smtp": b"220 mail ESMTP\r\n",
    "zeros": bytes(5000),
    "noise": bytes(range(255, 0, -1)) * 300,
    "too much": b"x" * 1_000_000,
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=list(GARBAGE))
def test_what_says_something_else_is_not_confirmed(said: bytes) -> None:
    with Backend(sending(said)) as backend:
        seen = scan_output(KINDS, backend.port, 2.0)
    assert seen.found == ()
    assert reasons(seen) <= {
        f"is open, but what answers there is not {known.title_with_article}" for known in CATALOG
    } | {
        "is open, but reset the connection"  # it hangs up with our words unread, which may be faster than its own
    }
    assert len(seen.unconfirmed) == len(CATALOG)


ANSWERS = {
    "another document": http_response(200, '{"status": "ok"}'),
    "a list": http_response(200, "[]"),
    "no JSON": http_response(200, "<html>"),
    "JSON without an end": http_response(200, "[" * 100_000),
    "not found": http_response(404, '{"Version": "1", "etcdserver": "1", "data": {"version": "1"}}'),
    "a redirect": http_response(302, "", Location="http://127.0.0.1:1/"),
    "halves of characters": http_response(200, b'{"Version": "\xff"}'),
    "less than it said": http_response(200, "{}").replace(b"Content-Length: 2", b"Content-Length: 20"),
    "a head without an end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_another_web_server_is_not_confirmed(answer: bytes) -> None:
    with HttpBackend(answer) as backend:
        seen = scan_output(HTTP_KINDS, backend.port, 2.0)
    assert seen.found == ()
    assert reasons(seen) <= {
        *(f"is open, but what answers there is not {BY_KIND[kind].title_with_article}" for kind in HTTP_KINDS),
        "is open, but reset the connection",
    }


def test_a_port_that_is_mute_is_told_apart(folder: Path, unused_port: int) -> None:
    with Backend(unresponsive) as backend:
        seen = scan_output(KINDS, backend.port)
        assert (seen.found, reasons(seen)) == ((), {"is open, but did not answer within 0.3 s"})
        ended = init(folder, {"redis": [backend.port]}, unused_port)
    assert ended.stdout.splitlines()[1:3] == [
        "Not confirmed, and not written:",
        f"  port {backend.port} is open, but did not answer within 1 s",
    ]
    assert "services" not in written(folder)


def test_mute_ports_do_not_hold_it_up_one_after_the_other() -> None:
    with Backend(unresponsive) as backend:
        began_s = time.monotonic()
        asyncio.run(scan({kind: [backend.port] for kind in KINDS}))
        assert time.monotonic() - began_s < 3


def test_a_port_that_takes_no_connection_is_told_apart() -> None:
    with full_backlog() as port:
        assert reasons(scan_output(KINDS, port)) == {"took no connection within 0.3 s"}


def test_a_port_that_hangs_up_is_told_apart() -> None:
    with Backend(reset) as backend:
        assert reasons(scan_output(KINDS, backend.port)) == {"is open, but reset the connection"}
    with Backend(close) as backend:
        spoken = [kind for kind in KINDS if kind not in HTTP_KINDS]
        assert reasons(scan_output(spoken, backend.port)) == {"is open, but closed the connection without a word"}


def test_a_port_that_speaks_tls_is_told_apart(tmp_path: Path) -> None:
    with Backend(unresponsive, tls=server_tls(make_certificate(tmp_path))) as backend:
        assert reasons(scan_output(["redis", "mysql", "etcd"], backend.port)) == {
            "is open and speaks TLS, under which Redis or Valkey is not looked for",
            "is open and speaks TLS, under which MySQL or MariaDB is not looked for",
            "is open and speaks TLS, under which etcd is not looked for",
        }


def test_an_answer_that_comes_byte_by_byte_is_understood() -> None:
    def slowly(peer: Peer) -> None:
        for byte in b"+PONG\r\n":
            peer.send(bytes([byte]))
            time.sleep(0.01)

    with Backend(slowly) as backend:
        (found,) = scan_output(["redis"], backend.port, 5.0).found
        assert found.entry.kind == "redis"


def test_a_port_that_is_known_by_one_name_is_not_told_to_be_nothing_else() -> None:
    with Backend(sending(b"INFO {}\r\n")) as backend:
        seen = scan_output(["redis", "nats"], backend.port)
    assert [one.entry.kind for one in seen.found] == ["nats"]
    assert seen.unconfirmed == ()


def test_checking_leaves_nothing_open() -> None:
    with ExitStack() as stack:
        backends = [
            stack.enter_context(Backend(script)) for script in (unresponsive, reset, close, sending(b"+PONG\r\n"))
        ]
        scan_output(KINDS, backends[0].port, 0.1)
        before = open_file_count()
        for backend in backends:
            scan_output(KINDS, backend.port, 0.1)
        assert becomes_true(
            lambda: open_file_count() <= before
        )  # the ends of those that were looked at are open here, too


# ---- the file


def test_the_reference_has_every_kind_and_its_ports() -> None:
    for known in CATALOG:
        ports = r"\D+".join(map(str, known.ports))
        assert re.search(rf"`{known.kind}`[^`\d]*\s{ports}", REFERENCE), known.kind


def test_of_several_at_once_one_writes_the_file(folder: Path, unused_port: int) -> None:
    options = [word for kind in KINDS for word in ("--port", f"{kind}={unused_port}")]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "svcnode", "init", *options],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    said = [process.communicate(timeout=DEADLINE_S)[1] for process in running]
    assert sorted(process.returncode for process in running) == [0, 2, 2, 2]
    assert sum("svcnode.toml exists already" in words for words in said) == 3
    check_config(folder)


def test_a_disk_that_is_full_leaves_no_half_of_a_file(folder: Path, unused_port: int) -> None:
    """A limit on the size of files stands in for the disk: the system refuses the rest in the same way."""
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500)); "
        "from svcnode.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    options = [word for kind in KINDS for word in ("--port", f"{kind}={unused_port}")]
    ended = subprocess.run(
        [sys.executable, "-B", "-c", script, "init", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == "svcnode: cannot write svcnode.toml: file too large\n"
    assert list(folder.iterdir()) == []


def test_printed_it_is_utf_8_whatever_the_terminal_can_spell(folder: Path, unused_port: int) -> None:
    ended = init(folder, {}, unused_port, "--stdout", PYTHONIOENCODING="ascii", LC_ALL="C")
    (folder / "svcnode.toml").write_text(ended.stdout)
    check_config(folder)
    assert ended.stderr.startswith("No known service was found")
