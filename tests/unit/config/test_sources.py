from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from svcnode.config.sources import NamedProbe, Override, Source, environment_keys
from svcnode.core.errors import ConfigError, InvalidValueError, OptionError

if TYPE_CHECKING:
    from pathlib import Path

# Every value that the environment can set, as a name, what may stand there, and where it goes.
SETTABLE: list[tuple[str, str, tuple[str, ...], object]] = [
    ("SVCNODE_NODE_NAME", "validator-7", ("node", "name"), "validator-7"),
    ("SVCNODE_NODE_VERSION", "v1.4.2", ("node", "version"), "v1.4.2"),
    ("SVCNODE_SERVER_LISTEN", "127.0.0.1:1, [::1]:2", ("server", "listen"), "127.0.0.1:1, [::1]:2"),
    ("SVCNODE_SERVER_PREFIX", "/svc,/eigen", ("server", "prefix"), "/svc,/eigen"),
    ("SVCNODE_SERVER_DRAIN", "5s", ("server", "drain"), "5s"),
    ("SVCNODE_SERVER_OPERATOR", "false", ("server", "operator"), False),
    ("SVCNODE_SERVER_OPERATOR_LISTEN", "127.0.0.1:1", ("server", "operator_listen"), "127.0.0.1:1"),
    ("SVCNODE_SERVER_TLS_CERTIFICATE", "a.pem", ("server", "tls", "certificate"), "a.pem"),
    ("SVCNODE_SERVER_TLS_KEY", "a.key", ("server", "tls", "key"), "a.key"),
    ("SVCNODE_STORE_PATH", "store.db", ("store", "path"), "store.db"),
    ("SVCNODE_HISTORY_KEEP", "false", ("history", "keep"), False),
    ("SVCNODE_HISTORY_PATH", "history.db", ("history", "path"), "history.db"),
    ("SVCNODE_HISTORY_MAX_AGE", "90d", ("history", "max_age"), "90d"),
    ("SVCNODE_HISTORY_MAX_SIZE", "1GiB", ("history", "max_size"), "1GiB"),
    ("SVCNODE_NOTIFY_WEBHOOK", "https://a.example.com/a,b", ("notify", "webhook"), "https://a.example.com/a,b"),
    ("SVCNODE_NOTIFY_APPRISE", "ntfy://a.example.com/b", ("notify", "apprise"), "ntfy://a.example.com/b"),
    ("SVCNODE_NOTIFY_SERVICES", "all", ("notify", "services"), "all"),
    ("SVCNODE_NOTIFY_GROUP_WAIT", "1s", ("notify", "group_wait"), "1s"),
    ("SVCNODE_NOTIFY_RESOLVE_DELAY", "10m", ("notify", "resolve_delay"), "10m"),
    ("SVCNODE_LOG_LEVEL", "debug", ("log", "level"), "debug"),
    ("SVCNODE_LOG_FORMAT", "json", ("log", "format"), "json"),
    ("SVCNODE_DEFAULTS_INTERVAL", "10s", ("defaults", "interval"), "10s"),
    ("SVCNODE_DEFAULTS_IMPACT", "critical", ("defaults", "impact"), "critical"),
    ("SVCNODE_SECURITY_ALLOW_EXEC", "true", ("security", "allow_exec"), True),
    ("SVCNODE_SECURITY_OPERATOR_TOKEN", "a-token-to-be-kept", ("security", "operator_token"), "a-token-to-be-kept"),
    ("SVCNODE_SECURITY_TRUST_LOOPBACK", "false", ("security", "trust_loopback"), False),
    ("SVCNODE_DEFAULTS_TRANSITION_INTERVAL", "2s", ("defaults", "transition_interval"), "2s"),
    ("SVCNODE_DEFAULTS_MAX_LATENCY", "1s", ("defaults", "max_latency"), "1s"),
    ("SVCNODE_DEFAULTS_TIMEOUT", "3s", ("defaults", "timeout"), "3s"),
    ("SVCNODE_DEFAULTS_RISE", "2", ("defaults", "rise"), 2),
    ("SVCNODE_DEFAULTS_FALL", "3", ("defaults", "fall"), 3),
    ("SVCNODE_DEFAULTS_START_PERIOD", "30s", ("defaults", "start_period"), "30s"),
    ("SVCNODE_DEFAULTS_STALE_AFTER", "33s", ("defaults", "stale_after"), "33s"),
]


