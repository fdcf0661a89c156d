"""Targets from the configuration, and what is shown of them."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import InvalidValueError, OptionError, SvcnodeError
from svcnode.core.redaction import redacted
from svcnode.core.url import UrlError
from svcnode.notify.targets import AppriseTarget, Webhook, apprise_from, webhook_from
from svcnode.version import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator

HOOK = "https://hooks.example.com/services/T024BE7LD/B024BE7LF/xoxp-the-secret-key"


@pytest.fixture
def our_log() -> Iterator[list[str]]:
    """The messages that reach a handler of the root logger, like that of the agent; caplog receives more."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    root, collector = logging.getLogger(), Collector()
    level = root.level
    root.addHandler(collector)
    root.setLevel(logging.DEBUG)
    yield messages
    root.removeHandler(collector)
    root.setLevel(level)


@pytest.mark.parametrize(
    "given", ["https://hooks.example.com/a", {"url": "https://hooks.example.com/a"}, "https://${HOST}/a"]
)
def test_a_webhook_is_a_url_or_a_table_with_a_url(given: object) -> None:
    assert webhook_from(given, {"HOST": "hooks.example.com"}) == webhook_from("https://hooks.example.com/a", {})


def test_a_webhook_url_may_come_from_a_file_or_the_environment(tmp_path: Any) -> None:
    (tmp_path / "hook").write_text(HOOK)
    expected = webhook_from(HOOK, {})
    assert webhook_from({"file": str(tmp_path / "hook")}, {}) == expected
    assert webhook_from({"url": {"file": str(tmp_path / "hook")}}, {}) == expected
    assert webhook_from("${HOOK}", {"HOOK": HOOK}) == expected


def test_webhooks_with_different_headers_are_different() -> None:
    plain = webhook_from(HOOK, {})
    assert plain != webhook_from({"url": HOOK, "headers": {"X-Key": "a"}}, {})
    assert len({plain, webhook_from(HOOK, {})}) == 1


def test_only_the_host_of_a_webhook_is_shown() -> None:
    target = webhook_from({"url": HOOK, "headers": {"Authorization": "Bearer ${KEY}"}}, {"KEY": "s3cr3t-of-a-header"})
    assert target.name == "https://hooks.example.com"
    assert repr(target) == "<Webhook https://hooks.example.com>"
    assert "the-secret-key" not in redacted("POST /services/T024BE7LD/B024BE7LF/xoxp-the-secret-key")
    assert "s3cr3t" not in redacted("Bearer s3cr3t-of-a-header")


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ("ftp://hooks.example.com", InvalidValueError, "ftp"),
        ("hooks.example.com", UrlError, "scheme"),
        ({"headers": {}}, InvalidValueError, "url"),
        ({"url": 7}, InvalidValueError, "string"),
        ({"url": HOOK, "headers": {"X Key": "a"}}, OptionError, "X Key"),
        ({"url": HOOK, "reuse": True}, OptionError, "reuse"),
        ({"url": HOOK, "bearer": "${NOT_SET}"}, OptionError, "NOT_SET"),
        ({"url": HOOK, "ca": "/no/such/file"}, OptionError, "/no/such/file"),
        ({"url": "http://127.0.0.1/a", "ca": "x.pem"}, OptionError, "ca"),
    ],
)
def test_an_invalid_webhook_is_rejected(given: object, error: type[SvcnodeError], match: str) -> None:
    with pytest.raises(error, match=match):
        webhook_from(given, {})


def test_only_the_scheme_of_an_apprise_url_is_shown() -> None:
    url = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general-channel"
    target = apprise_from(url, {})
    assert target.name == "slack://***"
    assert repr(target) == "<AppriseTarget slack://***>"
    for part in (url, "T1JJ3T3L2", "A1BRTD4JD", "TIiajkdnlazkcOXrIdevi7FQ", "general-channel"):
        assert redacted(f"POST {part} failed") == "POST *** failed"


def test_the_host_of_an_apprise_url_is_not_redacted_but_all_else_is() -> None:
    apprise_from("jsons://reader:pass-word@ntfy.example.com:8443/the-secret-path", {})
    assert redacted("ntfy.example.com and 127.0.0.1") == "ntfy.example.com and 127.0.0.1"
    assert redacted("pass-word the-secret-path") == "*** ***"


def test_equal_apprise_urls_are_equal_targets() -> None:
    first, second = apprise_from("json://127.0.0.1:1/a", {}), apprise_from("json://127.0.0.1:1/${X}", {"X": "a"})
    assert first == second
    assert hash(first) == hash(second)
    targets: set[AppriseTarget | Webhook] = {first, webhook_from("http://127.0.0.1:1/a", {})}
    assert len(targets) == 2


@pytest.mark.parametrize("url", ["slak://a/b/c", "json://", "no scheme"])
def test_an_invalid_apprise_url_is_rejected_and_not_shown(
    url: str, our_log: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidValueError, match="Apprise"):
        apprise_from(url, {})
    assert not our_log
    assert capsys.readouterr() == ("", "")


def test_without_apprise_the_error_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(SvcnodeError, match=re.escape(install_command("notify"))):
        apprise_from("json://127.0.0.1", {})


def test_log_lines_of_apprise_and_its_libraries_are_suppressed(our_log: list[str]) -> None:
    apprise_from("json://127.0.0.1:1/a", {})
    for name in ("apprise", "urllib3.connectionpool", "requests"):
        logging.getLogger(name).error("POST /the/key")
    assert not our_log
    logging.getLogger("svcnode").error("ours")
    assert our_log == ["ours"]


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("json://inside:81/x", ("inside", 81)),
        ("ntfys://ntfy.example/topic", ("ntfy.example", None)),
        ("mailto://me:secret-1@gmail.com", ("smtp.gmail.com", 587)),
        ("ntfy://topic", None),
        ("tgram://123456789:abcdefg_hijklmnop/12345/", None),
        ("slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/", None),
    ],
)
def test_the_host_of_a_target_of_apprise_is_never_a_key(url: str, endpoint: tuple[str, int | None] | None) -> None:
    assert apprise_from(url, {}).endpoint == endpoint


def test_the_value_of_a_header_with_a_key_is_hidden() -> None:
    headers = {"X-Api-Key": "hidden-of-key", "Authorization": "Token hidden-of-token", "Accept": "text/of-any-kind"}
    webhook_from({"url": HOOK, "headers": headers}, {})
    assert redacted("hidden-of-key hidden-of-token text/of-any-kind") == "*** *** text/of-any-kind"
