from __future__ import annotations

import re
import socket
import tomllib
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from svcnode.cli.init.catalog import CATALOG
from svcnode.cli.init.scan import FoundService
from svcnode.cli.init.select import SelectedProbe, select_probe
from svcnode.cli.init.template import DEFAULT_PORT, free_port, node_name_from, render_config
from svcnode.config import load
from svcnode.config.tables import DEFAULT_LISTEN
from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.cli.init.catalog import CatalogEntry

BY_KIND = {entry.kind: entry for entry in CATALOG}
REASON = "reason-1"
TEXT = st.text(st.characters(exclude_categories=[]), max_size=40)  # with lone surrogates, as in file names
# Foreign text that would change the file if it were not escaped.
NASTY = 'error:\nprobe = "exec:/bin/sh"\r\n[security]\x00\x1b[2J\x7f\u2028"""\'\'\'#\\'


def found(kind: str, port: int | None = None, host: str = "127.0.0.1") -> FoundService:
    entry = BY_KIND[kind]
    return FoundService(entry, TcpEndpoint.of(host, port or entry.ports[0]))


def tcp_fallback(kind: str, missing: str = REASON) -> SelectedProbe:
    service = found(kind)
    preferred = service.entry.login_probe_at(service.endpoint) or service.entry.probe_at(service.endpoint)
    return SelectedProbe(
        found=service, probe=f"tcp://{service.endpoint}", unavailable_reason=missing, preferred_probe=preferred
    )


def uncommented(text: str) -> str:
    """The text with all commented settings enabled."""
    return re.sub(r"^# (?=[a-z_]+ = |\[\[)", "", text, flags=re.MULTILINE)


def loaded(text: str, folder: Path) -> Any:
    file = folder / "svcnode.toml"
    file.write_text(text)
    return load(file, {"HOME": str(folder), "OPERATOR_TOKEN": "0123456789abcdef"})


@pytest.mark.parametrize("verdict", [Verdict.ready(), Verdict.not_ready("it is starting")], ids=["ready", "not ready"])
@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.kind)
def test_a_probe_that_works_is_selected(entry: CatalogEntry, verdict: Verdict) -> None:
    selected = select_probe(found(entry.kind), verdict)
    assert selected.preferred_probe == ""
    assert selected.probe == entry.url.replace("{address}", f"127.0.0.1:{entry.ports[0]}")


@pytest.mark.parametrize("verdict", [Verdict.failed("wrong password"), Verdict.unknown("no files left")], ids=str)
def test_a_failed_probe_of_a_kind_with_logins_is_replaced_by_tcp(verdict: Verdict) -> None:
    selected = select_probe(found("redis"), verdict)
    assert selected.probe == "tcp://127.0.0.1:6379"
    assert selected.preferred_probe == "redis://:${REDIS_PASSWORD}@127.0.0.1:6379"


def test_a_failed_probe_of_a_kind_without_logins_is_selected() -> None:
    assert select_probe(found("node"), Verdict.failed("unhealthy")).probe == "svc+http://127.0.0.1:8420"


def test_each_service_has_an_id_with_its_port_if_needed_a_name_and_a_description() -> None:
    both = [select_probe(found("beacon", port), Verdict.ready()) for port in (5052, 3500)]
    *beacons, redis = tomllib.loads(render_config("n", 8420, [*both, tcp_fallback("redis")]))["services"]
    assert [service["id"] for service in beacons] == ["beacon-5052", "beacon-3500"]
    assert redis == {
        "id": "redis",
        "name": "Redis or Valkey",
        "description": "Redis or Valkey on port 6379 of this host",
        "probe": "tcp://127.0.0.1:6379",
    }


def comments_before(probe: str, text: str) -> list[str]:
    """The comments directly before a probe."""
    lines = text[: text.index(f'\nprobe = "{probe}"')].splitlines()
    return list(takewhile(lambda line: line.startswith("# "), reversed(lines)))[::-1]


