from __future__ import annotations

import re
import socket
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from svcnode.config import load
from svcnode.config.settings import DEFAULT_LISTEN
from svcnode.core.model import Verdict
from svcnode.discovery.catalog import CATALOG
from svcnode.discovery.scan import FoundService
from svcnode.discovery.select import SelectedProbe, select_probe
from svcnode.discovery.template import DEFAULT_PORT, free_port, node_name_from, render_config
from svcnode.net.connect import TcpEndpoint

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.discovery.catalog import CatalogEntry

BY_KIND = {known.kind: known for known in CATALOG}
DRIVER_MISSING = 'redis probes need their driver: pip install "svcnode[redis]"'
TEXT = st.text(st.characters(exclude_categories=[]), max_size=40)  # halves of characters too, as the system has them
# What somebody else's words can do to a file.
NASTY = 'it said:\nprobe = "exec:/bin/sh"\r\n[security]\x00\x1b[2J\x7f\u2028"""\'\'\'#\\'


def found(kind: str, port: int | None = None, host: str = "127.0.0.1") -> FoundService:
    known = BY_KIND[kind]
    return FoundService(known, TcpEndpoint.of(host, port or known.ports[0]))


def shallow(kind: str, missing: str = DRIVER_MISSING) -> SelectedProbe:
    one = found(kind)
    better = one.entry.login_probe_at(one.endpoint) or one.entry.probe_at(one.endpoint)
    return SelectedProbe(found=one, probe=f"tcp://{one.endpoint}", unavailable_reason=missing, preferred_probe=better)


def uncommented(text: str) -> str:
    """With everything taken in that looks like a setting."""
    return re.sub(r"^# (?=[a-z_]+ = |\[\[)", "", text, flags=re.MULTILINE)


def loaded(text: str, folder: Path) -> Any:
    file = folder / "svcnode.toml"
    file.write_text(text)
    return load(file, {"HOME": str(folder), "OPERATOR_TOKEN": "0123456789abcdef"})


# ---- which probe


@pytest.mark.parametrize("verdict", [Verdict.ready(), Verdict.not_ready("it is starting")], ids=["ready", "not ready"])
@pytest.mark.parametrize("known", CATALOG, ids=lambda known: known.kind)
def test_a_deep_probe_that_works_is_taken(known: CatalogEntry, verdict: Verdict) -> None:
    choice = select_probe(found(known.kind), verdict)
    assert choice.preferred_probe == ""
    assert choice.probe == known.url.format(place=f"127.0.0.1:{known.ports[0]}")


@pytest.mark.parametrize("verdict", [Verdict.failed("wrong password"), Verdict.unknown("no files left")], ids=str)
def test_where_a_password_may_be_missing_a_probe_that_fails_gives_way_to_one_that_is_true(verdict: Verdict) -> None:
    choice = select_probe(found("redis"), verdict)
    assert choice.probe == "tcp://127.0.0.1:6379"
    assert choice.preferred_probe == "redis://:${REDIS_PASSWORD}@127.0.0.1:6379"


def test_where_no_password_can_be_missing_a_probe_that_fails_tells_the_truth_and_is_kept() -> None:
    assert select_probe(found("node"), Verdict.failed("unhealthy")).probe == "svc+http://127.0.0.1:8420"


# ---- the file


def test_an_ipv6_address_stands_in_brackets() -> None:
    choice = select_probe(found("redis", host="::1"), Verdict.failed("wrong password"))
    services = tomllib.loads(render_config("n", 8420, [choice]))["services"]
    assert services[0]["probe"] == "tcp://[::1]:6379"
    assert choice.preferred_probe == "redis://:${REDIS_PASSWORD}@[::1]:6379"


def test_each_service_has_an_id_a_name_and_a_description() -> None:
    (service,) = tomllib.loads(render_config("n", 8420, [shallow("redis")]))["services"]
    assert service == {
        "id": "redis",
        "name": "Redis or Valkey",
        "description": "Redis or Valkey on port 6379 of this host",
        "probe": "tcp://127.0.0.1:6379",
    }


def test_two_of_a_kind_are_told_apart_by_their_ports() -> None:
    both = [select_probe(found("beacon", port), Verdict.ready()) for port in (5052, 3500)]
    services = tomllib.loads(render_config("n", 8420, [*both, shallow("redis")]))["services"]
    assert [service["id"] for service in services] == ["beacon-5052", "beacon-3500", "redis"]


def test_a_probe_that_only_connects_says_so_and_why_and_what_would_be_better() -> None:
    what_to_do = (
        "# Once that is mended, put this in the place of the line after it, with a user who may log in "
        "(the password stands in the environment):"
    )
    lines = render_config("n", 8420, [shallow("redis")]).splitlines()
    place = lines.index('probe = "tcp://127.0.0.1:6379"')
    assert lines[place - 4 : place] == [
        "# This only shows that something listens, even when it hangs. A closer look was not possible:",
        f"#   {DRIVER_MISSING}",
        what_to_do,
        '# probe = "redis://:${REDIS_PASSWORD}@127.0.0.1:6379"',
    ]


