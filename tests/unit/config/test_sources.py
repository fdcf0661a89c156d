from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from svcnode.config.sources import MAX_KEY_PARTS, NamedProbe, Origin, Override, Source
from svcnode.core.errors import ConfigError, InvalidValueError

if TYPE_CHECKING:
    from pathlib import Path


def make_source(text: str | None, environ: dict[str, str] | None = None, *flags: Override, at: Path) -> Source:
    file = at / "svcnode.toml"
    if text is not None:
        file.write_text(text)
    return Source(None if text is None else file, environ or {}, flags)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("SVCNODE_NODE_NAM", {"SVCNODE_NODE_NAME"}),
        ("SVCNODE_LOG_", {"SVCNODE_LOG_LEVEL"}),
        ("SVCNODE_SERVICE", {"SVCNODE_SERVICES"}),
        ("SVCNODE_SERVICES_DB", {"SVCNODE_SERVICES"}),
        ("SVCNODE_NODE_" + "Z" * 40, set()),
    ],
)
def test_an_unknown_variable_that_begins_as_a_known_one_is_refused(name: str, suggested: set[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        Source(None, {name: "x"}, ())
    assert set(re.findall(r"SVCNODE_\w*", str(caught.value))) == {name} | suggested


@pytest.mark.parametrize(
    "name",
    [
        *("SVCNODE_CONFIG", "SVCNODE_PORT_8420_TCP_ADDR", "SVCNODE_NODE_SERVICE_HOST"),
        *("SVCNODE_SERVER_PORT_8420_TCP_PROTO", "SVCNODE_", "SVCNODES_NODE_NAME", "svcnode_node_name"),
    ],
)
def test_other_variables_are_ignored(name: str) -> None:
    assert Source(None, {name: "tcp://10.0.0.1:8420"}, ()).data == {}


def test_an_option_overrides_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    text = '[node]\nname = "file"\nversion = "v1"\n[server]\ndrain = "1s"\n'
    environ = {"SVCNODE_NODE_VERSION": "v2", "SVCNODE_SERVER_DRAIN": "2s"}
    source = make_source(text, environ, Override(("server", "drain"), "3s", "--drain"), at=tmp_path)
    assert source.data == {"node": {"name": "file", "version": "v2"}, "server": {"drain": "3s"}}
    assert [source.origin_of(path) for path in (("node", "name"), ("node", "version"), ("server", "drain"))] == [
        Origin(file=tmp_path / "svcnode.toml", line=2),
        Origin(override="environment variable SVCNODE_NODE_VERSION"),
        Origin(override="--drain"),
    ]


def test_an_override_does_not_replace_a_value_where_the_file_should_have_a_table_or_a_list(tmp_path: Path) -> None:
    source = make_source('server = "here"\n', {"SVCNODE_SERVER_TLS_KEY": "b"}, at=tmp_path)
    assert source.data == {"server": "here"}
    assert source.origin_of(("server",)) == Origin(file=tmp_path / "svcnode.toml", line=1)
    for text in ('services = "db"\n', '[services]\nid = "db"\n'):
        data = make_source(text, at=tmp_path).data
        assert Source(tmp_path / "svcnode.toml", {}, (), [DB]).data == data


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("false", False), ("True", "True"), ("1", "1"), ("", ""), ("true ", "true ")]
)
def test_only_true_and_false_become_booleans_and_only_digits_numbers(text: str, value: object) -> None:
    source = Source(None, {"SVCNODE_SECURITY_ALLOW_EXEC": text}, ())
    assert source.data == {"security": {"allow_exec": value}}
    for no_number in ("", "3.0", "1_000", "٣", "9" * 5000):
        assert Source(None, {"SVCNODE_DEFAULTS_FALL": no_number}, ()).data == {"defaults": {"fall": no_number}}


DB = NamedProbe("db", "tcp://127.0.0.1:5432", "--service db=…")
MORE = NamedProbe("more", "file:/a", "--service more=…")


