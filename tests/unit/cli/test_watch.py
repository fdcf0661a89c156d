"""`svcnode watch`: what is asked for, and what is refused before anybody is asked."""

from __future__ import annotations

import pytest

from svcnode.cli import build_parser, main


def test_it_takes_what_status_takes_to_name_nodes_and_how_often_to_ask() -> None:
    text = "watch a b --from f --prefix /eigen --version v0.0.1 --timeout 5s --ca c --interval 1s"
    arguments = build_parser().parse_args(text.split())
    assert (arguments.urls, arguments.file, arguments.prefix) == (["a", "b"], "f", "/eigen")
    assert (arguments.version, arguments.timeout, arguments.ca, arguments.interval) == ("v0.0.1", "5s", "c", "1s")
    assert build_parser().parse_args(["watch", "a"]).interval == "2s"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("h", "--interval", "soon"), '--interval: "soon" is not a duration'),
        (("h", "--interval", "0s"), '--interval: must be more than 0, such as "5s", not "0s"'),
        (("h", "--interval", "0"), '--interval: must be more than 0, such as "5s", not "0"'),
        (("h", "--timeout", "0s"), '--timeout: must be more than 0, such as "5s", not "0s"'),
        (("--from", "/no/such/file"), "--from: cannot read /no/such/file: no such file or directory"),
        (("h:x",), "'h:x' is not the URL of a node"),
        (("h",), "watch needs a terminal to draw on; elsewhere, use svcnode status"),
    ],
)
def test_a_wrong_argument_or_no_terminal_is_refused_in_one_line(
    words: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *words]) == 3
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("svcnode: ")
    assert output.err.count("\n") == 1
    assert why in output.err


def test_no_node_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["watch"])
    assert ended.value.code == 3
    assert "svcnode watch: error: name at least one node" in capsys.readouterr().err


def test_help_names_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["watch", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "q quit, s sort, / filter" in text
    assert "elsewhere, use svcnode status" in text
    assert "Exit 0 ended by q or Ctrl-C, 3 no terminal" in text
