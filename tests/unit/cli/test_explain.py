"""The address and token of `svcnode explain`, and the errors before a request is sent."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import build_parser, explain
from svcnode.cli._args import program
from svcnode.cli.operator_url import TOKEN_VARIABLE, OperatorUrl, operator_url_from
from svcnode.core.errors import ConfigError

if TYPE_CHECKING:
    import argparse

TOKEN = "an-operator-token-of-fair-length"


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["explain", *arguments])


def url(*arguments: str) -> OperatorUrl:
    return operator_url_from(parsed(*arguments))


def url_from(config: str, *arguments: str) -> OperatorUrl:
    Path("svcnode.toml").write_text(config)
    return url(*arguments)


@pytest.mark.parametrize(
    ("config", "origin"),
    [
        ("", "http://127.0.0.1:8420"),
        ('listen = ["localhost:9000"]', "http://localhost:9000"),
        ('listen = ["127.0.0.1:9000"]\noperator_listen = ["127.0.0.1:9100"]', "http://127.0.0.1:9100"),
        ('listen = ["10.0.0.5:9000", "[::1]:9000", "127.0.0.1:9000"]', "http://[::1]:9000"),
        ('listen = ["0.0.0.0:9000"]', "http://127.0.0.1:9000"),
        ('listen = ["[::]:9000"]', "http://[::1]:9000"),
    ],
)
def test_the_configuration_has_the_address_and_loopback_is_preferred(config: str, origin: str) -> None:
    found = url_from(f"[server]\n{config}")
    assert found.origin == found.display == origin


def test_another_configuration_or_the_environment_may_have_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other.toml").write_text('[server]\nlisten = "127.0.0.1:9001"')
    assert url("-c", "other.toml").origin == "http://127.0.0.1:9001"
    monkeypatch.setenv("SVCNODE_SERVER_LISTEN", "127.0.0.1:9002, 127.0.0.1:9003")
    assert url().origin == "http://127.0.0.1:9002"


def test_a_unix_socket_is_used_by_its_path() -> None:
    found = url_from('[server]\nlisten = ["unix:/run/node.sock"]')
    assert (found.origin, found.socket_path, found.display) == (
        "http://localhost",
        "/run/node.sock",
        "unix:/run/node.sock",
    )
    assert url("unix:/run/other.sock").socket_path == "/run/other.sock"


@pytest.mark.parametrize(
    ("given", "origin"),
    [
        ("node:8420", "http://node:8420"),
        ("http://node:8420/svc/node", "http://node:8420"),
        ("https://node/base/", "https://node/base"),
    ],
)
def test_a_url_overrides_the_configuration(given: str, origin: str) -> None:
    assert url_from("[server]\noperator = false", given).origin == origin


@pytest.mark.parametrize(
    "invalid",
    [
        '[[services]]\nid = "db"\nprobe = "postgresql://me:${NOT_SET_HERE}@db/ledger"\nimpact = "critcal"',
        "services = 1",
        "[sever]\n",
        "[security]\nallow_exec = 1",
    ],
)
def test_errors_elsewhere_in_the_configuration_are_ignored(invalid: str) -> None:
    config = f'server.listen = "127.0.0.1:9000"\nserver.drain = 5\nserver.prefx = "/x"\n{invalid}'
    assert url_from(config).origin == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("config", "key", "line"),
    [
        ("[server", None, 1),
        ("[server]\nlisten = 9000", "server.listen", 2),
        ("server = 9000", "server", 1),
        ('[server]\nlisten_ = "127.0.0.1:9000"', "server.listen_", 2),
        ('[server.tls]\ncertificate = "a.pem"', "server.tls", 1),
    ],
)
def test_an_invalid_configuration_is_refused_with_a_hint_at_url(config: str, key: str | None, line: int | None) -> None:
    with pytest.raises(ConfigError, match="URL") as caught:
        url_from(config)
    assert (caught.value.key, caught.value.line) == (key, line)


def test_a_token_is_sent_as_bearer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert url("node:1").authorization == ""
    assert url("--token", TOKEN, "node:1").authorization == f"Bearer {TOKEN}"
    assert TOKEN not in repr(url("--token", TOKEN))
    Path("token").write_text(f"{TOKEN}\n")
    assert url("--token", "@token").authorization == f"Bearer {TOKEN}"
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert url("node:1").authorization == f"Bearer {TOKEN}"


def test_the_token_of_the_configuration_is_sent_to_its_address_and_to_no_other() -> None:
    config = f'[server]\nlisten = ["0.0.0.0:9000"]\n[security]\noperator_token = "{TOKEN}"'
    assert url_from(config).authorization == f"Bearer {TOKEN}"
    assert url_from(config, "node:1").authorization == ""


@pytest.mark.parametrize("trust", ["", "trust_loopback = false\n"])
@pytest.mark.parametrize("listen", ["127.0.0.1:9000", "unix:/run/node.sock"])
def test_a_configured_token_is_sent_to_loopback(listen: str, trust: str) -> None:
    config = f'[server]\nlisten = "{listen}"\n[security]\n{trust}operator_token = '
    assert url_from(f'{config}"{TOKEN}"').authorization == f"Bearer {TOKEN}"
    # The option is enough if this user may not read the token file of the configuration.
    unreadable = f'{config}{{ file = "/no/such" }}'
    assert url_from(unreadable, "--token", TOKEN).authorization == f"Bearer {TOKEN}"
    with pytest.raises(ConfigError, match="/no/such") as caught:
        url_from(unreadable)
    assert caught.value.key == "security.operator_token"
    assert "--token" in str(caught.value)


def test_a_token_that_is_not_needed_is_not_read_and_a_login_in_the_url_is_sent() -> None:
    config = '[security]\noperator_token = { file = "/no/such" }\ntrust_loopback = true'
    assert url_from(config).authorization == ""
    assert url(f"http://me:{TOKEN}@node:1").authorization.startswith("Basic ")
    assert TOKEN not in url(f"http://me:{TOKEN}@node:1").display


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ("[server]\noperator = false", "server.operator"),
        ('[server]\nlisten = ["127.0.0.1:0"]', "server.listen"),
        ("[server]\nlisten = []", "server.listen"),
        ('[server]\noperator_listen = ["x"]', "server.operator_listen"),
        ('[server]\nlisten = ["10.0.0.1:1"]\n[security]\noperator_token = "${NO}"', "security.operator_token"),
    ],
)
def test_a_configuration_without_a_usable_address_is_refused(config: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        url_from(config)
    assert caught.value.key == key


# ---- the commands that it suggests


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ((), "svcnode explain"),
        (("127.0.0.1:18433",), "svcnode explain 127.0.0.1:18433"),
        (("-c", "my node.toml", "--service", "db"), "svcnode explain --config 'my node.toml'"),
        (("https://h", "--token", "@t.txt", "--ca", "ca.pem"), "svcnode explain https://h --token @t.txt --ca ca.pem"),
    ],
)
def test_a_suggested_command_asks_the_same_node(
    arguments: tuple[str, ...], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explain, "program", lambda: "svcnode")
    assert shlex.join(explain._same_command(parsed(*arguments))) == command


def test_a_suggested_command_does_not_repeat_a_token() -> None:
    assert TOKEN not in shlex.join(explain._same_command(parsed("https://h", "--token", TOKEN)))


def test_a_suggested_command_does_not_name_the_configuration_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SVCNODE_CONFIG", "other.toml")
    assert "other.toml" not in shlex.join(explain._same_command(parsed()))


def script_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    script = folder / "svcnode"
    script.touch(mode=0o755)
    return script


def test_the_program_is_called_by_name_only_if_the_shell_finds_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = script_in(tmp_path / ".venv" / "bin"), script_in(tmp_path / "other")
    monkeypatch.setattr(sys, "executable", str(own.parent / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert program() == ".venv/bin/svcnode"
    monkeypatch.setenv("PATH", f"{other.parent}:{own.parent}")
    assert program() == ".venv/bin/svcnode"
    monkeypatch.setenv("PATH", f"{own.parent}:{other.parent}")
    assert program() == "svcnode"
    monkeypatch.chdir(other.parent)
    monkeypatch.setenv("PATH", "")
    assert program() == str(own)
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert program() == "svcnode"
