"""`svcnode status`: what is asked for, and what is refused before anybody is asked."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import build_parser, main
from svcnode.cli._node_args import MAX_LIST_CHARS, clients_from, timeout_from
from svcnode.core.errors import InvalidValueError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def arguments(*words: str) -> argparse.Namespace:
    return build_parser().parse_args(["status", *words])


def urls(*words: str) -> list[str]:
    return [client.url for client in clients_from(arguments(*words))]


def test_nodes_are_asked_in_the_order_given() -> None:
    assert urls("b:1", "a", "https://c/base") == ["http://b:1", "http://a", "https://c/base"]


def test_a_file_adds_nodes_and_may_hold_remarks(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("\ufeff# the fake_nodes\n\n  a:1  \nb:2 # the second\n#c:3\n")
    assert urls("z", "--from", str(file)) == ["http://z", "http://a:1", "http://b:2"]


def test_the_file_may_be_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffa\nb"))
    assert urls("--from", "-") == ["http://a", "http://b"]


def test_a_list_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "nodes"
    file.write_text("#" * MAX_LIST_CHARS)
    assert urls("h", "--from", str(file)) == ["http://h"]
    file.write_text("#" * (MAX_LIST_CHARS + 1))
    monkeypatch.setattr("sys.stdin", io.StringIO("#" * (MAX_LIST_CHARS + 1)))
    for name in (str(file), "-"):
        with pytest.raises(InvalidValueError, match="is no list of nodes: it is longer than 1,000,000 characters"):
            urls("--from", name)


def test_a_timeout_has_a_unit() -> None:
    assert timeout_from(arguments("h")) == 10
    assert timeout_from(arguments("h", "--timeout", "500ms")) == 0.5


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("h:x",), "'h:x' is not the URL of a node"),
        (("h", "--timeout", "soon"), '--timeout: "soon" is not a duration'),
        (("h", "--timeout", "0s"), '--timeout: must be more than 0, such as "5s", not "0s"'),
        (("h", "--timeout", "0"), '--timeout: must be more than 0, such as "5s", not "0"'),
        (("h", "--timeout", "0.0"), '--timeout: must be more than 0, such as "5s", not "0.0"'),
        (("h", "--timeout", "5"), '--timeout: "5" is not a duration; write a number and a unit, such as "5s"'),
        (("http://h/?token=x",), "'http://h/?…' is not the URL of a node"),
        (("http://ä..b",), "its host is not a name as the network knows them"),
        (("h", "xn--zz..example"), "'http://xn--zz..example' is not the URL of a node: its host is not a name"),
        (("h", "--ca", ""), "ca: names no file"),
        (("h", "--version", ""), "a version is not empty"),
        (("h", "--prefix", "svc"), 'did you mean "/svc"?'),
        (("h", "--ca", "/no/such.pem"), "ca: cannot use /no/such.pem: no such file or directory"),
        (("--from", "/no/such/file"), "--from: cannot read /no/such/file: no such file or directory"),
        (("--from", "/dev/zero"), "--from: /dev/zero is no list of nodes: it is longer than 1,000,000 characters"),
    ],
)
def test_a_wrong_argument_is_refused_in_one_line(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", *words]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("svcnode: ")
    assert output.err.count("\n") == 1
    assert why in output.err


def test_a_wrong_line_of_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("a\n\nftp://b\n")
    with pytest.raises(InvalidValueError, match=r"nodes:3: 'ftp://b' is not the URL of a node"):
        urls("--from", str(file))


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidValueError, match="is not UTF-8 text"):
        urls("--from", str(file))


def test_a_closed_stdin_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidValueError, match="--from: stdin is closed"):
        urls("--from", "-")


@pytest.mark.parametrize("words", [(), ("--from", "/dev/null"), ("h", "--no-such-option")])
def test_no_node_or_an_unknown_option_ends_with_a_code_that_is_no_health(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["status", *words])
    assert ended.value.code == 3
    assert "svcnode status: error: " in capsys.readouterr().err


def test_help_names_its_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "Exit 0 healthy, 1 partially healthy, 2 unhealthy, 3 unreachable" in text
    assert "Ended by Ctrl-C 130, with what is known by then (at once by a second one), by SIGTERM 143." in text
