"""Every command of README and docs/ is run as printed, unless a list here says which test runs it, or why none can.

A command that is new in a page is run beside the node of this file, and must succeed.
"""

from __future__ import annotations

import datetime
import os
import platform
import pty
import re
import shlex
import shutil
import subprocess
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pytest
import yaml  # type: ignore[import-untyped]

from tests.support.documentation import HOME, PAGES, ROOT, Machine, ShownCommand, shown_commands
from tests.support.processes import DEADLINE_S
from tests.support.servers.base import wait_until
from tests.support.servers.provision import program, skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = [command for page in PAGES for command in shown_commands(page)]


class Elsewhere(NamedTuple):
    """Commands that this file does not run by themselves. Each pattern is that of a whole command."""

    pages: str
    commands: str
    why: str  # a test that takes them from the page, or does the same; or why no test can run them
    is_prompted: bool = False  # only those with a prompt

    def has(self, command: ShownCommand) -> bool:
        is_of_page = re.fullmatch(self.pages, command.page) is not None and self.is_prompted <= command.is_prompted
        return is_of_page and re.fullmatch(self.commands, command.text, re.DOTALL) is not None


INSTALL = r"docs/install\.md"
SEVERAL = r"docs/several-machines\.md"
RUN_BY = [
    Elsewhere(
        r"README\.md|" + INSTALL,
        r"(LEDGER_PASSWORD=… )?make (run|demo)( SVCNODE_SERVER_LISTEN=\S+)?",
        "tests/deploy/test_checkout.py::running",
    ),
    Elsewhere(
        INSTALL,
        "apt (remove|purge) svcnode",
        "tests/deploy/test_deb.py::test_configuration_and_history_outlive_an_upgrade_and_a_removal_but_not_a_purge",
    ),
    Elsewhere(
        INSTALL,
        "sha256sum --check .*",
        "tests/deploy/test_release.py::test_a_release_has_all_files_and_their_checksums",
    ),
    Elsewhere(
        INSTALL,
        r"install -D svcnode\.pyz .*",
        "tests/integration/test_pyz.py::test_the_file_is_a_command_when_it_is_installed_as_documented",
    ),
    Elsewhere(
        INSTALL,
        r"eval .*",
        "tests/integration/test_completion.py::test_a_shell_completes_commands_options_kinds_and_ids",
    ),
    Elsewhere(
        INSTALL,
        r"XDG_CACHE_HOME=… python3 svcnode\.pyz serve",
        "tests/integration/test_pyz.py::test_another_folder_can_be_chosen",
    ),
    Elsewhere(
        INSTALL,
        r"make run PYTHON=\S+",
        "tests/integration/test_make.py::test_make_run_installs_only_what_runs_and_make_setup_the_rest",
    ),
    Elsewhere(
        INSTALL,
        r"make run SVCNODE_SERVER_LISTEN=\S+ SVCNODE_NODE_NAME=\S+",
        "tests/integration/test_make.py::test_a_second_node_runs_beside_the_first_with_another_name_and_address",
    ),
    Elsewhere(INSTALL, "man -l .*", "tests/integration/test_man_pages.py::test_the_formatters_have_no_warnings"),
    Elsewhere(INSTALL, "make deb", "tests/deploy/test_deb.py::package"),
    Elsewhere(INSTALL, r"apt install \./dist/\S+\.deb", "tests/deploy/test_deb.py::install"),
    Elsewhere(INSTALL, "make image", "tests/deploy/test_image.py::store"),
    Elsewhere(INSTALL, "make pyz", "tests/deploy/test_release.py::made"),
    Elsewhere(
        INSTALL,
        r"python3 dist/svcnode\.pyz serve",
        "tests/deploy/test_release.py::test_the_default_node_of_a_user_is_healthy",
    ),
    Elsewhere(
        INSTALL,
        r"(umask|python3 -m venv|/opt/svcnode/bin/pip|\.venv-wheel/bin/pip|ln|mkdir|svcnode init|useradd) .*"
        r"|cp deploy/systemd/.*|systemctl (daemon-reload|enable .*)",
        "tests/deploy/test_install_page.py::run_section",
    ),
    Elsewhere(r"docs/embed\.md", r"pip install \. fastapi uvicorn", "tests/deploy/test_install_page.py::run_section"),
    Elsewhere(
        r"docs/configure\.md",
        "svcnode check-config",
        "tests/integration/test_docs.py::test_the_example_of_a_configuration_error_is_the_printed_one",
    ),
    Elsewhere(
        r"docs/questions\.md",
        ".*",
        "tests/integration/test_docs.py::test_the_command_of_a_question_does_what_the_answer_says",
    ),
    Elsewhere(
        r"docs/report\.md",
        "(?!.*--registry).*",
        "tests/integration/test_control_examples.py::test_the_commands_of_the_page_print_what_it_shows",
        is_prompted=True,
    ),
    Elsewhere(
        r"docs/ask\.md",
        r"svcnode registry forget .*",
        "tests/integration/test_registry_commands.py::test_forget_removes_what_a_lost_replica_has_left_and_nothing_else",
    ),
    Elsewhere(
        r"docs/ask\.md",
        r"svcnode registry accept",
        "tests/integration/test_registry_commands.py::test_accept_lets_go_what_the_registry_has_lost_and_nothing_else",
    ),
]
NOT_RUN = [
    Elsewhere(r"README\.md", "make test", "it runs this test"),
    Elsewhere(
        r"docs/internals/[\w-]+\.md",
        r"make (alerts|bench|chaos|fuzz|kills|memory|lighthouse|reload|scale|screenshots|sharing|siege|soak|truth)"
        r"|python -m (pytest tests/contract|tests\.stress\.\w+.*)",
        "it takes minutes to hours; its short form is a test of its own",
    ),
    Elsewhere(INSTALL, "editor .*", "people write there; the tests write the file themselves"),
    Elsewhere(
        INSTALL,
        "podman (run|logs) .*",
        "podman needs limits that a test cannot set; tests/support/containers.py runs the image",
    ),
    Elsewhere(INSTALL, "docker build .*", "there is no daemon; make image builds the same file"),
    Elsewhere(INSTALL, "buildah push .*", "there is no registry"),
    Elsewhere(INSTALL, "kubectl .*", "there is no cluster; tests/integration/test_kubernetes.py checks the manifests"),
    Elsewhere(
        INSTALL + r"|docs/operate\.md",
        r"systemctl (status|reload) \w+|systemctl --user .*",
        "systemd does not run in a test; tests/integration/test_systemd.py does what the unit says",
    ),
    Elsewhere(r"docs/probes/messaging\.md", "nats stream add .*", "Debian has no package of this program"),
]
# The tests below run these: they are steps of one story, or run until they are stopped.
STORIES = [
    Elsewhere(INSTALL, r"SVCNODE_DEFAULTS_.* svcnode serve|rm /tmp/node\.db|svcnode explain --service store", "break"),
    Elsewhere(INSTALL, r"cp deploy/prometheus/.*|promtool .*", "monitor"),
    Elsewhere(r"docs/configure\.md", "svcnode init", "init"),
    Elsewhere(".*", r"apt(-get)? install (?!\./).*", "packages"),
    Elsewhere("(?!" + SEVERAL + ").*", r"(\w+=\S+ )*svcnode serve\b.*", "serve"),
    Elsewhere(".*", "svcnode watch (?!--registry).*", "watch"),
    Elsewhere(".*", "svcnode watch --registry .*", "watch the registry"),
    Elsewhere(SEVERAL, r"etcd --data-dir .*|python3 -m http\.server 8080|SVCNODE_SHARING_.* svcnode serve", "replicas"),
    Elsewhere(r"(?!" + SEVERAL + r").*", r"etcdctl .*|svcnode .*--registry .*|svcnode registry .*", "registry"),
    Elsewhere(SEVERAL, r"svcnode (registry show|status .*|.*--all-replicas.*)", "registry"),
    Elsewhere(SEVERAL, r"etcd --name .*|export ETCDCTL_.*|etcdctl .*|openssl .*|svcnode registry check", "cluster"),
]
# Of the commands that tell a health or an outcome: this node is partially healthy, and its ledger is Down.
EXIT_CODES = {
    "svcnode status node-1:8420 https://node-2.example.com --from fleet.txt": 1,
    "svcnode status http://127.0.0.1:8420": 1,
    "svcnode explain --service ledger": 3,
    "svcnode explain https://node-7.example.com:8420 --service ledger --token @token.txt": 3,
}