def source(text: str | None, environ: dict[str, str] | None = None, *flags: Override, at: Path) -> Source:
    file = at / "svcnode.toml"
    if text is not None:
        file.write_text(text)
    return Source(None if text is None else file, environ or {}, flags)


# ---- the environment


@pytest.mark.parametrize(("name", "text", "path", "value"), SETTABLE, ids=[name for name, *_ in SETTABLE])
def test_a_value_can_be_set_in_the_environment(name: str, text: str, path: tuple[str, ...], value: object) -> None:
    said = Source(None, {name: text}, ())
    assert said.value_at(path) == value
    assert said.origin_of(path) == f" (environment variable {name})"


def test_every_single_value_of_the_file_can_be_set_in_the_environment() -> None:
    assert sorted(environment_keys()) == sorted(name for name, *_ in SETTABLE)


@pytest.mark.parametrize("text", ["three", "", "3.0", "1_000", "٣", " 3", "9" * 5000])
def test_what_is_no_number_is_left_for_the_check_of_its_shape_to_refuse(text: str) -> None:
    assert Source(None, {"SVCNODE_DEFAULTS_FALL": text}, ()).data == {"defaults": {"fall": text}}


def test_a_number_below_zero_is_a_number() -> None:
    assert Source(None, {"SVCNODE_DEFAULTS_FALL": "-1"}, ()).data == {"defaults": {"fall": -1}}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SVCNODE_NODE_NAM", "; did you mean SVCNODE_NODE_NAME?"),
        ("SVCNODE_SERVER_LISTENS", "; did you mean SVCNODE_SERVER_LISTEN?"),
        ("SVCNODE_SERVER_TLS_CERT", "; did you mean SVCNODE_SERVER_TLS_KEY?"),
        ("SVCNODE_DEFAULTS_TIME_OUT", "; did you mean SVCNODE_DEFAULTS_TIMEOUT?"),
        ("SVCNODE_LOG_", "; did you mean SVCNODE_LOG_LEVEL?"),
        ("SVCNODE_NODE_" + "Z" * 40, ""),
    ],
)
def test_a_name_that_begins_like_ours_and_is_none_is_refused(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Source(None, {name: "x"}, ())
    assert str(refused.value) == f"unknown environment variable {name}{hint}"


@pytest.mark.parametrize(
    "name",
    [
        "SVCNODE_CONFIG",
        "SVCNODE_PORT",
        "SVCNODE_PORT_8420_TCP_ADDR",
        "SVCNODE_SERVICE_HOST",
        "SVCNODE_SERVICE_PORT",
        "SVCNODE_SERVER_PORT",
        "SVCNODE_NODE_SERVICE_HOST",
        "SVCNODE_NODE_SERVICE_PORT_HTTP",
        "SVCNODE_SERVER_PORT_8420_TCP_PROTO",
        "SVCNODE_",
        "SVCNODE",
        "SVCNODES_NODE_NAME",
        "svcnode_node_name",
        "NODE_NAME",
        "PATH",
    ],
)
def test_a_name_that_is_not_ours_is_nothing_to_us(name: str) -> None:
    assert Source(None, {name: "tcp://10.0.0.1:8420"}, ()).data == {}


# ---- who wins


def test_a_flag_wins_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    text = '[node]\nname = "file"\nversion = "v1"\n[server]\ndrain = "1s"\n'
    environ = {"SVCNODE_NODE_VERSION": "v2", "SVCNODE_SERVER_DRAIN": "2s"}
    said = source(text, environ, Override(("server", "drain"), "3s", "--drain"), at=tmp_path)
    assert said.data == {"node": {"name": "file", "version": "v2"}, "server": {"drain": "3s"}}
    assert [said.origin_of(path) for path in (("node", "name"), ("node", "version"), ("server", "drain"))] == [
        f" ({tmp_path / 'svcnode.toml'}:2)",
        " (environment variable SVCNODE_NODE_VERSION)",
        " (--drain)",
    ]


def test_an_override_leaves_what_stands_beside_it(tmp_path: Path) -> None:
    said = source('[server.tls]\ncertificate = "a"\n', {"SVCNODE_SERVER_TLS_KEY": "b"}, at=tmp_path)
    assert said.data == {"server": {"tls": {"certificate": "a", "key": "b"}}}


def test_an_override_does_not_hide_that_the_file_has_something_else_where_its_table_belongs(tmp_path: Path) -> None:
    said = source('server = "here"\n', {"SVCNODE_SERVER_TLS_KEY": "b"}, at=tmp_path)
    assert said.data == {"server": "here"}
    assert said.origin_of(("server",)) == f" ({tmp_path / 'svcnode.toml'}:1)"


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("false", False), ("True", "True"), ("1", "1"), ("", ""), ("true ", "true ")]
)
def test_only_true_and_false_are_true_or_false(text: str, value: object) -> None:
    said = Source(None, {"SVCNODE_SECURITY_ALLOW_EXEC": text}, ())
    assert said.data == {"security": {"allow_exec": value}}


