from __future__ import annotations

import io
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import main
from svcnode.cli.init import format_report, parse_ports, write_new_file
from svcnode.core.errors import InvalidValueError, SvcnodeError
from svcnode.core.model import Verdict
from svcnode.discovery.catalog import CATALOG
from svcnode.discovery.scan import FoundService, ScanResult, UnconfirmedPort
from svcnode.discovery.select import SelectedProbe, select_probe
from svcnode.net.connect import TcpEndpoint
from tests.support.backends import closed_port

if TYPE_CHECKING:
    from collections.abc import Iterator

BY_KIND = {known.kind: known for known in CATALOG}
DRIVER_MISSING = 'redis probes need their driver: pip install "svcnode[redis]"'


@pytest.fixture
def nothing() -> Iterator[list[str]]:
    """Options with which nothing is found, whatever runs on this machine."""
    with closed_port() as port:
        yield [word for known in CATALOG for word in ("--port", f"{known.kind}={port}")]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(kind: str) -> FoundService:
    known = BY_KIND[kind]
    return FoundService(known, TcpEndpoint.of("127.0.0.1", known.ports[0]))


# ---- the file


def test_a_file_is_written_and_what_comes_next_is_said(nothing: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", *nothing]) == 0
    assert tomllib.loads(Path("svcnode.toml").read_text())["node"]["version"] == "v0.1.0"
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "No known service was found on this host, so the node will answer for its own embedded store.",
        "Written: svcnode.toml. Look it over, set the version of your node, and then: svcnode serve",
    ]
    assert said.err == ""


def test_another_file_is_named_to_serve_as_a_shell_would_have_it(
    nothing: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "my node.toml", *nothing]) == 0
    assert Path("my node.toml").exists()
    assert capsys.readouterr().out.endswith("svcnode serve --config 'my node.toml'\n")


def test_printed_it_is_the_same_text_and_nothing_is_written(
    nothing: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", "--stdout", *nothing]) == 0
    said = capsys.readouterr()
    assert list(Path().iterdir()) == []
    assert said.err.startswith("No known service was found")
    assert main(["init", *nothing]) == 0
    assert Path("svcnode.toml").read_text() == said.out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this machine has no /dev/full")
def test_printed_where_nothing_can_be_written_it_says_so_in_one_line(
    nothing: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Unbuffered: what could not be written must not be tried once more when it is closed.
    with io.TextIOWrapper(Path("/dev/full").open("wb", buffering=0)) as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main(["init", "--stdout", *nothing]) == 2
    assert capsys.readouterr().err == "svcnode: cannot write what was seen: no space left on device\n"


@pytest.mark.parametrize("content", ["", "[node]\n"])
def test_a_file_that_exists_is_left_as_it_is(
    content: str, nothing: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("svcnode.toml").write_text(content)
    assert main(["init", *nothing]) == 2
    assert Path("svcnode.toml").read_text() == content
    said = capsys.readouterr()
    assert (said.out, said.err) == (
        "",
        "svcnode: svcnode.toml exists already, and is left as it is; name another file, or move it away\n",
    )


def test_a_file_without_a_name_is_refused(nothing: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["init", "", *nothing])
    assert ended.value.code == 2
    assert "argument FILE: a file name is needed, such as svcnode.toml" in capsys.readouterr().err


def test_a_link_that_leads_nowhere_is_not_followed(nothing: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("svcnode.toml").symlink_to("elsewhere.toml")
    assert main(["init", *nothing]) == 2
    assert not Path("elsewhere.toml").exists()
    assert "svcnode.toml exists already" in capsys.readouterr().err


@pytest.mark.parametrize("is_link", [True, False])
def test_what_comes_into_being_while_we_look_is_left_as_it_is(is_link: bool) -> None:
    file = Path("svcnode.toml")
    if is_link:
        file.symlink_to("elsewhere.toml")
    else:
        file.write_text("theirs")
    with pytest.raises(SvcnodeError, match=r"^svcnode\.toml exists already"):
        write_new_file(file, "ours")
    assert file.is_symlink() or file.read_text() == "theirs"
    assert not Path("elsewhere.toml").exists()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no/such/folder.toml", "no such file or directory"),
        ("a-file/svcnode.toml", "not a directory"),
        ("x" * 300, "file name too long"),
        ("null\0.toml", "embedded null byte"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_in_one_line(
    name: str, reason: str, nothing: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a-file").touch()
    assert main(["init", name, *nothing]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"svcnode: cannot write {name}: {reason}\n".replace("\0", "\\x00")


# ---- the command line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--port", "postgre=5433"], '--port: unknown kind "postgre"; did you mean "postgresql"?'),
        (["--port", "5433"], '--port: unknown kind "5433"; known ones: amqp, beacon, '),
        (
            ["--port", "redis"],
            "--port: write a kind, =, and a port from 1 to 65535, such as redis=6379",
        ),
        (["--port", "valkey=0"], "--port: write a kind, =, and a port from 1 to 65535, such as valkey=6379"),
        (["--port", "redis=65536"], "--port: write a kind"),
        (["--port", "redis=-1"], "--port: write a kind"),
        (["--port", "redis=٦٣٧٩"], "--port: write a kind"),
        (["--stdout", "a.toml"], "--stdout: prints the configuration, so no file can be named beside it"),
    ],
)
def test_misuse_is_told_in_one_line_and_nothing_is_written(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"svcnode: {reason}")
    assert said.err.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_ports_are_gathered_by_kind_whatever_name_it_goes_by() -> None:
    assert parse_ports(["redis=6380", "valkey=6381", "mariadb=3307", "redis=6380"]) == {
        "redis": [6380, 6381],
        "mysql": [3307],
    }


def test_no_two_kinds_go_by_the_same_name() -> None:
    names = [name for known in CATALOG for name in (known.kind, *known.aliases)]
    assert len(names) == len(set(names))
    with pytest.raises(InvalidValueError):
        parse_ports(["=1"])


# ---- what is told


def test_the_report_says_what_was_found_and_how_far_it_can_be_seen() -> None:
    choices = [
        select_probe(found("postgresql"), Verdict.failed("no password supplied")),
        SelectedProbe(
            found=found("redis"),
            probe="tcp://127.0.0.1:6379",
            unavailable_reason=DRIVER_MISSING,
            preferred_probe="redis://…",
        ),
        select_probe(found("memcached"), Verdict.ready()),
        select_probe(found("ethereum"), Verdict.not_ready("syncing")),
    ]
    unconfirmed = UnconfirmedPort(
        BY_KIND["nats"], TcpEndpoint.of("127.0.0.1", 4222), "is open, but reset the connection"
    )
    seen = ScanResult(tuple(choice.found for choice in choices), (unconfirmed,))
    only, closer = "shows only that something listens", "a closer look failed"
    assert list(format_report(seen, choices)) == [
        "Found on this host:",
        f"  PostgreSQL                 tcp://127.0.0.1:5432            {only}; {closer}: no password supplied",
        f"  Redis or Valkey            tcp://127.0.0.1:6379            {only}: {DRIVER_MISSING}",
        "  memcached                  memcached://127.0.0.1:11211     ready",
        "  Ethereum execution client  ethereum+http://127.0.0.1:8545  not ready: syncing",
        "Not confirmed, and not written:",
        "  port 4222 is open, but reset the connection",
    ]


def test_what_a_service_says_cannot_break_the_report_or_steer_the_terminal() -> None:
    lines = list(format_report(ScanResult(), [select_probe(found("nats"), Verdict.failed("\x1b[2Jgone\nready"))]))
    assert lines[1].endswith("a closer look failed: \\x1b[2Jgone\\nready")
