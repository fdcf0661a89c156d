"""Which probes may leave the machine on which they are configured."""

from __future__ import annotations

from typing import Any

import pytest

from svcnode.core.redaction import redacted
from svcnode.probes.restricted import is_restricted

PUBLIC: list[Any] = [
    "http://127.0.0.1:8080/health",
    "tcp://[::1]:5432",
    "heartbeat:30s",
    "icmp:10.0.0.1",
    {"url": "dns://10.0.0.1/example.org", "type": "AAAA", "expect": ["fd00::1"], "tcp": True},
    {"url": "heartbeat:", "period": "1d", "grace": "1h"},
    {"url": "https://example.org/", "status": "2xx", "contains": "ok", "max_lag": "5s", "min_cert_days": 7},
]
RESTRICTED: list[Any] = [
    *("redis://:hunter2@127.0.0.1/", "https://example.org/?key=abc", "https://${HOST}/"),
    "https://example.org/v3/0123456789abcdef0123456789abcdef",
    {"file": "/run/secrets/url"},
    {"url": {"file": "/run/secrets/url"}},
    {"url": "http://a/", "headers": {"Authorization": "Bearer x"}},
    {"url": "http://a/", "contains": {"file": "/etc/passwd"}},
    {"url": "redis://a", "password": "hunter2"},
    {"url": "http://a/", "ca": "/etc/ca.pem"},
    {"url": "http://a/", "proxy": "http://u:p@b"},
    {"url": "http://a/", "an_option_of_later": "x"},
    *("http+unix:///run/docker.sock:/info", "ethereum+unix:///run/geth.ipc", "systemd:validator", "clock:"),
    {"url": "jsonrpc+unix:///run/geth.ipc", "method": "m"},
    *("exec:/bin/true", "EXEC:/bin/true", "disk:/", "third-party://a", "not a url", ""),
]


@pytest.mark.parametrize("probe", PUBLIC)
def test_a_probe_without_login_and_without_files_may_be_published(probe: Any) -> None:
    assert not is_restricted(probe)


@pytest.mark.parametrize("probe", RESTRICTED)
def test_a_probe_that_may_hold_a_secret_or_reads_the_machine_is_restricted(probe: Any) -> None:
    assert is_restricted(probe)


def test_asking_does_not_register_secrets() -> None:
    assert is_restricted("redis://:hunter2hunter2@127.0.0.1/")
    assert redacted("hunter2hunter2") == "hunter2hunter2"
