"""The JSON Schema agrees with the parser, except for the rules that it cannot express."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from svcnode.config.json_schema import FILE, build_schema

ROOT = Path(__file__).parents[3]
BAD = ROOT / "tests" / "bad_configs"

# Files that the parser rejects and the schema accepts.
# The rule is about files, variables or groups of this machine, or about the packages that are installed.
OF_THIS_MACHINE = """
control-group-unknown notify-webhook-file-missing notify-webhook-variable-not-set operator-token-file-missing
operator-token-variable-not-set probe-disk-write-directory probe-nats-credentials-device
probe-nats-credentials-missing probe-secret-file-is-a-folder probe-secret-file-missing probe-tls-ca-device
probe-tls-ca-missing probe-tls-client-certificate-missing probe-url-file-missing probe-url-variable-not-set
probe-variable-not-set-inside probe-variable-not-set push-token-variable-not-set tls-certificate-device
tls-certificate-missing tls-key-is-a-folder tls-key-missing sharing-ca-missing sharing-registry-variable
"""
# The rule is about the parts of a URL or an address, which are one string, or about several options of a kind.
OF_A_URL_OR_OPTIONS = """
cors-default-port cors-path cors-port cors-star-and-origin listen-host-only listen-ipv6-bare listen-ipv6-wrong
listen-port-only listen-port-too-high listen-scheme listen-twice listen-unix-empty notify-apprise-form
notify-apprise-scheme notify-webhook-headers notify-webhook-no-url notify-webhook-option-of-probes
notify-webhook-option-unknown notify-webhook-scheme notify-webhook-twice notify-webhook-variable-unclosed
operator-listen-port-only operator-listen-same-as-listen operator-listen-tls prefix-dots
prefix-of-the-operator-surface prefix-with-query probe-amqp-password-twice probe-amqp-query
probe-amqp-queue-long probe-amqp-tls probe-amqp-username-twice probe-amqp-vhost-long probe-amqp-vhost-slash
probe-amqp-vhost-twice probe-amqp-write-long probe-beacon-query probe-disk-nothing probe-disk-warn-free
probe-disk-write-read-only probe-etcd-bearer probe-etcd-ca-without-tls probe-etcd-password-alone
probe-etcd-password-twice probe-etcd-path probe-etcd-username-twice probe-ethereum-no-host probe-ethereum-tls
probe-exec-not-allowed probe-exec-nothing probe-exec-quote probe-exec-refused probe-exec-twice
probe-file-nothing probe-grpc-no-port probe-grpc-path probe-grpc-query probe-grpc-tls probe-grpc-user
probe-heartbeat-grace-alone probe-heartbeat-grace-zero probe-heartbeat-nothing probe-heartbeat-period-alone
probe-heartbeat-period-and-ttl probe-heartbeat-twice probe-heartbeat-unit probe-heartbeat-zero
probe-http-authorization-twice probe-http-bearer-beside-user probe-http-headers-line probe-http-headers-name
probe-http-http2-proxy probe-http-json-nan probe-http-matches-repeats probe-http-matches
probe-http-method-head probe-http-method probe-http-no-host probe-http-proxy probe-http-reuse-head
probe-http-starting-json-date probe-http-status-both probe-http-status-none probe-ipfs-query
probe-jsonrpc-result-time probe-memcached-path probe-memcached-tls probe-memcached-user probe-memcached-write
probe-mysql-ca-without-tls probe-mysql-database-null probe-mysql-no-user probe-mysql-password-twice
probe-mysql-primary-address probe-mysql-primary-and-write probe-mysql-primary-of-a-primary
probe-mysql-primary-scheme probe-mysql-primary-url probe-mysql-primary-without-max-lag probe-mysql-query
probe-mysql-username-twice probe-mysql-write-database probe-mysql-write-replica probe-mysql-write-table
probe-nats-credentials-beside-token probe-nats-credentials-beside-user probe-nats-password-alone
probe-nats-password-twice probe-nats-path probe-nats-tls probe-nats-token-beside-user
probe-nats-username-twice probe-nats-write-api probe-nats-write-wildcard probe-postgresql-ca-disabled
probe-postgresql-ca-unchecked probe-postgresql-database-null probe-postgresql-min-cert-days
probe-postgresql-no-host probe-postgresql-parameter-far probe-postgresql-parameter-null
probe-postgresql-parameter probe-postgresql-password-null probe-postgresql-password-twice
probe-postgresql-primary-address probe-postgresql-primary-and-write probe-postgresql-primary-of-a-primary
probe-postgresql-primary-scheme probe-postgresql-primary-url probe-postgresql-primary-without-max-lag
probe-postgresql-server-name-without-tls probe-postgresql-sslmode-in-url probe-postgresql-sslmode-twice
probe-postgresql-username-null probe-postgresql-username-twice probe-postgresql-write-replica
probe-postgresql-write-table probe-redis-db-twice probe-redis-db probe-redis-password-twice probe-redis-query
probe-redis-sentinel-ca-without-tls probe-redis-sentinel-database probe-redis-sentinel-db-twice
probe-redis-sentinel-hosts probe-redis-sentinel-no-master probe-redis-sentinel-username-alone probe-redis-tls
probe-redis-username-twice probe-redis-write-replica probe-sqlite-query probe-sqlite-thorough
probe-svc-path-of-a-service probe-svc-prefix-twice probe-svc-prefix probe-svc-query probe-svc-service-dots
probe-table-option-dotted probe-table-url probe-tcp-ca probe-tcp-ipv6 probe-tcp-no-host probe-tcp-no-port
probe-tcp-path probe-tcp-port probe-tcp-user probe-tls-ca-no-pem probe-tls-client-key-alone
probe-tls-server-name probe-url-control probe-variable-unclosed-option probe-variable-unclosed
service-probe-no-file service-probe-scheme-far service-probe-scheme-near service-probe-scheme
fleet-probe-url fleet-registry-scheme sharing-registry-duplicate sharing-registry-host sharing-registry-port
sharing-registry-prefix sharing-registry-query sharing-registry-scheme sharing-registry-table sharing-url-login
sharing-url-scheme
"""
# The rule is about several keys.
OF_SEVERAL_KEYS = """
defaults-tolerance-not-below defaults-max-latency-above-timeout defaults-stale-after-below-interval
defaults-timeout-above-interval defaults-transition-interval-above-interval maintenance-service-unknown
notify-repeat-interval-too-long notify-repeat-interval-too-short push-token-of-a-probe
push-token-without-control security-trust-loopback-without-token service-id-twice
service-interval-above-default-stale-after service-max-latency-above-default-timeout
service-max-latency-above-timeout service-stale-after-at-default-interval service-stale-after-below-interval
service-timeout-above-default-interval service-timeout-above-interval service-timeout-at-interval
service-transition-interval-above-default-interval service-transition-interval-above-interval tls-unused
fleet-both fleet-file-ca fleet-neither fleet-service-id fleet-sharing service-checked-by-heartbeat
service-checked-by-not-shared service-observers-above-checked-by service-observers-fixed-status
service-observers-not-shared sharing-ca-without-tls sharing-client-key-alone sharing-node-name
sharing-password-twice sharing-password-without-user sharing-registry-missing
"""
# The rule is about the length of a duration, a size, or the content of a text.
OF_A_VALUE = """
defaults-stale-after-too-long drain-too-long history-max-age-short history-max-size-small
maintenance-duration-day maintenance-duration-week maintenance-reason-control maintenance-services-empty
maintenance-start maintenance-timezone notify-group-wait-too-long notify-resolve-delay-too-long
notify-start-limit-too-long
operator-token-variable-unclosed push-token-and-prefix service-description-control service-interval-too-long
service-name-control service-stale-after-too-long tls-none-for-https fleet-file-empty fleet-interval-short
fleet-refresh-interval-short service-checked-by-duplicate service-checked-by-empty service-checked-by-name
service-group-control service-observers-range sharing-lease-long sharing-lease-short sharing-observers-too-many
sharing-observers-zero sharing-password-type sharing-replica-control sharing-replica-empty sharing-replica-long
"""
ACCEPTED = {*OF_THIS_MACHINE.split(), *OF_A_URL_OR_OPTIONS.split(), *OF_SEVERAL_KEYS.split(), *OF_A_VALUE.split()}


def in_json(value: Any) -> Any:
    """A TOML value as an editor has it; dates, nan and inf are values that no key has."""
    match value:
        case dict():
            return {key: in_json(inner) for key, inner in value.items()}
        case list():
            return [in_json(inner) for inner in value]
        case float() if not (value == value and abs(value) < float("inf")):  # noqa: PLR0124  nan
            return None
        case str() | bool() | int() | float():
            return value
        case _:
            return None


VALIDATOR = jsonschema_rs.validator_for(build_schema())


def errors_of(config: str) -> list[str]:
    return [str(error) for error in VALIDATOR.iter_errors(in_json(tomllib.loads(config)))]


def test_the_shipped_file_is_up_to_date(request: pytest.FixtureRequest) -> None:
    text = json.dumps(build_schema(), indent=1, ensure_ascii=False) + "\n"
    if request.config.getoption("--update-wording", default=False):
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text, "run `make wording` to write it again"


def test_the_schema_is_a_valid_schema() -> None:
    jsonschema_rs.meta.validate(build_schema())


def test_the_schema_rejects_what_the_parser_rejects_except_for_the_listed_files() -> None:
    accepted = set()
    for file in BAD.iterdir():
        try:
            config = tomllib.loads(file.read_bytes().decode())
        except (ValueError, RecursionError):
            continue  # not TOML
        if VALIDATOR.is_valid(in_json(config)):
            accepted.add(file.stem)
    assert accepted == ACCEPTED


def good_configs() -> list[tuple[str, str]]:
    files = [*(ROOT / "examples" / "nodes").glob("*.toml"), *(ROOT / "deploy").rglob("svcnode*.toml")]
    pages = [*ROOT.glob("README.md"), *(ROOT / "docs").rglob("*.md")]  # the wheel has none
    blocks = [
        (page.name, block)
        for page in pages
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    return [*((file.name, file.read_text()) for file in files), *blocks]


@pytest.mark.parametrize(("name", "config"), good_configs())
def test_the_schema_accepts_the_configurations_of_the_examples_and_the_pages(name: str, config: str) -> None:
    """Pages may show a part of a service."""
    if not re.search(r"^\[", config, re.MULTILINE):
        config = f'[[services]]\nid = "a"\n{config}'
    assert errors_of(config) == []


GOOD = """
[node]
name = "a"
[server]
listen = "127.0.0.1:1, unix:/run/a.sock"
prefix = "/"
[[services]]
id = "a"
probe = "${URL}"
start_period = "0s"
[[services]]
id = "b"
probe = { url = "${URL}", anything = 1 }
[[services]]
id = "c"
probe = { file = "/run/url" }
[[services]]
id = "d"
probe = { url = { file = "/run/url" }, bearer = { file = "/run/token" } }
[[services]]
id = "e"
probe = { url = "spool:/var", max_files = 5 }
[[services]]
id = "f"
probe = { url = "http://h/", bearer = { file = "/run/token" }, status = "${STATUS}", json = { "/a" = [1] } }
[[services]]
id = "g"
probe = { url = "heartbeat:", ttl = "${TTL}" }
push_token = "${TOKEN}"
"""


def test_the_schema_accepts_secrets_variables_and_kinds_of_other_packages() -> None:
    assert errors_of(GOOD) == []


def test_every_key_of_the_schema_has_a_description() -> None:
    properties = build_schema()["properties"]
    for table in ("node", "server", "history", "control", "notify", "security"):
        assert all("description" in key or key["type"] == "object" for key in properties[table]["properties"].values())
    assert "description" in properties["services"]["items"]["properties"]["probe"]