def entry_of(command: ShownCommand) -> Elsewhere | None:
    """The first that has it. Without any, it is run by itself."""
    return next((entry for entry in (*RUN_BY, *NOT_RUN, *STORIES) if entry.has(command)), None)


def story(name: str) -> list[ShownCommand]:
    return [command for command in COMMANDS if (entry := entry_of(command)) is not None and entry.why == name]


# ---- the lists


@pytest.mark.parametrize("entry", [*RUN_BY, *NOT_RUN, *STORIES], ids=lambda entry: entry.commands[:40])
def test_a_page_has_a_command_of_each_entry(entry: Elsewhere) -> None:
    assert [command for command in COMMANDS if entry_of(command) is entry] != []


@pytest.mark.parametrize("entry", RUN_BY, ids=lambda entry: entry.why)
def test_what_runs_a_command_elsewhere_exists(entry: Elsewhere) -> None:
    file, _, name = entry.why.partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()


# ---- beside one node


CONFIG = """
[node]
name = "validator-7"
[server]
listen = {listen}
drain = "0s"
{tls}
[security]
operator_token = "the-token-of-the-documentation"
[notify]
webhook = "http://127.0.0.1:8080/hook"
services = "critical"
[defaults]
interval = "200ms"
start_period = "0s"
"""
SERVICES = """
[[services]]
id = "{id}"
{what}
"""
DOWN, UP, REPORTED = 'probe = "tcp://127.0.0.1:1"', 'status = "Up"', 'probe = "heartbeat:1h"'
STATUSES = {"ledger": DOWN, "db-1": DOWN, "db": UP, "cache": UP, "chain": UP, "indexer": REPORTED}
TLS = '[server.tls]\ncertificate = "/tmp/docs/tls.pem"\nkey = "/tmp/docs/tls.key"'
# Answers every request, at the two ports of the pages.
BACKEND = """
import http.server, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "15")
        self.end_headers()
        self.wfile.write(b'{"status":"ok"}')
    do_POST = do_GET
servers = [http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) for port in (8080, 8545)]
threading.Thread(target=servers[0].serve_forever, daemon=True).start()
servers[1].serve_forever()
"""
CERTIFICATE = (
    'openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -days 2 -subj "/CN=docs"'
    ' -addext "subjectAltName=DNS:*.example.com" -keyout tls.key -out tls.pem'
)