# ---- services of the command line


DB = NamedProbe("db", "tcp://127.0.0.1:5432", "--service db=…")
MORE = NamedProbe("more", "file:/a", "--service more=…")


def test_services_can_be_named_where_there_is_no_file() -> None:
    said = Source(None, {}, (), [DB, MORE])
    assert said.data == {"services": [{"id": "db", "probe": DB.url}, {"id": "more", "probe": MORE.url}]}
    for path in (("services", 1), ("services", 1, "id"), ("services", 1, "probe"), ("services", 1, "probe", "ca")):
        assert said.origin_of(path) == " (--service more=…)"
    assert said.display_path(("services", 1, "probe", "ca")) == "services.more.probe.ca"


def test_a_named_service_changes_the_probe_of_one_that_the_file_has_and_comes_last_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text('[[services]]\nid = "a"\nstatus = "Up"\n\n[[services]]\nid = "db"\nname = "DB"\nstatus = "Up"\n')
    said = Source(file, {}, (), [MORE, DB])
    assert said.data["services"] == [
        {"id": "a", "status": "Up"},
        {"id": "db", "name": "DB", "probe": DB.url},
        {"id": "more", "probe": MORE.url},
    ]
    assert said.origin_of(("services", 1, "name")) == f" ({file}:7)"
    assert said.origin_of(("services", 1, "probe")) == " (--service db=…)"
    assert said.origin_of(("services", 2, "probe")) == " (--service more=…)"