def test_what_was_not_ready_is_noted() -> None:
    text = render_config("n", 8420, [select_probe(found("node"), Verdict.not_ready("partially healthy"))])
    assert '# When this was written: not ready: partially healthy\nprobe = "svc+http://127.0.0.1:8420"\n' in text


def test_what_is_not_ready_yet_may_ask_for_a_password_later() -> None:
    lines = render_config("n", 8420, [select_probe(found("postgresql"), Verdict.not_ready("starting up"))]).splitlines()
    place = lines.index('probe = "postgresql://postgres@127.0.0.1:5432/postgres"')
    assert lines[place - 3 : place] == [
        "# When this was written: not ready: starting up",
        "# Should it ask for a password once it is ready, put this in the place of the line after it:",
        '# probe = "postgresql://svcnode:${POSTGRESQL_PASSWORD}@127.0.0.1:5432/postgres"',
    ]


def test_what_is_ready_needs_no_words() -> None:
    text = render_config("n", 8420, [select_probe(found("redis"), Verdict.ready())])
    assert 'of this host"\nprobe = "redis://127.0.0.1:6379"\n' in text


def test_the_file_can_be_used_as_it_is_written(tmp_path: Path) -> None:
    read = loaded(render_config("validator-7", 8421, [shallow(known.kind) for known in CATALOG]), tmp_path)
    assert (read.node_name, read.node_version, list(map(str, read.listen))) == (
        "validator-7",
        "v0.1.0",
        ["http://127.0.0.1:8421"],
    )
    assert [service.id for service in read.services] == [known.kind for known in CATALOG]
    assert not read.uses_store


def test_with_nothing_found_the_node_answers_for_its_store(tmp_path: Path) -> None:
    assert loaded(render_config("n", 8420, []), tmp_path).uses_store


def test_the_example_can_be_used_when_it_is_taken_in(tmp_path: Path) -> None:
    (service,) = loaded(uncommented(render_config("n", 8420, [])), tmp_path).services
    assert (service.id, service.definition.service.impact.value) == ("ledger", "critical")


def test_what_is_said_to_be_the_default_is_the_default(tmp_path: Path) -> None:
    text = render_config("n", 8420, [shallow("redis")])
    said = uncommented(re.sub(r"^# (max_latency|probe|impact = .critical).*\n", "", text, flags=re.MULTILINE))
    assert said.count("\n# ") < text.count("\n# ") - 8
    (silent,), (explicit,) = loaded(text, tmp_path).services, loaded(said, tmp_path).services
    assert silent.definition.service == explicit.definition.service
    for pending in (True, False):
        assert silent.definition.watch.schedule.wait_s(is_change_pending=pending) == (
            explicit.definition.watch.schedule.wait_s(is_change_pending=pending)
        )
    assert silent.definition.watch.schedule.timeout_s == explicit.definition.watch.schedule.timeout_s


def test_every_key_for_all_services_and_for_security_is_named_in_the_file() -> None:
    from svcnode.config.schema import DefaultsTable, SecurityTable

    read = tomllib.loads(uncommented(render_config("n", 8420, [])))
    assert read["defaults"].keys() == DefaultsTable.__annotations__.keys()
    assert read["security"].keys() == SecurityTable.__annotations__.keys()


@given(host_name=TEXT)
@example(host_name="")
@example(host_name=" \t")
@example(host_name='a"b\\c\x7f\x00\n\udc80')
@example(host_name="${HOME}")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_name_of_a_host_makes_a_file_that_can_be_used(host_name: str, tmp_path: Path) -> None:
    name = node_name_from(host_name)
    assert loaded(render_config(name, 8420, []), tmp_path).node_name == name


def test_a_name_is_kept_as_it_is_where_it_can_be() -> None:
    assert node_name_from("validator-7.example.com") == "validator-7.example.com"
    assert node_name_from("größe \U0001f600") == "größe \U0001f600"
    assert node_name_from("\x00\udc80") == "node"


@given(words=TEXT)
@example(words=NASTY)
def test_whatever_a_service_says_stays_in_its_comment(words: str) -> None:
    choices = [
        shallow("redis", words),
        select_probe(found("nats"), Verdict.failed(words)),
        select_probe(found("node"), Verdict.not_ready(words)),
    ]
    read = tomllib.loads(render_config("n", 8420, choices))
    assert [service["probe"] for service in read["services"]] == [
        "tcp://127.0.0.1:6379",
        "tcp://127.0.0.1:4222",
        "svc+http://127.0.0.1:8420",
    ]
    assert read["security"] == {}
    render_config("n", 8420, choices).encode()


# ---- where to listen


def test_the_port_is_the_one_that_serve_takes_by_itself() -> None:
    assert f"127.0.0.1:{DEFAULT_PORT}" == DEFAULT_LISTEN
    assert DEFAULT_PORT in BY_KIND["node"].ports


def test_a_port_that_is_taken_is_not_written() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert port < free_port(port) < port + 20
    assert free_port(port) == port


def test_another_port_is_explained() -> None:
    assert "Something else listens on the usual port, 8420." in render_config("n", 8421, [])
    assert "Something else" not in render_config("n", 8420, [])