def config(listen: str, tls: str = "") -> str:
    services = (SERVICES.format(id=id_, what=what) for id_, what in STATUSES.items())
    return CONFIG.format(listen=listen, tls=tls) + "".join(services)


@pytest.fixture(scope="module")
def operated() -> Iterator[Machine]:
    """A node on its default port, the same node with TLS, and what it checks."""
    with Machine() as machine:
        assert machine.run(CERTIFICATE).returncode == 0
        machine.environ |= dict.fromkeys(("SSL_CERT_FILE", "CURL_CA_BUNDLE"), f"{HOME}/tls.pem")
        machine.environ["TOKEN"] = "the-token-of-the-documentation"
        machine.write(f"{HOME}/svcnode.toml", config('"127.0.0.1:8420"'))
        machine.write(f"{HOME}/tls.toml", config('["10.0.0.2:443", "10.0.0.2:8420"]', TLS))
        machine.write(f"{HOME}/token.txt", machine.environ["TOKEN"])
        machine.write(f"{HOME}/fleet.txt", "node-1:8420\n")
        machine.write(f"{HOME}/backend.py", BACKEND)
        for program_ in ("/opt/indexer/bin/indexer", "/opt/backup"):
            machine.write(program_, "#!/bin/sh\nexit 0\n", 0o755)
        machine.start("exec python3 backend.py")
        machine.start("exec svcnode serve")
        machine.start(
            "XDG_STATE_HOME=/tmp/tls SVCNODE_CONTROL_LISTEN=unix:/tmp/tls.sock exec svcnode serve --config tls.toml"
        )
        for id_ in ("ledger", "db-1"):
            machine.wait_for(f"svcnode explain --service {id_}; test $? = 3")
        machine.wait_for(
            "svcnode explain https://node-7.example.com:8420 --service ledger --token @token.txt; test $? = 3"
        )
        yield machine


def as_run(command: ShownCommand) -> str:
    """Days of the pages will be over; an error of a server is one of curl."""
    today = datetime.datetime.now(datetime.UTC).date()
    for day in (1, 2):
        moved = today + datetime.timedelta(days=day)
        command = command._replace(text=command.text.replace(f"2026-12-0{day}", moved.isoformat()))
    return re.sub(r"^curl ", "curl --fail ", command.text)


@pytest.mark.parametrize("command", [command for command in COMMANDS if entry_of(command) is None], ids=str)
def test_a_command_works(operated: Machine, command: ShownCommand) -> None:
    ended = operated.run(as_run(command))
    assert ended.returncode == EXIT_CODES.get(command.text, 0), ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


# ---- commands that run until they are stopped


ONE_SERVICE = '[[services]]\nid = "a"\nstatus = "Up"\n'


