"""`svcnode check-config --check`: finds each planted fault, and none in a sound configuration. Shows no secret."""

from __future__ import annotations

import json
import math
import os
import re
import socket
import sqlite3
import ssl
import sys
import tempfile
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.agent.agent import needed_fds
from svcnode.cli.inspection import network
from svcnode.cli.inspection.finding import Code, Finding, Level, in_order, next_steps
from svcnode.cli.inspection.machine import compared_clocks
from svcnode.cli.inspection.network import address_kind, clock_reading
from svcnode.cli.inspection.subject import ClockReading
from svcnode.history.database import Database
from svcnode.history.records import RetentionLimits
from svcnode.probes.clock import KernelClock
from svcnode.version import install_command
from tests.support.backends import Backend, HttpBackend, ReceivedRequest, http_response, unresponsive
from tests.support.certificates import make_certificate
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.unit.cli.conftest import Ended, Run

ADDRESSES = {"localhost": ["127.0.0.1"], "db.example": ["127.0.0.1"], "hooks.example": ["8.8.8.8"]}
CODES_OF_INVALID_FILES = {Code.CONFIG_INVALID, Code.TARGET_INVALID}
A_TOKEN = "operator-token-0123456789"


class Site:
    """A machine with a sound configuration, in which faults are planted."""

    def __init__(self, folder: Path, stack: ExitStack, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.stack = stack
        self.patch = patch
        self.mode = 0o600
        hook = stack.enter_context(HttpBackend(lambda _: http_response(204)))
        self.tables = {
            "node": 'name = "a"',
            "server": f'listen = "127.0.0.1:{free_port()}"',
            "control": 'listen = "unix:control.sock"',
            "notify": f'webhook = "http://{hook.address}/hook"',
        }
        (folder / "spool").write_text("good")
        self.services = ['id = "spool"\nprobe = "file:spool"']

    def serve(self, respond: Callable[[ReceivedRequest], bytes]) -> str:
        return self.stack.enter_context(HttpBackend(respond)).address

    def service(self, probe: str, *keys: str) -> None:
        self.services.append("\n".join([f'id = "s{len(self.services)}"', f"probe = {probe}", *keys]))

    def check(self, run: Run, *arguments: str) -> Ended:
        services = [f"[[services]]\n{text}" for text in self.services]
        file = self.folder / "svcnode.toml"
        file.write_text("\n".join([*(f"[{name}]\n{text}" for name, text in self.tables.items()), *services]))
        file.chmod(self.mode)
        return run("check-config", "--check", *arguments)

    def findings(self, run: Run) -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(self.check(run, "--json").out)["findings"]
        return found


@contextmanager
def sound_site() -> Iterator[Site]:
    """In a folder that other users can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack, pytest.MonkeyPatch.context() as monkeypatch:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.chdir(folder)
        monkeypatch.setenv("HOME", name)
        for variable in ("XDG_STATE_HOME", "STATE_DIRECTORY", "RUNTIME_DIRECTORY"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setattr("svcnode.net.dns._getaddrinfo", resolve)
        monkeypatch.setattr("svcnode.cli.inspection.machine.read_kernel_clock", lambda: KernelClock(True, 0.01))
        monkeypatch.setattr("svcnode.cli.inspection.machine.hard_fd_limit", lambda: math.inf)
        yield Site(folder, stack, monkeypatch)


@pytest.fixture
def site() -> Iterator[Site]:
    with sound_site() as site:
        yield site


def resolve(host: str) -> list[str]:
    if host not in ADDRESSES:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")
    return ADDRESSES[host]


# ---- faults, by the code of the finding


def wrong_key(site: Site) -> None:
    site.tables["node"] += '\nnam = "b"'


def unknown_scheme_of_apprise(site: Site) -> None:
    site.tables["notify"] += '\napprise = ["nosuch://abc"]'


def no_driver(site: Site) -> None:
    site.patch.setitem(sys.modules, "svcnode.probes.redis", None)
    site.service('"redis://127.0.0.1:1"')


def no_driver_at_the_check(site: Site) -> None:
    from svcnode.core.codes import ReasonCode
    from svcnode.core.model import Verdict

    async def check(_: object) -> Verdict:
        return Verdict.unknown("pip install something", code=ReasonCode.DRIVER_MISSING)

    site.patch.setattr("svcnode.probes.tcp.TcpProbe.check", check)
    site.service('"tcp://127.0.0.1:1"')


def file_that_others_can_change(site: Site) -> None:
    site.mode = 0o602


def secret_in_a_readable_file(site: Site) -> None:
    site.mode = 0o604
    site.tables["security"] = f'operator_token = "{A_TOKEN}"'


def readable_file_of_a_secret(site: Site) -> None:
    (site.folder / "token").write_text(A_TOKEN)
    (site.folder / "token").chmod(0o644)
    site.tables["security"] = 'operator_token = { file = "token" }'


def readable_private_key(site: Site) -> None:
    pair = make_certificate(site.folder)
    pair.key.chmod(0o644)
    site.tables["server.tls"] = f'certificate = "{pair.certificate}"\nkey = "{pair.key}"'


def readable_file_of_variables(site: Site) -> None:
    (site.folder / ".env").write_text(f"# secrets\nexport THE_TOKEN={A_TOKEN}\n")
    (site.folder / ".env").chmod(0o644)
    site.patch.setenv("THE_TOKEN", A_TOKEN)
    site.tables["security"] = 'operator_token = "${THE_TOKEN}"'


def no_service_that_counts(site: Site) -> None:
    site.services[0] += '\nimpact = "none"'


def long_stale_after(site: Site) -> None:
    site.services[0] += '\nstale_after = "1d"'


def heartbeats_for_nobody(site: Site) -> None:
    site.tables["control"] = "enabled = false"
    site.service('"heartbeat:1h"')


def target_of_no_service(site: Site) -> None:
    url = site.tables["notify"].partition(" = ")[2]
    site.tables["notify"] = f'webhook = {{ url = {url}, services = ["nope"] }}'


def public_service_that_is_none(site: Site) -> None:
    site.tables["public"] = f'services = ["nope"]\nlisten = "127.0.0.1:{free_port()}"'


def address_of_another_process(site: Site) -> None:
    other = site.stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    site.tables["server"] = f'listen = "127.0.0.1:{other.getsockname()[1]}"'


def unix_address_of_another_process(site: Site) -> None:
    site.stack.enter_context(Backend(unresponsive, path=site.folder / "node.sock"))
    site.tables["server"] = 'listen = "unix:node.sock"'


def address_of_another_machine(site: Site) -> None:
    site.tables["server"] = 'listen = ["192.0.2.1:8420"]\noperator = false'


def two_names_of_one_address(site: Site) -> None:
    port = free_port()
    site.tables["server"] = f'listen = ["127.1:{port}", "127.0.0.1:{port}"]'


def unix_address_without_a_folder(site: Site) -> None:
    site.tables["server"] = 'listen = "unix:missing/node.sock"'


def page_for_nobody(site: Site) -> None:
    site.tables["server"] = f'listen = "0.0.0.0:{free_port()}"'


def token_without_tls(site: Site) -> None:
    page_for_nobody(site)
    site.tables["security"] = f'operator_token = "{A_TOKEN}"'


def running_node(site: Site) -> None:
    site.stack.enter_context(Backend(unresponsive, path=site.folder / "control.sock"))


def node_of_another_configuration(site: Site) -> None:
    other = site.folder / "other.toml"
    other.touch()
    fields = {"node_name": "a", "process_id": 4711, "config_file": str(other), "listen": []}
    response = http_response(200, json.dumps(fields).encode())
    site.stack.enter_context(HttpBackend(response, path=site.folder / "control.sock"))


def long_path_of_the_socket(site: Site) -> None:
    site.tables["control"] = f'listen = "unix:{"x" * 110}"'


def file_in_place_of_the_socket(site: Site) -> None:
    (site.folder / "control.sock").touch()


def socket_that_cannot_be_created(site: Site) -> None:
    site.tables["control"] = 'listen = "unix:/dev/null/control.sock"'


def socket_of_a_node_that_has_ended(site: Site) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(site.folder / "control.sock"))


def folder_that_others_can_change(site: Site) -> None:
    (site.folder / "run").mkdir()
    (site.folder / "run").chmod(0o777)
    site.tables["control"] = 'listen = "unix:run/control.sock"'


def history_that_cannot_be_written(site: Site) -> None:
    site.tables["history"] = 'path = "/dev/null/history.db"'


def history_where_no_file_can_be(site: Site) -> None:
    site.tables["history"] = 'path = "/proc/nope/history.db"'


def history_of_another_program(site: Site) -> None:
    (site.folder / "history.db").write_text("not a database, and long enough to be read as one" * 20)
    site.tables["history"] = 'path = "history.db"'


def history_file(site: Site, node_name: str) -> Path:
    path = site.folder / "history.db"
    from svcnode.history.files import create_file

    create_file(path)
    database = Database(path, RetentionLimits(max_age_s=1e6, max_bytes=1_000_000_000))
    database.claim(node_name)
    database.close()
    site.tables["history"] = 'path = "history.db"'
    return path


def history_of_another_node(site: Site) -> None:
    history_file(site, "another")


def history_of_a_newer_version(site: Site) -> None:
    with closing(sqlite3.connect(history_file(site, "a"))) as database:
        database.execute("PRAGMA user_version = 1000")


def no_folder_for_the_history(site: Site) -> None:
    site.patch.delenv("HOME")
    site.patch.setattr("svcnode.config.settings._home", lambda _: None)
    site.tables["control"] += '\npath = "control.db"'


def full_disk(site: Site) -> None:
    site.tables["history"] = 'max_size = "1000000GiB"'


def few_descriptors(site: Site) -> None:
    site.patch.setattr("svcnode.cli.inspection.machine.hard_fd_limit", lambda: needed_fds() - 1)


def clock_that_nothing_sets(site: Site) -> None:
    site.patch.setattr("svcnode.cli.inspection.machine.read_kernel_clock", lambda: KernelClock(False, 16.0))


def clock_of_a_service(site: Site) -> None:
    address = site.serve(lambda _: http_response(200, Date="Fri, 01 Jan 1999 00:00:00 GMT"))
    site.service(f'"http://{address}/"')


def head_of_a_chain_in_the_future(site: Site) -> None:
    results = {
        "eth_syncing": False,
        "eth_getBlockByNumber": {"number": "0x10", "hash": "0x1", "timestamp": "0xffffffff"},
    }

    def respond(request: ReceivedRequest) -> bytes:
        call = json.loads(request.body)
        result = results.get(call["method"], "0x1")
        return http_response(200, json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result}))

    site.service(f'"ethereum+http://{site.serve(respond)}"')


def file_of_the_future(site: Site) -> None:
    late = site.folder / "late"
    late.touch()
    os.utime(late, (4e9, 4e9))
    site.service(f'{{ url = "file:{late}", max_age = "1m" }}')


def name_of_nothing(site: Site) -> None:
    site.service('"tcp://nope.example:1"')


def registry_of_nothing(site: Site) -> None:
    site.tables["sharing"] = 'registry = "etcd://nope.example"'


def slow_resolver(site: Site) -> None:
    site.patch.setattr(network, "SLOW_LOOKUP_S", -1.0)
    site.service('"tcp://localhost:1"')


def name_of_this_machine(site: Site) -> None:
    site.service('"tcp://db.example:1"')


def target_without_a_name(site: Site) -> None:
    site.tables["notify"] += '\nheartbeat = "https://nope.example/"'


def target_of_apprise_without_a_name(site: Site) -> None:
    site.tables["notify"] += '\napprise = ["json://nope.example"]'


def target_that_does_not_listen(site: Site) -> None:
    site.tables["notify"] += f'\nalertmanager = ["http://127.0.0.1:{free_port()}"]'


def target_of_apprise_that_does_not_listen(site: Site) -> None:
    site.tables["notify"] += f'\napprise = "json://127.0.0.1:{free_port()}"'


def target_with_a_certificate_of_nobody(site: Site) -> None:
    pair = make_certificate(site.folder)
    pair.key.chmod(0o600)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.certificate, pair.key)
    backend = site.stack.enter_context(Backend(unresponsive, tls=tls))
    site.tables["notify"] += f'\nheartbeat = "https://{backend.address}/"'


def target_of_the_internet_without_tls(site: Site) -> None:
    async def reach_all(_: object) -> list[Any]:
        return []

    site.patch.setattr(network, "try_targets", reach_all)
    site.tables["notify"] += '\nheartbeat = "http://hooks.example/"'


def service_that_is_down(site: Site) -> None:
    site.service(f'"tcp://127.0.0.1:{free_port()}"')


def service_that_starts(site: Site) -> None:
    address = site.serve(lambda _: http_response(503))
    site.service(f'{{ url = "http://{address}/", starting_status = 503 }}')


def service_that_cannot_be_checked(site: Site) -> None:
    def refuse() -> None:
        raise PermissionError(1, "not permitted")

    site.patch.setattr("svcnode.probes.clock.read_kernel_clock", refuse)
    site.service('"clock:"')


def hanging_disk(site: Site) -> None:
    def refuse(_: object) -> None:
        raise OSError(5, "input/output error")

    site.patch.setattr("os.statvfs", refuse)


PLANTED: list[tuple[Callable[[Site], None], Code, Level]] = [
    (wrong_key, Code.CONFIG_INVALID, Level.FAULT),
    (unknown_scheme_of_apprise, Code.TARGET_INVALID, Level.FAULT),
    (no_driver, Code.DRIVER_MISSING, Level.FAULT),
    (no_driver_at_the_check, Code.DRIVER_MISSING, Level.FAULT),
    (file_that_others_can_change, Code.CONFIG_WRITABLE, Level.FAULT),
    (secret_in_a_readable_file, Code.CONFIG_READABLE, Level.WARNING),
    (readable_file_of_a_secret, Code.SECRET_FILE_READABLE, Level.WARNING),
    (readable_private_key, Code.KEY_FILE_READABLE, Level.WARNING),
    (readable_file_of_variables, Code.ENVIRONMENT_FILE_READABLE, Level.WARNING),
    (no_service_that_counts, Code.HEALTH_CONSTANT, Level.NOTE),
    (long_stale_after, Code.STALE_AFTER_LONG, Level.NOTE),
    (heartbeats_for_nobody, Code.HEARTBEAT_UNSUPPORTED, Level.NOTE),
    (target_of_no_service, Code.NOTIFICATION_TARGET_UNMATCHED, Level.NOTE),
    (public_service_that_is_none, Code.PUBLIC_UNMATCHED, Level.NOTE),
    (address_of_another_process, Code.ADDRESS_IN_USE, Level.FAULT),
    (unix_address_of_another_process, Code.ADDRESS_IN_USE, Level.FAULT),
    (address_of_another_machine, Code.ADDRESS_UNAVAILABLE, Level.FAULT),
    (two_names_of_one_address, Code.ADDRESS_UNAVAILABLE, Level.FAULT),
    (unix_address_without_a_folder, Code.ADDRESS_UNAVAILABLE, Level.FAULT),
    (page_for_nobody, Code.OPERATOR_REFUSED, Level.WARNING),
    (token_without_tls, Code.TOKEN_UNENCRYPTED, Level.WARNING),
    (running_node, Code.NODE_RUNNING, Level.NOTE),
    (node_of_another_configuration, Code.CONTROL_IN_USE, Level.FAULT),
    (long_path_of_the_socket, Code.CONTROL_PATH_TOO_LONG, Level.FAULT),
    (file_in_place_of_the_socket, Code.CONTROL_NOT_A_SOCKET, Level.FAULT),
    (socket_that_cannot_be_created, Code.CONTROL_UNWRITABLE, Level.FAULT),
    (socket_of_a_node_that_has_ended, Code.CONTROL_STALE, Level.NOTE),
    (folder_that_others_can_change, Code.CONTROL_REPLACEABLE, Level.FAULT),
    (history_that_cannot_be_written, Code.HISTORY_UNWRITABLE, Level.FAULT),
    (history_where_no_file_can_be, Code.HISTORY_UNWRITABLE, Level.FAULT),
    (history_of_another_program, Code.HISTORY_UNREADABLE, Level.FAULT),
    (history_of_another_node, Code.HISTORY_UNREADABLE, Level.FAULT),
    (history_of_a_newer_version, Code.HISTORY_UNREADABLE, Level.FAULT),
    (no_folder_for_the_history, Code.HISTORY_IN_MEMORY, Level.WARNING),
    (full_disk, Code.DISK_SPACE_LOW, Level.WARNING),
    (few_descriptors, Code.DESCRIPTORS_LOW, Level.WARNING),
    (clock_that_nothing_sets, Code.CLOCK_UNSYNCHRONIZED, Level.WARNING),
    (clock_of_a_service, Code.CLOCK_DIFFERS, Level.WARNING),
    (head_of_a_chain_in_the_future, Code.CLOCK_DIFFERS, Level.WARNING),
    (file_of_the_future, Code.CLOCK_DIFFERS, Level.WARNING),
    (name_of_nothing, Code.NAME_UNRESOLVED, Level.FAULT),
    (registry_of_nothing, Code.NAME_UNRESOLVED, Level.FAULT),
    (slow_resolver, Code.NAME_SLOW, Level.WARNING),
    (name_of_this_machine, Code.NAME_LOCAL, Level.NOTE),
    (target_without_a_name, Code.TARGET_UNRESOLVED, Level.FAULT),
    (target_of_apprise_without_a_name, Code.TARGET_UNRESOLVED, Level.FAULT),
    (target_that_does_not_listen, Code.TARGET_UNREACHABLE, Level.FAULT),
    (target_of_apprise_that_does_not_listen, Code.TARGET_UNREACHABLE, Level.FAULT),
    (target_with_a_certificate_of_nobody, Code.TARGET_TLS_FAILED, Level.FAULT),
    (target_of_the_internet_without_tls, Code.TARGET_UNENCRYPTED, Level.WARNING),
    (service_that_is_down, Code.SERVICE_FAILED, Level.FAULT),
    (service_that_starts, Code.SERVICE_NOT_READY, Level.WARNING),
    (service_that_cannot_be_checked, Code.SERVICE_UNKNOWN, Level.WARNING),
    (hanging_disk, Code.NOT_INSPECTED, Level.WARNING),
]
# What a planted fault brings with it.
CONSEQUENCES = {
    Code.NAME_UNRESOLVED: {Code.SERVICE_FAILED},
    Code.NAME_SLOW: {Code.SERVICE_FAILED},
    Code.NAME_LOCAL: {Code.SERVICE_FAILED},
    Code.CLOCK_DIFFERS: {Code.SERVICE_FAILED, Code.SERVICE_NOT_READY},
}


def test_a_sound_configuration_has_no_findings(site: Site, run: Run) -> None:
    ended = site.check(run, "--json")
    document = json.loads(ended.out)
    assert (ended.code, document["findings"]) == (0, [])
    assert len(document["next_steps"]) == 1
    assert [check["outcome"] for check in document["checked"]] == ["ready"]


@pytest.mark.parametrize(("plant", "code", "level"), PLANTED, ids=[plant.__name__ for plant, *_ in PLANTED])
def test_each_planted_fault_is_found(
    plant: Callable[[Site], None], code: Code, level: Level, site: Site, run: Run
) -> None:
    plant(site)
    ended = site.check(run, "--json")
    document = json.loads(ended.out)
    found = {finding["code"]: finding for finding in document["findings"]}
    assert code in found
    assert set(found) - CONSEQUENCES.get(code, set()) == {code}, "nothing else is found"
    assert (found[code]["level"], bool(found[code]["what"]), bool(found[code]["fix"])) == (level, True, True)
    is_ready = all(check["outcome"] == "ready" for check in document.get("checked", ()))
    is_fault = any(finding["level"] == Level.FAULT for finding in document["findings"])
    assert ended.code == (2 if not document["valid"] else int(is_fault or not is_ready))


def test_every_code_is_planted() -> None:
    assert {code for _, code, _ in PLANTED} == set(Code)


REFERENCE = Path(__file__).parents[3] / "docs" / "reference.md"


@pytest.mark.skipif(not REFERENCE.exists(), reason="the wheel has no pages")
def test_the_reference_says_what_every_code_means_and_what_to_do() -> None:
    _, _, rest = REFERENCE.read_text(encoding="utf-8").partition("The `level` of a finding")
    table = rest.partition("\n\n")[2].partition("\n\n")[0]
    assert re.findall(r"(?m)^\| `([a-z_]+)` \| \S.*\S \| \S.*\S \|$", table) == list(Code)


# ---- what a finding says


def test_a_finding_names_the_key_and_the_line(site: Site, run: Run) -> None:
    service_that_is_down(site)
    (finding,) = site.findings(run)
    lines = (site.folder / "svcnode.toml").read_text().splitlines()
    file, _, line = finding["place"].rpartition(":")
    assert (finding["key"], file) == ("services.s1.probe", "svcnode.toml")
    assert lines[int(line) - 1].startswith('probe = "tcp://')


def test_a_missing_driver_is_named_with_the_command_that_installs_it(site: Site, run: Run) -> None:
    no_driver(site)
    (finding,) = site.findings(run)
    assert finding["fix"] == install_command("redis")


def test_the_worst_comes_first_and_three_steps_are_enough() -> None:
    def finding(code: Code, level: Level, key: str = "") -> Finding:
        return Finding(code=code, level=level, what="", fix=f"fix {code}", key=key)

    slow, down = finding(Code.NAME_SLOW, Level.WARNING), finding(Code.SERVICE_FAILED, Level.FAULT, "services.a.probe")
    same_key = finding(Code.NAME_UNRESOLVED, Level.FAULT, "services.a.probe")
    note, disk = finding(Code.NODE_RUNNING, Level.NOTE), finding(Code.DISK_SPACE_LOW, Level.FAULT)
    clock, token = finding(Code.CLOCK_DIFFERS, Level.WARNING), finding(Code.OPERATOR_REFUSED, Level.WARNING)
    found = [note, slow, down, same_key, down, disk, clock, token]
    assert in_order(found) == [down, same_key, down, disk, slow, clock, token, note]
    assert next_steps(found) == ["services.a.probe: fix service_failed", "fix disk_space_low", "fix name_slow"]
    assert next_steps([note]) == next_steps([]) != []


def test_what_is_exposed_is_said_with_the_token_that_it_needs(site: Site, run: Run) -> None:
    outer, inner, public = free_port(), free_port(), free_port()
    site.tables["server"] = f'listen = "0.0.0.0:{outer}"\noperator_listen = "127.0.0.1:{inner}"'
    site.tables["public"] = f'services = ["spool"]\nlisten = "127.0.0.1:{public}"'
    site.service('"heartbeat:1h"', 'push_token = "push-token-0123456789"')
    exposed = json.loads(site.check(run, "--json").out)["exposed"]
    rows = [(one["surface"], one["address"].rpartition(":")[2], one["local"], one["access"]) for one in exposed]
    assert rows == [
        ("interface", str(outer), False, "open"),
        ("push", str(outer), False, "token"),
        ("interface", str(inner), True, "open"),
        ("operator", str(inner), True, "open"),
        ("public", str(public), True, "open"),
        ("control", "control.sock", True, "file"),
    ]
    paths = {one["surface"]: one["paths"] for one in exposed}
    assert paths["public"] == ["/"]
    assert {"/", "/details", "/metrics"} <= set(paths["operator"])
    text = site.check(run).out
    assert all(f"{one['address']} (" in text for one in exposed)


def test_the_text_has_the_same_findings_and_ends_with_the_next_steps(site: Site, run: Run) -> None:
    service_that_is_down(site)
    codes, ended = [finding["code"] for finding in site.findings(run)], site.check(run)
    assert (ended.code, re.findall(r"\[(\w+)\]$", ended.out, re.MULTILINE)) == (1, codes)
    assert ended.out.splitlines()[-1].startswith("  1. services.s1.probe: ")


def test_json_needs_check(run: Run) -> None:
    assert run("check-config", "--json").code == 2


def test_a_file_that_is_not_toml_is_one_finding(site: Site, run: Run) -> None:
    site.tables["node"] = "name ="
    (finding,) = site.findings(run)
    assert (finding["code"], finding["place"]) == (Code.CONFIG_INVALID, "svcnode.toml:2")


def test_the_file_of_the_package_is_for_its_group_and_not_for_others(site: Site, run: Run) -> None:
    secret_in_a_readable_file(site)
    site.mode = 0o640
    assert site.findings(run) == []
    site.mode = 0o644
    site.folder.chmod(0o700)
    assert site.findings(run) == [], "others cannot get to the file"


# ---- rules


@pytest.mark.parametrize(
    ("ahead_s", "levels"),
    [
        ([], []),
        ([59, -59], []),
        ([61], [Level.WARNING]),
        ([61, 0], [Level.WARNING]),
        ([-61, -62, 0], [Level.WARNING, Level.WARNING]),
        ([-61, -62], [Level.FAULT]),
    ],
)
def test_our_clock_is_wrong_if_several_others_differ_and_none_agrees(ahead_s: list[float], levels: list[Level]) -> None:
    readings = [ClockReading(f"host{number}", value) for number, value in enumerate(ahead_s)]
    assert [finding.level for finding in compared_clocks(readings)] == levels


def test_a_date_counts_with_its_age() -> None:
    date = {"date": "Thu, 01 Jan 1970 00:01:40 GMT"}
    fresh, cached = clock_reading("a", date, 100.5), clock_reading("a", {**date, "age": "30"}, 130.5)
    assert fresh == cached == ClockReading("a", 0.0)
    assert clock_reading("a", {}, 100.5) is clock_reading("a", {**date, "age": "x"}, 1.0) is None


def test_the_kinds_of_addresses() -> None:
    addresses = ["127.0.0.1", "::1", "10.0.0.1", "fe80::1%eth0", "fd00::1", "8.8.8.8", "2606:4700::1"]
    kinds = ["loopback", "loopback", "private", "link-local", "private", "public", "public"]
    assert list(map(address_kind, addresses)) == kinds


# ---- secrets


def test_no_secret_and_no_user_of_a_url_is_in_the_report(site: Site, run: Run) -> None:
    """Every place that can have a secret has one, and the services repeat what they get."""

    def refuse(request: ReceivedRequest) -> bytes:
        received = [request.headers.get(name, "") for name in ("authorization", "x-api-key", "cookie")]
        sent = f"user user-of-rpc: {' '.join(received)} {request.target}"
        return http_response(200, json.dumps({"id": 1, "error": {"code": 1, "message": sent}}))

    address = site.serve(refuse)
    site.patch.setenv("SECRET_1", "hidden-of-variable")
    (site.folder / "secret").write_text("hidden-of-file")
    site.tables["security"] = 'operator_token = "hidden-of-operator"\ntrust_loopback = true'
    site.tables["sharing"] = 'registry = "etcd://user-of-etcd:hidden-of-etcd@nope.example"'
    site.tables["notify"] = f"""
webhook = [
    "https://user-of-hook:hidden-of-hook@127.0.0.1:{free_port()}/hidden-of-path-0123",
    "http://{address}/x?k=${{SECRET_1}}",
]
apprise = ["json://user-of-apprise:hidden-of-apprise@nope.example/hidden-of-apprise-path"]
heartbeat = "https://nope.example/ping/hidden-of-heartbeat-12345"
"""
    rpc = f'url = "jsonrpc+http://user-of-rpc:hidden-of-rpc@{address}/hiddenK7f93kdLq02Zx81mQ4", method = "m"'
    site.service(f"{{ {rpc} }}")
    other = f'url = "jsonrpc+http://{address}/", method = "m"'
    headers = 'headers = { X-Api-Key = "hidden-of-header", Cookie = "session=hidden-of-cookie" }'
    site.service(f'{{ {other}, bearer = "hidden-of-bearer", {headers} }}')
    site.service(f'{{ {other}, bearer = "${{SECRET_1}}" }}')
    site.service(f'{{ {other}, bearer = {{ file = "secret" }} }}')
    site.service('"redis://user-of-redis:hidden-of-redis@nope.example:1"')
    site.service('"heartbeat:1h"', 'push_token = "hidden-of-push-0123"')
    ended = site.check(run, "--json")
    document = json.loads(ended.out)
    failed = [check for check in document["checked"] if check["outcome"] == "failed"]
    assert (len(failed), len(document["exposed"])) == (5, 4)
    assert all(check["reason"].count("***") for check in failed[:4]), "the services repeated what they got"
    assert re.findall("hidden|user-of|Basic [^*]", ended.out) == []
    assert str(site.folder) not in ended.out, "the home of the user"
    site.tables["node"] += '\nnam = "hidden-of-typo"'
    site.tables["server"] += '\nprefix = "etcd://user-of-prefix:hidden-of-prefix@x"'
    ended = site.check(run, "--json")
    assert ended.code == 2
    assert re.findall("hidden|user-of", ended.out) == []
