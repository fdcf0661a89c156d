"""The arguments of `svcnode watch`, and the errors before a request is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.cli import build_parser, main

if TYPE_CHECKING:
    from pathlib import Path


def test_watch_has_the_node_arguments_of_status_and_an_interval() -> None:
    text = "watch a b --from f --prefix /eigen --version v0.0.1 --timeout 5s --ca c --interval 1s"
    arguments = build_parser().parse_args(text.split())
    assert (arguments.urls, arguments.file, arguments.prefix) == (["a", "b"], "f", "/eigen")
    assert (arguments.version, arguments.timeout, arguments.ca, arguments.interval) == ("v0.0.1", "5s", "c", "1s")
    assert build_parser().parse_args(["watch", "a"]).interval == "2s"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("h", "--interval", "soon"), "--interval: "),
        (("h", "--interval", "0s"), "--interval: "),
        (("h", "--interval", "0"), "--interval: "),
        (("h", "--timeout", "0s"), "--timeout: "),
        (("--from", "/no/such/file"), "--from: "),
        (("h:x",), "'h:x'"),
        (("h",), "terminal"),
    ],
)
def test_an_invalid_argument_or_no_terminal_is_refused_in_one_line(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("svcnode: ")
    assert output.err.count("\n") == 1
    assert named in output.err


def test_no_node_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nodes.txt").touch()
    with pytest.raises(SystemExit) as ended:
        main(["watch", "--from", str(tmp_path / "nodes.txt")])
    assert ended.value.code == 2
    assert "svcnode watch: error: " in capsys.readouterr().err