@pytest.mark.parametrize("command", story("serve"), ids=str)
def test_a_node_is_served(command: ShownCommand) -> None:
    with Machine() as machine:
        machine.write("/etc/svcnode/svcnode.toml", ONE_SERVICE)
        process = machine.start(command.text)
        machine.wait_for("curl --fail --silent http://127.0.0.1:8420/livez")
        assert process.poll() is None


def watched(machine: Machine, command: str, expected: str) -> int:
    """The exit code after q, which is pressed when the screen has this text."""
    ours, terminal = pty.openpty()
    process = machine.start(command, terminal=terminal)
    os.close(terminal)
    screen = b""
    while expected.encode() not in screen:
        screen += os.read(ours, 65536)
    os.write(ours, b"q")
    with os.fdopen(ours, "rb", buffering=0) as rest, suppress(OSError):  # the end of a terminal
        while rest.read(65536):
            pass
    return process.wait(DEADLINE_S)


def test_nodes_are_watched(operated: Machine) -> None:
    (command,) = story("watch")
    assert watched(operated, command.text, "validator-7") == 0


# ---- stories


def test_a_configuration_is_written_once() -> None:
    (command,) = story("init")
    with Machine() as machine:
        assert machine.run(command.text).returncode == 0
        assert machine.run("svcnode check-config").returncode == 0


def test_the_first_node_can_be_broken() -> None:
    serve, remove, explain = (command.text for command in story("break"))
    health = "curl --silent --output /dev/null --write-out '%{http_code}' http://127.0.0.1:8420/svc/node/health"
    with Machine() as machine:
        machine.start(serve)
        wait_until(lambda: machine.run(health).stdout == "200", "the node is healthy")
        assert machine.run(remove).returncode == 0
        wait_until(lambda: machine.run(health).stdout == "503", "the node is unhealthy")
        assert machine.run(explain).returncode == 3