def test_services_can_be_given_without_a_file() -> None:
    source = Source(None, {}, (), [DB, MORE])
    assert source.data == {"services": [{"id": "db", "probe": DB.url}, {"id": "more", "probe": MORE.url}]}
    for path in (("services", 1), ("services", 1, "id"), ("services", 1, "probe"), ("services", 1, "probe", "ca")):
        assert source.origin_of(path) == Origin(override=MORE.origin)
    assert source.display_path(("services", 1, "probe", "ca")) == "services.more.probe.ca"


def test_a_given_service_replaces_the_probe_in_the_file_or_is_appended(tmp_path: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text('[[services]]\nid = "a"\nstatus = "Up"\n\n[[services]]\nid = "db"\nname = "DB"\nstatus = "Up"\n')
    source = Source(file, {}, (), [MORE, DB])
    assert source.data["services"] == [
        {"id": "a", "status": "Up"},
        {"id": "db", "name": "DB", "probe": DB.url},
        {"id": "more", "probe": MORE.url},
    ]
    assert source.origin_of(("services", 1, "name")) == Origin(file=file, line=7)
    assert source.origin_of(("services", 1, "probe")) == Origin(override=DB.origin)
    assert source.origin_of(("services", 2, "probe")) == Origin(override=MORE.origin)


def services_in(text: str, *services: NamedProbe) -> list[tuple[str, str]]:
    source = Source(None, {"SVCNODE_SERVICES": text}, (), services)
    return [(table["id"], table["probe"]) for table in source.data.get("services", [])]


def test_a_service_in_the_environment_overrides_the_file_and_an_option_overrides_it(tmp_path: Path) -> None:
    assert services_in("db=file:/db more=file:/b", DB) == [("db", DB.url), ("more", "file:/b")]
    file = tmp_path / "svcnode.toml"
    file.write_text('[[services]]\nid = "db"\nname = "DB"\nstatus = "Up"\n')
    source = Source(file, {"SVCNODE_SERVICES": "db=file:/db"}, ())
    assert source.data["services"] == [{"id": "db", "name": "DB", "probe": "file:/db"}]
    assert "SVCNODE_SERVICES" in str(source.origin_of(("services", 0, "probe")))


@pytest.mark.parametrize("text", ["db", "db=127.0.0.1:1", "db=exec:/bin/check now", "db=file:/a db=file:/b"])
def test_an_invalid_service_in_the_environment_is_refused_with_the_variable(text: str) -> None:
    with pytest.raises(ConfigError, match="SVCNODE_SERVICES"):
        services_in(text)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text('[node]\nname = "a"\n', encoding="utf-8-sig")
    source = Source(file, {}, ())
    assert source.data == {"node": {"name": "a"}}
    assert source.origin_of(("node", "name")) == Origin(file=file, line=2)
    assert source.origin_of(("node",)) == Origin(file=file, line=1)


def many_parts(count: int) -> str:
    return ".".join(f"a{number}" for number in range(count))


@pytest.mark.parametrize(
    "text",
    [
        f"{many_parts(50_000)} = 1",
        f"[{many_parts(50_000)}]",
        f"x = {{ {many_parts(50_000)} = 1 }}",
        " . ".join(['"a"', "'b'"] * 25_000) + " = 1",
    ],
    ids=["key", "table", "inline", "quoted"],
)
def test_a_key_with_many_parts_is_refused_before_it_is_parsed(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="parts") as caught:
        make_source(text, at=tmp_path)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "text",
    [
        f"{many_parts(MAX_KEY_PARTS)} = 1",
        f'x = "{many_parts(100)}"  # {many_parts(100)}',
        f'x = """\n{many_parts(100)} = "1" """',
        f"x = '''\n{many_parts(100)} = '1' '''",
        f"x = '{many_parts(100)}'",
        f"x = [{'1.5, ' * 100}]",
    ],
    ids=["most", "string", "long", "long literal", "literal", "numbers"],
)
def test_dots_in_strings_comments_and_numbers_are_not_parts_of_a_key(text: str, tmp_path: Path) -> None:
    assert make_source(text, at=tmp_path).data


def test_nested_contexts_keep_the_innermost_key() -> None:
    source = Source(None, {}, ())
    with pytest.raises(ConfigError) as caught, source.error_context("server"), source.error_context("server", "drain"):
        raise InvalidValueError("is wrong")
    assert caught.value.key == "server.drain"