def test_comments_have_the_reason_and_the_preferred_probe_of_a_service_that_is_not_ready() -> None:
    comments = comments_before("tcp://127.0.0.1:6379", render_config("n", 8420, [tcp_fallback("redis")]))
    assert f"#   {REASON}" in comments
    assert comments[-1] == '# probe = "redis://:${REDIS_PASSWORD}@127.0.0.1:6379"'
    starting = render_config("n", 8420, [select_probe(found("postgresql"), Verdict.not_ready(REASON))])
    comments = comments_before("postgresql://postgres@127.0.0.1:5432/postgres", starting)
    assert comments[-1] == '# probe = "postgresql://svcnode:${POSTGRESQL_PASSWORD}@127.0.0.1:5432/postgres"'
    ready = render_config("n", 8420, [select_probe(found("redis"), Verdict.ready())])
    assert comments_before("redis://127.0.0.1:6379", ready) == []


def test_the_file_is_a_valid_configuration(tmp_path: Path) -> None:
    read = loaded(render_config("validator-7", 8421, [tcp_fallback(entry.kind) for entry in CATALOG]), tmp_path)
    assert (read.node_name, read.node_version, list(map(str, read.listen))) == (
        "validator-7",
        "v0.1.0",
        ["http://127.0.0.1:8421"],
    )
    assert [service.id for service in read.services] == [entry.kind for entry in CATALOG]
    assert not read.uses_store


def test_the_commented_defaults_are_the_defaults(tmp_path: Path) -> None:
    text = render_config("n", 8420, [tcp_fallback("redis")])
    explicit_text = uncommented(re.sub(r"^# (max_latency|probe|impact = .critical).*\n", "", text, flags=re.MULTILINE))
    assert explicit_text.count("\n# ") < text.count("\n# ") - 8
    (implicit,), (explicit,) = loaded(text, tmp_path).services, loaded(explicit_text, tmp_path).services
    assert implicit.definition.service == explicit.definition.service
    for pending in (True, False):
        assert implicit.definition.probe_config.schedule.wait_s(is_change_pending=pending) == (
            explicit.definition.probe_config.schedule.wait_s(is_change_pending=pending)
        )
    assert implicit.definition.probe_config.schedule.timeout_s == explicit.definition.probe_config.schedule.timeout_s


def test_the_file_has_every_key_of_defaults_and_security() -> None:
    from svcnode.config.tables import DefaultsTable, SecurityTable

    read = tomllib.loads(uncommented(render_config("n", 8420, [])))
    assert read["defaults"].keys() == DefaultsTable.keys.keys()
    assert read["security"].keys() == SecurityTable.keys.keys()


@given(host_name=TEXT)
@example(host_name="")
@example(host_name=" \t")
@example(host_name='a"b\\c\x7f\x00\n\udc80')
@example(host_name="${HOME}")
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_host_name_gives_a_valid_file(host_name: str, tmp_path: Path) -> None:
    name = node_name_from(host_name)
    assert loaded(render_config(name, 8420, []), tmp_path).node_name == name


@settings(max_examples=20)
@given(reason=TEXT)
@example(reason=NASTY)
def test_any_reason_stays_in_its_comment(reason: str) -> None:
    probes = [
        tcp_fallback("redis", reason),
        select_probe(found("nats"), Verdict.failed(reason)),
        select_probe(found("node"), Verdict.not_ready(reason)),
    ]
    read = tomllib.loads(render_config("n", 8420, probes))
    assert [service["probe"] for service in read["services"]] == [
        "tcp://127.0.0.1:6379",
        "tcp://127.0.0.1:4222",
        "svc+http://127.0.0.1:8420",
    ]
    assert read["security"] == {}
    render_config("n", 8420, probes).encode()


def test_the_port_is_that_of_serve_or_a_free_one_with_the_default_in_a_comment() -> None:
    assert f"127.0.0.1:{DEFAULT_PORT}" == DEFAULT_LISTEN
    assert DEFAULT_PORT in BY_KIND["node"].ports
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert port < free_port(port) < port + 20
    assert free_port(port) == port
    assert re.search(r"^# .*\b8420\b", render_config("n", 8421, []), re.MULTILINE)
    assert not re.search(r"^# .*\b8420\b", render_config("n", 8420, []), re.MULTILINE)
