"""From what a configuration says to targets, and what is shown of them."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import InvalidValueError, SvcnodeError
from svcnode.core.redaction import redacted
from svcnode.notify.targets import AppriseTarget, Webhook, apprise_from, webhook_from

if TYPE_CHECKING:
    from collections.abc import Iterator

HOOK = "https://hooks.example.com/services/T024BE7LD/B024BE7LF/xoxp-the-key-of-it"


@pytest.fixture
def our_log() -> Iterator[list[str]]:
    """What reaches the handlers of the root, as those of the agent are; caplog hears more than that."""
    heard: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    root, ear = logging.getLogger(), Ear()
    level = root.level
    root.addHandler(ear)
    root.setLevel(logging.DEBUG)
    yield heard
    root.removeHandler(ear)
    root.setLevel(level)


@pytest.mark.parametrize(
    "given",
    [
        "https://hooks.example.com/a",
        {"url": "https://hooks.example.com/a"},
        {"url": "https://hooks.example.com/a", "headers": {}},
        "https://${HOST}/a",
    ],
)
def test_a_webhook_is_a_url_or_a_table_with_one(given: object) -> None:
    assert webhook_from(given, {"HOST": "hooks.example.com"}) == webhook_from("https://hooks.example.com/a", {})


def test_a_webhook_may_stand_in_a_file_or_in_the_environment(tmp_path: Any) -> None:
    (tmp_path / "hook").write_text(HOOK)
    wanted = webhook_from(HOOK, {})
    assert webhook_from({"file": str(tmp_path / "hook")}, {}) == wanted
    assert webhook_from({"url": {"file": str(tmp_path / "hook")}}, {}) == wanted
    assert webhook_from("${HOOK}", {"HOOK": HOOK}) == wanted


def test_a_webhook_with_another_header_is_another_one() -> None:
    plain = webhook_from(HOOK, {})
    assert plain != webhook_from({"url": HOOK, "headers": {"X-Key": "a"}}, {})
    assert len({plain, webhook_from(HOOK, {})}) == 1


def test_of_a_webhook_no_more_than_its_host_is_shown() -> None:
    target = webhook_from({"url": HOOK, "headers": {"Authorization": "Bearer ${KEY}"}}, {"KEY": "s3cr3t-of-a-header"})
    assert target.name == "https://hooks.example.com"
    assert repr(target) == "<Webhook https://hooks.example.com>"
    assert "the-key-of-it" not in redacted("POST /services/T024BE7LD/B024BE7LF/xoxp-the-key-of-it")
    assert "s3cr3t" not in redacted("Bearer s3cr3t-of-a-header")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ftp://hooks.example.com", 'a webhook is an http:// or https:// URL, not "ftp"'),
        ("hooks.example.com", "not a URL"),
        ("https:///a", "names no host"),
        ({"headers": {}}, "a webhook has a url"),
        ({"url": 7}, "a URL is a string"),
        ({"url": HOOK, "headers": {"X Key": "a"}}, '"X Key" is not the name of a header'),
        ({"url": HOOK, "header": {}}, 'unknown option; did you mean "headers"?'),
        ({"url": HOOK, "reuse": True}, "reuse: is for probes, and has no meaning here"),
        ({"url": HOOK, "bearer": "${NOT_SET}"}, "the environment variable NOT_SET is not set"),
        ({"url": HOOK, "ca": "/no/such/file"}, "cannot use /no/such/file"),
        ({"url": "http://127.0.0.1/a", "ca": "x.pem"}, "has no meaning for http"),
    ],
)
def test_what_can_never_be_sent_is_refused(given: object, words: str) -> None:
    with pytest.raises(SvcnodeError, match=re.escape(words)):
        webhook_from(given, {})


def test_an_apprise_url_is_shown_by_its_scheme_only() -> None:
    url = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ/#general-channel"
    target = apprise_from(url, {})
    assert target.name == "slack://***"
    assert repr(target) == "<AppriseTarget slack://***>"
    for part in (url, "T1JJ3T3L2", "A1BRTD4JD", "TIiajkdnlazkcOXrIdevi7FQ", "general-channel"):
        assert redacted(f"said {part} to it") == "said *** to it"


def test_the_host_of_an_apprise_url_is_no_secret_but_all_else_is() -> None:
    apprise_from("jsons://reader:pass-word@ntfy.example.com:8443/the-secret-path", {})
    assert redacted("ntfy.example.com and 127.0.0.1") == "ntfy.example.com and 127.0.0.1"
    assert redacted("pass-word the-secret-path") == "*** ***"


def test_apprise_urls_that_are_equal_are_one_target() -> None:
    first, second = apprise_from("json://127.0.0.1:1/a", {}), apprise_from("json://127.0.0.1:1/${X}", {"X": "a"})
    assert first == second
    assert hash(first) == hash(second)
    targets: set[AppriseTarget | Webhook] = {first, webhook_from("http://127.0.0.1:1/a", {})}
    assert len(targets) == 2


@pytest.mark.parametrize("url", ["slak://a/b/c", "json://", "slack://a", "mailto:me", "nothing at all", "://x"])
def test_what_apprise_cannot_use_is_refused_without_showing_it(
    url: str, our_log: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(InvalidValueError, match="Apprise"):
        apprise_from(url, {})
    assert not our_log
    assert capsys.readouterr() == ("", "")


def test_without_apprise_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)
    with pytest.raises(SvcnodeError, match=r'Apprise is not installed: pip install "svcnode\[notify\]"'):
        apprise_from("json://127.0.0.1", {})


def test_neither_apprise_nor_what_it_calls_speaks_in_our_log(our_log: list[str]) -> None:
    apprise_from("json://127.0.0.1:1/a", {})
    for name in ("apprise", "urllib3.connectionpool", "requests"):
        logging.getLogger(name).error("POST /the/key")
    assert not our_log
    logging.getLogger("svcnode").error("heard")
    assert our_log == ["heard"]