@pytest.mark.wide  # needs the lists of Debian's packages, which a machine may not have
def test_debian_has_every_package_that_is_installed() -> None:
    apt = shutil.which("apt-get") or skip_or_fail("this is no Debian")
    for command in story("packages"):
        simulate = [apt, "--simulate", *shlex.split(command.text)[1:]]
        ended = subprocess.run(simulate, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        assert ended.returncode == 0, ended.stderr


def test_prometheus_of_debian_gets_the_rules_and_the_node() -> None:
    program("promtool", "prometheus")
    copy, check = (command.text for command in story("monitor"))
    with Machine() as machine:
        file = machine.path("/etc/prometheus/prometheus.yml")
        ours = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        (job,) = ours["scrape_configs"]
        del job["authorization"]
        theirs = yaml.safe_load(file.read_text())
        for key in ("rule_files", "scrape_configs"):
            theirs[key] = [*(theirs[key] or ()), *ours[key]]
        file.write_text(yaml.safe_dump(theirs))
        assert machine.run(check).returncode != 0, "the rules are missing"
        assert machine.run(copy, folder=str(ROOT)).returncode == 0
        ended = machine.run(check)
        assert ended.returncode == 0, ended.stdout + ended.stderr


# ---- several machines


ARCHITECTURE = platform.machine().replace("aarch64", "arm64")
SEVERAL_MACHINES = ROOT / "docs" / "several-machines.md"
SHARED_CONFIG, PRODUCTION_CONFIG = re.findall(
    r"^```toml\n(.*?)^```$", SEVERAL_MACHINES.read_text(), re.DOTALL | re.MULTILINE
)[:2]


@pytest.fixture(scope="module")
def shared() -> Iterator[Machine]:
    """The example with three replicas. Its etcd also listens on the address of other pages."""
    program("etcd", "etcd-server")
    program("etcdctl", "etcd-client")
    etcd, *others = story("replicas")
    with Machine() as machine:
        machine.environ |= {
            "ETCDCTL_API": "3",
            "ETCD_UNSUPPORTED_ARCH": ARCHITECTURE,
            "ETCD_LISTEN_CLIENT_URLS": "http://127.0.0.1:2379,http://10.0.0.1:2379",
            "ETCD_ADVERTISE_CLIENT_URLS": "http://127.0.0.1:2379",
        }
        machine.write(f"{HOME}/svcnode.toml", SHARED_CONFIG)
        machine.write("/opt/backup", "#!/bin/sh\nexit 0\n", 0o755)
        machine.start(etcd.text)
        machine.wait_for("etcdctl endpoint health")
        for command in others:
            machine.start(command.text)
        for port in (8421, 8422, 8423):
            machine.wait_for(f"svcnode status http://127.0.0.1:{port}")
        machine.environ["XDG_STATE_HOME"] = "/tmp/host-1"  # commands are run on the first of the machines
        yield machine


def test_the_replicas_of_the_example_are_shown_as_printed(shared: Machine) -> None:
    (block,) = re.findall(
        r"^```console\n(\$ svcnode registry show\nledger: replicas: 3.*?)^```$",
        SEVERAL_MACHINES.read_text(),
        re.DOTALL | re.MULTILINE,
    )
    for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = shown.partition("\n")
        wait_until(partial(prints, shared, command, output), command)


def prints(machine: Machine, command: str, expected: str) -> bool:
    """Any of the replicas may check the service."""
    texts = (machine.run(command).stdout, expected)
    one, other = (re.sub(r"checks by host-\d", "checks by host", text).strip() for text in texts)
    return one == other


def test_commands_work_with_the_registry(shared: Machine) -> None:
    assert shared.run("svcnode register --registry etcd://127.0.0.1:2379 --node ledger db --ttl 1h").returncode == 0
    lease = ""
    for command in story("registry"):
        text = re.sub(r"\b32695410dcc0ca06\b", lease, as_run(command))
        ended = shared.run(text.replace("keep-alive", "keep-alive --once"))
        lease = re.findall(r"lease (\w+) granted", ended.stdout)[0] if "lease grant" in text else lease
        is_partial = " status " in text and ended.returncode == 1  # services that were registered and not reported
        assert is_partial or ended.returncode == 0, f"{command}: {ended.stdout}{ended.stderr}"


def test_the_registry_is_watched(shared: Machine) -> None:
    (command,) = story("watch the registry")
    assert watched(shared, command.text, "ledger") == 0


# Three machines of their own, since members compare an address with the certificate of the one that connects from it.
NETWORK = """
set -e
ip link add bridge0 type bridge
ip link set bridge0 up
for number in 1 2 3; do
    ip address delete 10.0.0.$number/32 dev lo
    ip netns add m$number
    ip link add link$number type veth peer name eth0 netns m$number
    ip link set link$number master bridge0 up
    ip -n m$number link set lo up
    ip -n m$number address add 10.0.0.$number/24 dev eth0
    ip -n m$number link set eth0 up
done
ip address add 10.0.0.9/24 dev bridge0
"""


def test_a_cluster_of_etcd_with_certificates_and_a_user_is_checked() -> None:
    program("etcd", "etcd-server")
    program("etcdctl", "etcd-client")
    texts = [command.text for command in story("cluster")]
    (certificates,) = (text for text in texts if text.startswith("openssl"))
    (etcd,) = (text for text in texts if text.startswith("etcd "))
    export, *users = (text for text in texts if text.startswith(("export ETCDCTL", "etcdctl")))
    with Machine() as machine:
        machine.environ["ETCD_UNSUPPORTED_ARCH"] = ARCHITECTURE
        for script in (NETWORK, f"set -e\n{certificates}"):
            ended = machine.run(script)
            assert ended.returncode == 0, ended.stderr
        for number in (1, 2, 3):
            machine.start(f"ip netns exec m{number} {member(etcd, number)}")
        machine.wait_for(f"{export} && etcdctl endpoint health")
        for text in users:  # passwords are asked for twice
            ended = machine.run(f"{export}\n{text}", stdin="password\n" * 2)
            assert ended.returncode == 0, text + ended.stdout + ended.stderr
        machine.run("cp ca.pem svcnode.pem svcnode.key /etc/svcnode")
        machine.write("/run/secrets/etcd-password", "password\n")
        machine.write(f"{HOME}/svcnode.toml", PRODUCTION_CONFIG)
        checked = machine.run("svcnode registry check")
        assert checked.returncode == 0, checked.stdout + checked.stderr
        right = set(re.findall(r"^  ok +(\S+)", checked.stdout, re.MULTILINE))
        assert {f"10.0.0.{number}:2379" for number in (1, 2, 3)} | {"login", "read", "write"} <= right


def member(command: str, number: int) -> str:
    """The command of the first member, for another one: it has its own name, address, certificate and folder."""
    before, cluster, after = re.split(r"(--initial-cluster \S+)", command)
    changed = (
        re.sub(r"\bm1\b", f"m{number}", text.replace("10.0.0.1", f"10.0.0.{number}")) for text in (before, after)
    )
    return cluster.join(changed).replace("/var/lib/etcd", f"/var/lib/etcd/{number}")
