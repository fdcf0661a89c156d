"""The [notify] section of the configuration."""

from __future__ import annotations

from datetime import time
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from svcnode.config import load
from svcnode.core.errors import ConfigError
from svcnode.notify.routes import AlertPolicy
from svcnode.notify.subjects import Severity

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from svcnode.notify.notifier import NotifySettings


def load_settings(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> NotifySettings | None:
    file = folder / "svcnode.toml"
    file.write_text(text)
    return load(file, environ or {}).notify


def names(settings: NotifySettings | None) -> list[str]:
    assert settings
    return [route.name for route in settings.routes]


def test_every_key_can_be_set(tmp_path: Path) -> None:
    settings = load_settings(
        tmp_path,
        """
        [notify]
        webhook = [
          "https://a.example.com/x",
          { url = "https://b.example.com/${KEY}", headers = { X-Key = "${KEY}" }, bearer = "x" },
        ]
        apprise = ["json://c.example.com", "ntfy://d.example.com/${KEY}"]
        services = "all"
        group_wait = "0s"
        resolve_delay = "1h"
        repeat_interval = "4h"
        """,
        {"KEY": "a-key-that-is-secret"},
    )
    assert names(settings) == ["https://a.example.com", "https://b.example.com", "json://***", "ntfy://***"]
    assert settings
    assert settings.policy == AlertPolicy(
        services="all", group_wait_s=0, resolve_delay_s=3600, repeat_interval_s=14_400
    )
    assert "example" not in repr(settings)


def test_targets_may_come_from_the_environment_or_tables_and_the_policy_has_defaults(tmp_path: Path) -> None:
    environ = {"SVCNODE_NOTIFY_WEBHOOK": "https://a.example.com/x,y", "SVCNODE_NOTIFY_APPRISE": "json://b.example.com"}
    settings = load_settings(tmp_path, "", environ)
    assert names(settings) == ["https://a.example.com", "json://***"]
    assert settings
    assert settings.policy == AlertPolicy(services="critical", group_wait_s=5, resolve_delay_s=300, repeat_interval_s=0)
    assert load_settings(tmp_path, "") is None
    tables = '[[notify.webhook]]\nurl = "https://a.example.com"\n[[notify.webhook]]\nurl = "https://b.example.com"\n'
    assert names(load_settings(tmp_path, tables)) == ["https://a.example.com", "https://b.example.com"]


def test_targets_on_one_host_are_numbered_and_recognized_by_their_url_or_by_a_given_name(tmp_path: Path) -> None:
    def ids(*paths: str) -> list[str]:
        urls = ", ".join(f'"https://a.example.com/{path}"' for path in paths)
        pager = '{ url = "https://a.example.com/secret", name = "pager" }'
        settings = load_settings(tmp_path, f"[notify]\nwebhook = [{urls}, {pager}]")
        assert names(settings) == ["https://a.example.com", "https://a.example.com (2)", "pager"]
        assert settings
        return [route.id for route in settings.routes]

    first, second, pager = ids("x", "y")
    assert first != second
    assert ids("y", "x") == [second, first, pager]
    assert ids("x", "z")[0] == first
    assert ids("x", "z")[1] != second
    assert pager == "pager"


def test_every_error_of_an_entry_is_found(tmp_path: Path) -> None:
    entry = '{ url = "ftp://a", min_severity = "high", timezone = "UTC", reuse = true, colour = 1, name = "" }'
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path, f"[notify]\nwebhook = {entry}")
    keys = {error.key for error in (caught.value, *caught.value.others)}
    assert keys == {f"notify.webhook.{name}" for name in ("url", "min_severity", "timezone", "colour", "name")}
    entries = ", ".join(f'{{ url = "https://{host}.example.com", name = "x" }}' for host in "ab")
    with pytest.raises(ConfigError, match="another target"):
        load_settings(tmp_path, f"[notify]\nwebhook = [{entries}]")


def test_an_error_does_not_show_a_url_from_the_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(
            tmp_path, '[notify]\napprise = "${TARGET_URL}"', {"TARGET_URL": "slak://the-key-of-it/and-another-one"}
        )
    assert "key-of-it" not in str(caught.value)
    assert "another" not in str(caught.value)


def test_settings_loaded_twice_are_equal_so_that_a_reload_keeps_the_targets(tmp_path: Path) -> None:
    text = '[notify]\nwebhook = { url = "https://a.example.com", bearer = "${K}" }\napprise = "json://b.example.com"'
    first, second, other = (load_settings(tmp_path, text, {"K": key}) for key in ("one-key", "one-key", "another-key"))
    assert first
    assert second
    assert other
    assert first.routes == second.routes
    assert first.routes != other.routes


def test_a_target_may_be_a_table_that_says_what_it_gets(tmp_path: Path) -> None:
    settings = load_settings(
        tmp_path,
        """
        [notify]
        webhook = { url = "https://pager.example.com", min_severity = "critical", escalate_after = "15m" }
        apprise = [
          { url = "json://chat.example.com", services = ["db"], groups = ["storage"], repeat_interval = "4h" },
          { url = "json://mail.example.com", quiet_hours = "22:00-07:00", timezone = "Europe/Berlin" },
        ]
        """,
    )
    assert settings
    pager, chat, mail = settings.routes
    assert (pager.min_severity, pager.escalate_after_s) == (Severity.CRITICAL, 900)
    assert (chat.services, chat.groups, chat.repeat_interval_s) == (frozenset({"db"}), frozenset({"storage"}), 14_400.0)
    assert mail.quiet_hours == (time(22), time(7), ZoneInfo("Europe/Berlin"))
