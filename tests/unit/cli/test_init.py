from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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

    from tests.unit.cli.conftest import Run

BY_KIND = {entry.kind: entry for entry in CATALOG}


@pytest.fixture
def init(run: Run) -> Iterator[Run]:
    """Runs the command with options with which the scan finds nothing on any machine."""
    with closed_port() as port:
        nothing = [word for entry in CATALOG for word in ("--port", f"{entry.kind}={port}")]
        yield lambda *arguments: run("init", *arguments, *nothing)


def found(kind: str) -> FoundService:
    entry = BY_KIND[kind]
    return FoundService(entry, TcpEndpoint.of("127.0.0.1", entry.ports[0]))


def test_a_file_is_written_or_printed_and_the_next_step_has_its_quoted_name(init: Run) -> None:
    printed = init("--stdout")
    assert list(Path().iterdir()) == []
    assert (printed.code, printed.err.count("\n")) == (0, 1)
    written = init()
    assert (written.code, written.err) == (0, "")
    assert written.out.endswith(" svcnode serve\n")
    assert Path("svcnode.toml").read_text() == printed.out
    assert tomllib.loads(printed.out)["node"]["version"] == "v0.1.0"
    assert init("my node.toml").out.endswith("svcnode serve --config 'my node.toml'\n")
    assert Path("my node.toml").exists()


def test_an_existing_file_is_not_changed_and_a_dangling_link_not_followed(init: Run) -> None:
    Path("svcnode.toml").write_text("")
    Path("link.toml").symlink_to("elsewhere.toml")
    for name in ("svcnode.toml", "link.toml"):
        ended = init(name)
        assert (ended.code, ended.out) == (1, "")
        assert ended.err.startswith(f"svcnode: {name} ")
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
    ("name", "reason"), [("no/such/folder.toml", "no such file or directory"), ("null\0.toml", "embedded null byte")]
)
def test_a_file_that_cannot_be_written_is_reported_in_one_line(name: str, reason: str, init: Run) -> None:
    ended = init(name)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith(f" {name}: {reason}\n".replace("\0", "\\x00"))


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
