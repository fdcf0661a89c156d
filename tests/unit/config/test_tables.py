"""The declared keys: what the parser, the environment and the JSON Schema make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from svcnode.config.reading import read_table, read_tables
from svcnode.config.sources import Origin, Source, environment_keys
from svcnode.config.tables import LISTS, TABLES
from svcnode.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.config.keys import KeyPath

TOKEN = "a-token-of-16-chars"
REGISTRY: dict[str, list[Any]] = {
    "registry": ["etcd://a,b:1/p", "etcd://u:p%40@[::1]:2379", "etcd://${HOST}", {"file": "url.txt"}],
    "password": ["secret", "${PW}", {"file": "pw.txt"}],
    "tls": [True],
    "ca": ["ca.pem", ""],
    "client_certificate": ["c.pem"],
    "client_key": ["k.pem"],
}
DEFAULTS: dict[str, list[Any]] = {
    "impact": ["critical", "partial", "none"],
    "slo": ["99.9%", "99.9999%", "0.5%", "off"],
    "interval": ["1d", "0.5ms", " 5s "],
    "transition_interval": ["2s"],
    "timeout": ["3s"],
    "max_latency": ["1s"],
    "rise": [1, 1000],
    "fall": [3],
    "tolerance": ["4/10", "off", "0/1", "999/1000"],
    "start_period": ["0s", "30s"],
    "stale_after": ["7d", "168.0h"],
}
# Valid values of every key; the first of a list is a text of the environment, too.
VALID: dict[str, dict[str, list[Any]]] = {
    "node": {"name": ["validator-7"], "version": ["v1.4.2", "v0"]},
    "operator": {"url": ["https://node.example.com:8420", "http://[::1]:8420/status/", ""]},
    "server": {
        "listen": ["127.0.0.1:1, [::1]:2", ["unix:/a,b", "https://h:65535/"], "0.0.0.0:0"],
        "prefix": ["/svc,/eigen/", ["/a.b/c~d"], "/", ""],
        "cors": ["*", ["https://a.example:8443", "http://[::1]"]],
        "drain": ["1h", "0s", "3600s", "60.0m"],
        "operator": [False],
        "operator_listen": ["127.0.0.1:1"],
        "tls": [{"certificate": "a.pem", "key": "a.key"}],
    },
    "public": {
        "services": ["db,api", ["a/ä, ?"]],
        "groups": ["Storage", ["Storage", "Edge"]],
        "tags": ["open", ["open", "eu"]],
        "title": ["Status of Example"],
        "listen": ["0.0.0.0:8080", ["https://h:1", "unix:/p"]],
        "path": ["/public", "/a.b/c~d/"],
        "url": ["https://status.example.com", ""],
    },
    "store": {"path": ["store.db"]},
    "history": {"keep": [False], "path": ["a b.db"], "max_age": ["1h", "90d", "60m"], "max_size": ["1MiB", "1.5 GB"]},
    "log": {"level": ["debug"], "format": ["json"]},
    "control": {
        "enabled": [False],
        "listen": ["unix:/run/c.sock"],
        "group": ["operators"],
        "path": ["c.db"],
        "allow_exec": [True],
    },
    "notify": {
        "webhook": ["https://a.example/a,b", {"url": "https://a/", "headers": {"A": "b"}}, ["http://a", {"file": "x"}]],
        "alertmanager": ["http://a:9093"],
        "apprise": ["ntfy://a/b", ["ntfy://a", "${URL}"], {"url": "ntfy://a", "min_severity": "critical"}],
        "services": ["all"],
        "group_wait": ["5m", "0s"],
        "resolve_delay": ["24h", "1d"],
        "repeat_interval": ["0s", "1m", "720h"],
        "start_limit": ["1h"],
        "heartbeat": ["https://a.example/b", {"url": "https://a/", "ca": "a.pem"}, {"file": "x"}],
        "heartbeat_interval": ["1s", "1h"],
    },
    "sharing": REGISTRY | {"replica": ["host-a"], "observers": [7], "lease": ["2s", "10m"], "url": ["http://a:1", ""]},
    "fleet": REGISTRY | {"file": ["n.txt"], "refresh_interval": ["1s"], "probe": [{"bearer": "x"}]} | DEFAULTS,
    "security": {"allow_exec": [True], "operator_token": [TOKEN, "${T}", {"file": "t"}], "trust_loopback": [True]},
    "defaults": DEFAULTS,
    "services": {
        "id": ["a/ä ?"],
        "name": ["DB", ""],
        "description": ["one\n\ttwo"],
        "group": ["storage"],
        "tags": [["chain", "eu/west:1"]],
        "runbook": ["https://wiki.example.com/runbooks/db-1#start", ""],
        "depends_on": [["ledger", "storage"]],
        "maintenance_impact": ["none"],
        "probe": ["tcp://a:1", {"url": "http://a"}, {"file": "url"}, "${URL}", "spool:/var"],
        "status": ["Up"],
        "push_token": [TOKEN],
        "push_get": [True, False],
        "observers": [1],
        "checked_by": [["a", "b"]],
        **DEFAULTS,
    },
    "maintenance": {
        "services": [["db"]],
        "start": ["02:00", "Sun 23:59"],
        "duration": ["2h"],
        "timezone": ["Europe/Berlin"],
        "reason": [""],
    },
}
ALL_TABLES = TABLES | LISTS
ENVIRON = {"PW": "secret", "T": TOKEN}


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"pw.txt": "secret", "t": TOKEN}.items():
        (tmp_path / name).write_text(text)


def errors_of(name: str, given: Any, environ: dict[str, str] = ENVIRON) -> list[str | None]:
    """The keys with an error."""
    source = Source.of_data({name: [given] if name in LISTS else given}, environ)
    if name in LISTS:
        read_tables(LISTS[name], source.data[name], (name,), source)
    else:
        read_table(TABLES[name], given, (name,), source)
    try:
        source.raise_errors()
    except ConfigError as exc:
        return [error.key for error in (exc, *exc.others)]
    return []


def required_keys(name: str) -> dict[str, Any]:
    return {key: VALID[name][key][0] for key, one in ALL_TABLES[name].keys.items() if one.is_required}


@pytest.mark.parametrize("name", ALL_TABLES)
def test_a_valid_value_of_every_key_is_accepted(name: str) -> None:
    table = ALL_TABLES[name]
    assert VALID[name].keys() == table.keys.keys()
    for key, values in VALID[name].items():
        for value in values:
            assert errors_of(name, required_keys(name) | {key: value}) == [], (key, value)


@pytest.mark.parametrize("name", ALL_TABLES)
def test_an_unknown_key_is_refused_in_every_table(name: str) -> None:
    (found,) = errors_of(name, required_keys(name) | {"xyzzy": 1})
    assert str(found).endswith("xyzzy")


def text_keys() -> Iterator[tuple[str, KeyPath, Any]]:
    for name, keys in VALID.items():
        for key, values in keys.items():
            if name in TABLES and not isinstance(values[0], dict):
                yield f"SVCNODE_{name}_{key}".upper(), (name, key), values[0]
    yield "SVCNODE_SERVER_TLS_CERTIFICATE", ("server", "tls", "certificate"), "a.pem"
    yield "SVCNODE_SERVER_TLS_KEY", ("server", "tls", "key"), "a.key"


def test_every_key_that_is_not_a_table_can_be_set_in_the_environment() -> None:
    assert sorted(environment_keys()) == sorted(name for name, *_ in text_keys())
    for name, path, value in text_keys():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        source = Source(None, {name: text}, ())
        assert source.value_at(path) == value
        assert source.origin_of(path) == Origin(override=f"environment variable {name}")
