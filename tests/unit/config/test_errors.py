"""All errors of a configuration are found in one pass, and none that follows from another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.config import load
from svcnode.config.tables import LISTS, TABLES
from svcnode.core.errors import ConfigError
from svcnode.core.redaction import MASK

if TYPE_CHECKING:
    from pathlib import Path

ENVIRON = {"HOME": "/nowhere"}


def error_of(config: str, folder: Path, **environ: str) -> ConfigError:
    file = folder / "svcnode.toml"
    file.write_text(config)
    with pytest.raises(ConfigError) as caught:
        load(file, ENVIRON | environ)
    return caught.value


def keys_of(error: ConfigError) -> list[str | None]:
    return [one.key for one in (error, *error.others)]


WRONG_DEFAULTS = """
[defaults]
interval = "1s"
timeout = "2s"
[[services]]
id = "a"
probe = "file:/a"
[[services]]
id = "b"
probe = "file:/b"
"""


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        # Two errors of one table, and of several tables.
        ('[log]\nlevel = "x"\nformat = "y"\n[store]\npath = 1', ["log.level", "log.format", "store.path"]),
        (
            'node = 1\n[server]\ndrain = 5\n[[services]]\nid = ""',
            ["node", "server.drain", "services[0]", "services[0].id"],
        ),
        (
            '[nodes]\n[control]\ngroup = "no-such-group"\n[sharing]',
            ["nodes", "control.group", "sharing", "sharing.registry"],
        ),
        # Errors that could follow from the first one are not reported.
        (
            '[server]\nlisten = ["https://h:1"]\n[server.tls]\ncertificate = "/no.pem"',
            ["server.tls", "server.tls.certificate"],
        ),
        ('[security]\nallow_exec = 1\n[[services]]\nid = "a"\nprobe = "exec:/bin/true"', ["security.allow_exec"]),
        ('[[services]]\nid = "a"\nprob = "file:/a"', ["services.a.prob"]),
        (
            '[[services]]\nid = "a"\nprobe = { url = "heartbeat:", period = 5, grace = "1s" }',
            ["services.a.probe.period"],
        ),
        # Errors of several options and of other keys of the same service.
        (
            '[[services]]\nid = "a"\nprobe.url = "http://a"\nprobe.redirects = "x"\nprobe.expcet = 1\ntimeout = "20s"',
            ["services.a", "services.a.probe.redirects", "services.a.probe.expcet"],
        ),
        ('[[services]]\nprobe = "file:/a"\nimpact = "x"', ["services[0]", "services[0].impact"]),
        # A wrong combination of defaults is one error, whatever the number of services.
        (WRONG_DEFAULTS, ["defaults"]),
        ("services = [1, 2]", ["services[0]", "services[1]"]),
        ('[notify]\nwebhook = ["x", "https://h/", "y"]', ["notify.webhook[0]", "notify.webhook[2]"]),
        # A variable that is not set does not hide the errors of the options, and nothing follows from it.
        (
            '[[services]]\nid = "a"\nprobe = { url = "jsonrpc+http://${NONE}/", method = "${NONE}", fsh = 1 }',
            ["services.a.probe", "services.a.probe.fsh", "services.a.probe.method"],
        ),
        # The names in depends_on are compared although a service has an error.
        (
            '[[services]]\nid = "a"\nprobe = "x://"\n[[services]]\nid = "b"\nstatus = "Up"\ndepends_on = ["zzz"]',
            ["services.a.probe", "services.b.depends_on"],
        ),
        (
            '[[services]]\nid = "a"\nprobe = "x://"\n[[services]]\nid = "b"\nstatus = "Up"\ndepends_on = ["a"]',
            ["services.a.probe"],
        ),
    ],
)
def test_errors_that_do_not_follow_from_others_are_found(config: str, keys: list[str], tmp_path: Path) -> None:
    assert sorted(map(str, keys_of(error_of(config, tmp_path)))) == sorted(keys)


def test_errors_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    error = error_of('[[services]]\nid = "a"\n[server]\ndrain = 5\n[node]\nname = 1', tmp_path, SVCNODE_LOG_LEVEL="x")
    assert keys_of(error) == ["log.level", "services.a", "server.drain", "node.name"]
    assert [one.line for one in (error, *error.others)] == [None, 1, 4, 6]


def test_a_secret_of_a_later_table_is_not_shown_in_an_error(tmp_path: Path) -> None:
    secret = "hidden-in-a-later-table"
    error = error_of(f'[log]\nlevel = "{secret}"\n[security]\noperator_token = "{secret}"', tmp_path)
    assert secret not in str(error)
    assert MASK in str(error)


def test_all_unset_variables_and_wrong_conditions_of_one_value_are_named(tmp_path: Path) -> None:
    config = (
        '[[services]]\nid = "a"\nprobe.url = "http://${ONE}:${TWO}@h/"\nprobe.require = ["/a ? 1", "/b", "/c == 1"]'
    )
    url, require = error_of(config, tmp_path).texts
    assert "ONE" in url
    assert "TWO" in url
    assert "/a ? 1" in require
    assert "'/b'" in require
    assert "/c" not in require


# ---- keys in the wrong place

KEYS_OF_ONE_TABLE = [
    (name, key)
    for name, table in TABLES.items()
    for key in table.keys
    if name != "log"
    and not any(key in other.keys for other in (*TABLES.values(), *LISTS.values()) if other is not table)
]


@pytest.mark.parametrize(("table", "key"), KEYS_OF_ONE_TABLE)
def test_a_key_in_the_wrong_table_is_sent_to_its_own(table: str, key: str, tmp_path: Path) -> None:
    error = error_of(f"[log]\n{key} = 1", tmp_path)
    assert keys_of(error) == [f"log.{key}"]
    assert f"[{table}]" in str(error)


@pytest.mark.parametrize(
    ("config", "key", "place"),
    [
        ('[notify]\nwebhook = "https://h/"\nescalate_after = "5m"', "notify.escalate_after", "webhook = {"),
        ('[notify]\nwebhook = "https://h/"\nmin_severity = "critical"', "notify.min_severity", "webhook = {"),
        ('[notify]\nwebhook = "https://h/"\nquiet_hours = "22:00-07:00"', "notify.quiet_hours", "webhook = {"),
        ('[notify]\nwebhook = { url = "https://h/", group_wait = "5s" }', "notify.webhook.group_wait", "[notify]"),
        ('[[services]]\nid = "a"\nprobe = "ethereum+http://h"\nmin_peers = 3', "services.a.min_peers", "probe = {"),
        ('[[services]]\nid = "a"\nprobe = "http://h"\njson = { "/a" = 1 }', "services.a.json", "probe = {"),
        (
            '[[services]]\nid = "a"\nprobe = { url = "http://h", impact = "none" }',
            "services.a.probe.impact",
            "beside probe",
        ),
        ('drain = "5s"', "drain", "[server]"),
    ],
)
def test_the_error_says_where_a_misplaced_key_belongs(config: str, key: str, place: str, tmp_path: Path) -> None:
    error = error_of(config, tmp_path)
    assert keys_of(error) == [key]
    assert place in str(error)


def test_a_key_that_a_service_and_its_probe_both_have_is_an_option_inside_the_probe(tmp_path: Path) -> None:
    error = error_of('[[services]]\nid = "a"\nprobe = { url = "http://h", status = "x" }', tmp_path)
    assert keys_of(error) == ["services.a.probe.status"]
    assert "beside" not in str(error)


def test_a_kind_without_its_transport_is_completed_with_http(tmp_path: Path) -> None:
    assert '"ethereum+http"' in str(error_of('[[services]]\nid = "a"\nprobe = "ethereum://h:8545"', tmp_path))


# ---- TOML


@pytest.mark.parametrize(
    ("config", "line", "named"),
    [
        ('[node]\nname = "n\n', 2, "not closed"),
        ("[node]\nname = 'n", None, "not closed"),
        ('[node]\nname = "a"\nname = "b"', 3, '"name"'),
        ('[node]\nname = "a"\n"\\q" = 1', 3, "backslash"),
        ('[node]\nname = "a"\n[node]', 3, "[node]"),
        ('[[services]]\nid = "a"\n[services]', 3, "[services]"),
        ('[server]\ntls = { key = "a", key = "b" }', 2, '"key"'),
        ("[server]\ndrain =", 2, "value"),
    ],
)
def test_an_error_of_toml_has_its_line_and_names_the_key(
    config: str, line: int | None, named: str, tmp_path: Path
) -> None:
    error = error_of(config, tmp_path)
    assert error.line == line
    assert named in str(error)
