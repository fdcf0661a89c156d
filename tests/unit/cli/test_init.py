from __future__ import annotations

import errno
import os
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import main
from svcnode.cli.init import format_report, parse_ports, write_new_file
from svcnode.cli.init.catalog import CATALOG
from svcnode.cli.init.scan import FoundService, ScanResult
from svcnode.cli.init.select import select_probe
from svcnode.core.errors import InvalidValueError, SvcnodeError
from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint
from tests.support.backends import closed_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_KIND = {entry.kind: entry for entry in CATALOG}


@pytest.fixture
def nothing() -> Iterator[list[str]]:
    """Options with which the scan finds nothing on any machine."""
    with closed_port() as port:
        yield [word for entry in CATALOG for word in ("--port", f"{entry.kind}={port}")]


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(kind: str) -> FoundService:
    entry = BY_KIND[kind]
    return FoundService(entry, TcpEndpoint.of("127.0.0.1", entry.ports[0]))


def test_a_file_is_written_and_the_next_step_with_its_quoted_name_is_printed(
    nothing: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *nothing]) == 0
    assert tomllib.loads(Path("svcnode.toml").read_text())["node"]["version"] == "v0.1.0"
    output = capsys.readouterr()
    assert output.out.endswith(" svcnode serve\n")
    assert output.err == ""
    assert main(["init", "my node.toml", *nothing]) == 0
    assert Path("my node.toml").exists()
    assert capsys.readouterr().out.endswith("svcnode serve --config 'my node.toml'\n")


def test_stdout_prints_the_same_text_and_writes_no_file(nothing: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--stdout", *nothing]) == 0
    output = capsys.readouterr()
    assert list(Path().iterdir()) == []
    assert output.err.count("\n") == 1
    assert main(["init", *nothing]) == 0
    assert Path("svcnode.toml").read_text() == output.out


def test_an_existing_file_is_not_changed_and_a_dangling_link_not_followed(
    nothing: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("svcnode.toml").write_text("")
    Path("link.toml").symlink_to("elsewhere.toml")
    for name in ("svcnode.toml", "link.toml"):
        assert main(["init", name, *nothing]) == 1
        output = capsys.readouterr()
        assert output.out == ""
        assert output.err.startswith(f"svcnode: {name} ")
    assert Path("svcnode.toml").read_text() == ""
    assert not Path("elsewhere.toml").exists()


@pytest.mark.parametrize("is_link", [True, False])
def test_a_file_created_during_the_scan_is_not_changed(is_link: bool) -> None:
    file = Path("svcnode.toml")
    if is_link:
        file.symlink_to("elsewhere.toml")
    else:
        file.write_text("theirs")
    with pytest.raises(SvcnodeError, match=r"^svcnode\.toml "):
        write_new_file(file, "ours")
    assert file.is_symlink() or file.read_text() == "theirs"
    assert not Path("elsewhere.toml").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/such/folder.toml", os.strerror(errno.ENOENT).lower()),
        ("null\0.toml", "embedded null byte"),
    ],
)
def test_a_file_that_cannot_be_written_is_reported_in_one_line(
    name: str, reason: str, nothing: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", name, *nothing]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.endswith(f" {name}: {reason}\n".replace("\0", "\\x00"))


def test_ports_are_grouped_by_kind_and_alias() -> None:
    assert parse_ports(["redis=6380", "valkey=6381", "mariadb=3307", "redis=6380"]) == {
        "redis": [6380, 6381],
        "mysql": [3307],
    }
    names = [name for entry in CATALOG for name in (entry.kind, *entry.aliases)]
    assert len(names) == len(set(names))
    for text in ("=1", "redis", "valkey=0", "redis=65536", "redis=٦٣٧٩"):
        with pytest.raises(InvalidValueError):
            parse_ports([text])


def test_control_characters_in_a_reason_are_shown_as_escapes() -> None:
    lines = list(format_report(ScanResult(), [select_probe(found("nats"), Verdict.failed("\x1b[2Jgone\nready"))]))
    assert lines[1].endswith("failed: \\x1b[2Jgone\\nready")