@pytest.mark.parametrize("text", ['services = "db"\n', '[services]\nid = "db"\n'])
def test_a_named_service_does_not_hide_that_the_file_has_no_list_of_them(text: str, tmp_path: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text(text)
    assert Source(file, {}, (), [DB]).data == Source(file, {}, ()).data


def test_an_odd_item_among_the_services_of_the_file_stays_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text('services = ["db", 7, { id = ["db"] }, {}]\n')
    assert Source(file, {}, (), [DB]).data["services"][:4] == ["db", 7, {"id": ["db"]}, {}]


# ---- the file


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        Source(tmp_path / "no.toml", {}, ())
    assert str(refused.value) == f"cannot read the configuration: no such file or directory ({tmp_path / 'no.toml'})"


def test_the_mark_that_some_editors_begin_a_file_with_is_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text('[node]\nname = "a"\n', encoding="utf-8-sig")
    source = Source(file, {}, ())
    assert source.data == {"node": {"name": "a"}}
    assert source.origin_of(("node", "name")) == f" ({file}:2)"
    assert source.origin_of(("node",)) == f" ({file}:1)"


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        Source(tmp_path, {}, ())
    assert str(refused.value) == f"cannot read the configuration: is a directory ({tmp_path})"


def test_the_cause_of_a_refusal_is_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        source("name =", at=tmp_path)
    assert isinstance(refused.value.__cause__, ValueError)


# ---- saying where


def test_a_service_is_spoken_of_by_its_id(tmp_path: Path) -> None:
    said = source('[[services]]\nid = "db-1"\n[[services]]\nid = 7\n[[services]]\nid = ""\n[[services]]\n', at=tmp_path)
    spoken = [said.display_path(("services", place, "probe")) for place in range(4)]
    assert spoken == [
        *("services.db-1.probe", "services.1.probe (the 2nd)"),
        *("services.2.probe (the 3rd)", "services.3.probe (the 4th)"),
    ]


def test_an_item_of_a_list_is_spoken_of_by_its_place() -> None:
    said = Source(None, {}, [Override(("server", "listen"), ["a", "b"], "--listen")])
    assert said.display_path(("server", "listen", 1)) == "server.listen.1 (the 2nd)"
    assert said.origin_of(("server", "listen", 1)) == " (--listen)"


@pytest.mark.parametrize(
    ("place", "ordinal"), [(0, "1st"), (9, "10th"), (10, "11th"), (12, "13th"), (20, "21st"), (111, "112th")]
)
def test_places_are_counted_from_one(place: int, ordinal: str) -> None:
    said = Source(None, {}, [Override(("server", "listen"), ["a"] * 200, "--listen")])
    assert said.display_path(("server", "listen", place)) == f"server.listen.{place} (the {ordinal})"


def test_without_a_file_there_is_no_line() -> None:
    assert str(Source(None, {}, ()).error(("node", "name"), "is wrong")) == "node.name: is wrong"


def test_a_value_that_the_file_does_not_hold_is_placed_in_the_file_as_a_whole(tmp_path: Path) -> None:
    said = source("", at=tmp_path)
    assert str(said.error(("node", "name"), "is wrong")) == f"node.name: is wrong ({tmp_path / 'svcnode.toml'})"


def test_what_is_refused_inside_is_the_fault_of_the_value(tmp_path: Path) -> None:
    said = source('\nnode.name = ""\n', at=tmp_path)
    with pytest.raises(ConfigError) as refused, said.error_context("node", "name"):
        raise InvalidValueError("must not be empty")
    assert str(refused.value) == f"node.name: must not be empty ({tmp_path / 'svcnode.toml'}:2)"


def test_an_option_that_is_refused_inside_is_named_and_found(tmp_path: Path) -> None:
    said = source('[[services]]\nid = "db"\n[services.probe]\nurl = "file:/a"\nmax_age = 5\n', at=tmp_path)
    with pytest.raises(ConfigError) as refused, said.error_context("services", 0, "probe"):
        raise OptionError("max_age", "lacks its unit")
    assert str(refused.value) == f"services.db.probe.max_age: lacks its unit ({tmp_path / 'svcnode.toml'}:5)"


def test_blame_is_laid_once() -> None:
    said = Source(None, {}, ())
    with pytest.raises(ConfigError) as refused, said.error_context("server"), said.error_context("server", "drain"):
        raise InvalidValueError("is no duration")
    assert str(refused.value) == "server.drain: is no duration"


def test_a_fault_of_our_own_is_nobody_elses() -> None:
    said: Any = Source(None, {}, ())
    with pytest.raises(ZeroDivisionError), said.error_context("node"):
        raise ZeroDivisionError
