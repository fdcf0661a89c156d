"""`svcnode explain`: where it asks, with which token, and what it refuses before anybody is asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import build_parser, main
from svcnode.cli.operator_url import TOKEN_VARIABLE, OperatorUrl, operator_url_from
from svcnode.core.errors import SvcnodeError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

TOKEN = "an-operator-token-of-fair-length"


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without a configuration, and an environment that says nothing."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SVCNODE_")]:
        monkeypatch.delenv(name)


def arguments(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["explain", *words])


def place(*words: str) -> OperatorUrl:
    return operator_url_from(arguments(*words))


def place_by(config: str, folder: Path, *words: str) -> OperatorUrl:
    (folder / "svcnode.toml").write_text(config)
    return place(*words)


# ---- where


def test_without_a_word_it_is_where_serve_would_listen() -> None:
    assert place().origin == place().display == "http://127.0.0.1:8420"


def test_the_configuration_says_where(tmp_path: Path) -> None:
    assert place_by('[server]\nlisten = ["localhost:9000"]', tmp_path).origin == "http://localhost:9000"


def test_a_configuration_may_be_named(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text('[server]\nlisten = "127.0.0.1:9001"')
    assert place("-c", str(file)).origin == "http://127.0.0.1:9001"


def test_the_environment_may_say_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SVCNODE_SERVER_LISTEN", "127.0.0.1:9002, 127.0.0.1:9003")
    assert place().origin == "http://127.0.0.1:9002"


def test_a_listener_for_operators_comes_first(tmp_path: Path) -> None:
    config = '[server]\nlisten = ["127.0.0.1:9000"]\noperator_listen = ["127.0.0.1:9100"]'
    assert place_by(config, tmp_path).origin == "http://127.0.0.1:9100"


def test_of_several_one_that_asks_for_no_token_is_taken(tmp_path: Path) -> None:
    config = '[server]\nlisten = ["10.0.0.5:9000", "[::1]:9000", "127.0.0.1:9000"]'
    assert place_by(config, tmp_path).origin == "http://[::1]:9000"


@pytest.mark.parametrize(
    ("listen", "origin"), [("0.0.0.0:9000", "http://127.0.0.1:9000"), ("[::]:9000", "http://[::1]:9000")]
)
def test_one_that_listens_everywhere_is_asked_here(listen: str, origin: str, tmp_path: Path) -> None:
    assert place_by(f'[server]\nlisten = ["{listen}"]', tmp_path).origin == origin


def test_a_socket_in_the_file_system_is_asked_there(tmp_path: Path) -> None:
    found = place_by('[server]\nlisten = ["unix:/run/node.sock"]', tmp_path)
    assert (found.origin, found.socket_path, found.display) == (
        "http://localhost",
        "/run/node.sock",
        "unix:/run/node.sock",
    )
    assert place("--url", "unix:/run/other.sock").socket_path == "/run/other.sock"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("node:8420", "http://node:8420"),
        ("http://node:8420/svc/node", "http://node:8420"),
        ("http://node:8420/", "http://node:8420"),
        ("https://node/base/", "https://node/base"),
    ],
)
def test_a_url_says_where_whatever_the_configuration_says(url: str, origin: str, tmp_path: Path) -> None:
    assert place_by("[server]\noperator = false", tmp_path, "--url", url).origin == origin


def test_the_services_of_the_configuration_need_not_be_at_hand(tmp_path: Path) -> None:
    config = '[[services]]\nid = "db"\nprobe = "postgresql://me:${NOT_SET_HERE}@db/ledger"'
    assert place_by(config, tmp_path).origin == "http://127.0.0.1:8420"


@pytest.mark.parametrize(
    "fault",
    [
        '[[services]]\nid = "db"\nimpact = "critcal"',
        '[[services]]\nid = "db"',
        "services = 1",
        "[node]\nname = 1",
        "[notify]\n",
        "[sever]\n",
        '[defaults]\nrise = "two"',
        "[security]\nallow_exec = 1",
    ],
)
def test_what_is_wrong_elsewhere_in_the_configuration_does_not_matter(fault: str, tmp_path: Path) -> None:
    config = f'server.listen = "127.0.0.1:9000"\nserver.drain = 5\nserver.prefx = "/x"\n{fault}'
    assert place_by(config, tmp_path).origin == "http://127.0.0.1:9000"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("[server", r"not valid TOML: .*\(svcnode\.toml\)"),
        ("[server]\nlisten = 9000", r"server\.listen: must be a string or a list, not .*svcnode\.toml:2\)"),
        ("server = 9000", r"server: must be a table"),
        ('[server]\nlisten_ = "127.0.0.1:9000"', r'server\.listen_: unknown key; did you mean "listen"\?'),
        ('[server.tls]\ncertificate = "a.pem"', r"server\.tls: key is missing"),
    ],
)
def test_a_configuration_that_cannot_say_where_names_the_way_out(config: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SvcnodeError, match=f"^{why}.*; --url names the node to ask without a configuration$"):
        place_by(config, tmp_path)


# ---- with which token


def test_without_a_token_none_is_sent() -> None:
    assert place("--url", "node:1").authorization == ""


def test_a_token_is_sent_as_bearer() -> None:
    assert place("--token", TOKEN).authorization == f"Bearer {TOKEN}"
    assert place("--token", TOKEN, "--url", "node:1").authorization == f"Bearer {TOKEN}"


def test_a_token_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert place("--token", f"@{tmp_path}/token").authorization == f"Bearer {TOKEN}"


def test_a_token_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert place("--url", "node:1").authorization == f"Bearer {TOKEN}"


def test_the_token_of_the_configuration_is_sent_where_the_configuration_says(tmp_path: Path) -> None:
    config = f'[server]\nlisten = ["0.0.0.0:9000"]\n[security]\noperator_token = "{TOKEN}"'
    assert place_by(config, tmp_path).authorization == f"Bearer {TOKEN}"


def test_the_token_of_the_configuration_is_sent_nowhere_else(tmp_path: Path) -> None:
    config = f'[security]\noperator_token = "{TOKEN}"'
    assert place_by(config, tmp_path, "--url", "node:1").authorization == ""


@pytest.mark.parametrize("listen", ["127.0.0.1:9000", "[::1]:9000", "unix:/run/node.sock"])
def test_where_loopback_is_not_trusted_the_token_is_sent_there_as_well(listen: str, tmp_path: Path) -> None:
    said = f'[server]\nlisten = "{listen}"\n[security]\ntrust_loopback = false\noperator_token = '
    assert place_by(f'{said}"{TOKEN}"', tmp_path).authorization == f"Bearer {TOKEN}"
    # One that is given will do where that of the configuration is not for everyone to read.
    unreadable = f'{said}{{ file = "/no/such" }}'
    assert place_by(unreadable, tmp_path, "--token", TOKEN).authorization == f"Bearer {TOKEN}"
    with pytest.raises(SvcnodeError, match=r"security.operator_token: cannot read /no/such"):
        place_by(unreadable, tmp_path)


def test_of_several_one_on_this_machine_is_taken_even_if_it_asks_for_the_token(tmp_path: Path) -> None:
    config = f'[server]\nlisten = ["10.0.0.5:9000", "[::1]:9000"]\n[security]\noperator_token = "{TOKEN}"\n'
    assert place_by(f"{config}trust_loopback = false", tmp_path).origin == "http://[::1]:9000"


def test_a_token_that_is_not_needed_is_not_read(tmp_path: Path) -> None:
    assert place_by('[security]\noperator_token = { file = "/no/such" }', tmp_path).authorization == ""


def test_a_login_in_the_url_is_sent() -> None:
    assert place("--url", f"http://me:{TOKEN}@node:1").authorization.startswith("Basic ")
    assert TOKEN not in place("--url", f"http://me:{TOKEN}@node:1").display


def test_a_place_does_not_show_its_token() -> None:
    assert TOKEN not in repr(place("--token", TOKEN))


# ---- what is refused


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--url", "ftp://node"), "is not the URL of a node"),
        (("--url", "unix:"), "a Unix socket needs a path"),
        (("--url", "https://node", "--ca", "/no/such.pem"), "--ca: cannot use /no/such.pem: no such file or directory"),
        (("--token", "@/no/such"), "--token: cannot read /no/such: no such file or directory"),
        (("--token", "two words"), "--token: no operator token is empty, or holds spaces or what is not ASCII"),
        (("--token", ""), "--token: no operator token is empty"),
        (("", "--url", "127.0.0.1:1"), "a service id must not be empty"),
        (("\udce9", "--url", "127.0.0.1:1"), "is no service id: it cannot stand in a URL"),
        (("-c", "/no/such.toml"), "cannot read the configuration: no such file or directory (/no/such.toml)"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", *words]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("svcnode: ")
    assert output.err.count("\n") == 1
    assert why in output.err


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ("[server]\noperator = false", r"server.operator: is off, so this node tells nobody more .*svcnode.toml:2\)"),
        (
            '[server]\nlisten = ["127.0.0.1:0"]',
            r"server.listen: port 0 is any port; say with --url which one it is now",
        ),
        ("[server]\nlisten = []", "server.listen: at least one address is needed"),
        ('[server]\noperator_listen = ["x"]', 'server.operator_listen: "x" is not an address'),
        ('[server]\nlisten = ["10.0.0.1:1"]\n[security]\noperator_token = "${NO}"', "security.operator_token: "),
    ],
)
def test_a_configuration_that_names_no_place_is_refused(config: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SvcnodeError, match=why):
        place_by(config, tmp_path)


def test_misuse_has_the_exit_code_of_not_having_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["explain", "--frobnicate"])
    assert ended.value.code == 3
    assert "usage: svcnode explain" in capsys.readouterr().err


def test_help_names_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    said = capsys.readouterr().out
    assert "2  the service is Down, the node unhealthy" in said
    assert "3  nobody could be asked, or there is no such service" in said
