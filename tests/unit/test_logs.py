from __future__ import annotations

import errno
import json
import logging
import os
import pty
import re
import select
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest

from svcnode import logs
from svcnode.core.text import one_line
from svcnode.logs import JsonFormatter, TextFormatter, configure, flush_logs, set_format, set_level

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 10.0


@pytest.fixture(autouse=True)
def root() -> Iterator[logging.Logger]:
    """The root logger as it was before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def record(message: str, *arguments: object, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("svcnode.server", level, __file__, 1, message, arguments, None)
    made.created, made.msecs = 1_767_225_600.25, 250.0  # 2026-01-01
    vars(made).update(more)
    return made


def fail() -> None:
    raise ValueError("out of\ndisk")


def with_exception(made: logging.LogRecord) -> logging.LogRecord:
    try:
        fail()
    except ValueError:
        made.exc_info = sys.exc_info()
    return made


# ---- JSON


def test_a_json_line_says_when_how_bad_who_and_what() -> None:
    entry = json.loads(JsonFormatter().format(record("%d of %s", 3, "db", level=logging.WARNING)))
    assert entry == {
        "time": "2026-01-01T00:00:00.250+00:00",
        "level": "warning",
        "logger": "svcnode.server",
        "message": "3 of db",
    }


def test_what_is_logged_for_machines_stands_beside_the_message() -> None:
    entry = json.loads(JsonFormatter().format(record("m", service="db", seconds=1.5, odd=ValueError("x"))))
    assert {key: entry[key] for key in ("service", "seconds", "odd")} == {"service": "db", "seconds": 1.5, "odd": "x"}


def test_json_is_one_line_whatever_is_said() -> None:
    line = JsonFormatter().format(with_exception(record("a\nb\u2028 ä")))
    assert "\n" not in line
    entry = json.loads(line)
    assert entry["message"] == "a\nb\u2028 ä"
    assert entry["exception"].endswith("ValueError: out of\ndisk")


# ---- text


def test_a_text_line_is_for_people() -> None:
    line = TextFormatter().format(record("service %s is %s", "db", "Down", level=logging.WARNING))
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning service db is Down", line)


@pytest.mark.parametrize("odd", ["\n", "\r", "\x1b[2J", "\x9b", "\u2028", "\u202e", "\udcff"])
def test_a_message_can_neither_break_its_line_nor_steer_the_terminal(odd: str) -> None:
    line = TextFormatter().format(record("reason: %s", odd))
    assert line.isprintable()
    assert line.endswith("reason: " + one_line(odd))


def test_a_traceback_follows_the_line() -> None:
    first, *rest = TextFormatter().format(with_exception(record("it failed"))).splitlines()
    assert first.endswith("it failed")
    assert rest[0] == "Traceback (most recent call last):"


def test_formatting_leaves_the_record_to_others_as_it_was() -> None:
    made = record("m")
    TextFormatter().format(made)
    assert made.levelname == "INFO"


def test_one_line_leaves_what_can_be_seen() -> None:
    assert one_line("naïve 値 🙂 \\n") == "naïve 値 🙂 \\n"
    assert one_line("a\nb\x1b\x00\xad") == "a\\nb\\x1b\\x00\\xad"


# ---- choosing


class Outlet:
    """What is written to a descriptor, be it a pipe or a terminal; nobody reads it but who asks."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        self._stderr, self.descriptor = pty.openpty() if is_terminal else os.pipe()
        os.set_blocking(self._stderr, False)

    def close(self) -> None:
        os.close(self._stderr)
        os.close(self.descriptor)

    @property
    def text(self) -> str:
        """All that has been logged since it was last asked for."""
        flush_logs(DEADLINE_S)
        return self.read()

    def read(self, count: int = 65536) -> str:
        try:
            return os.read(self._stderr, count).decode()
        except BlockingIOError:
            return ""

    def write_body(self) -> None:
        """As a reader does that reads no more."""
        os.set_blocking(self.descriptor, False)
        with suppress(BlockingIOError):
            while os.write(self.descriptor, b"-" * 4096):
                pass
        os.set_blocking(self.descriptor, True)

    def read_to_the_end(self) -> str:
        """All that waits, too."""
        read = ""
        while not read.endswith("the end\n"):
            read += self.read_when_there_is_some()
        return read

    def read_when_there_is_some(self) -> str:
        assert select.select([self._stderr], [], [], DEADLINE_S)[0]
        return self.read()


@pytest.fixture
def pipe() -> Iterator[Outlet]:
    with closing(Outlet()) as outlet:
        yield outlet


@pytest.mark.parametrize(
    ("style", "is_terminal", "is_json"),
    [("auto", False, True), ("auto", True, False), ("text", False, False), ("json", True, True)],
)
def test_logs_are_text_on_a_terminal_and_json_elsewhere_unless_chosen(
    style: str, is_terminal: bool, is_json: bool
) -> None:
    with closing(Outlet(is_terminal=is_terminal)) as outlet:
        configure("info", style, outlet.descriptor)
        logging.getLogger("svcnode").info("hello")
        text = outlet.text
    assert text.startswith("{") is is_json
    assert text.count("\n") == 1


def test_setting_up_again_does_not_say_everything_twice(pipe: Outlet) -> None:
    configure("info", "text", pipe.descriptor)
    configure("info", "text", pipe.descriptor)
    logging.getLogger("svcnode").info("hello")
    assert pipe.text.count("hello") == 1


def test_logs_go_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info", "text")
    logging.getLogger("svcnode").info("hello")
    flush_logs(DEADLINE_S)
    said = capfd.readouterr()
    assert "hello" in said.err
    assert said.out == ""


def test_the_level_can_be_changed_while_running(pipe: Outlet) -> None:
    configure("warning", "text", pipe.descriptor)
    logging.getLogger("svcnode").info("unheard")
    set_level("debug")
    logging.getLogger("svcnode").debug("heard")
    assert re.fullmatch(r"\S+ debug   heard\n", pipe.text)


def test_the_style_can_be_changed_while_running(pipe: Outlet) -> None:
    configure("info", "auto", pipe.descriptor)
    logging.getLogger("svcnode").info("one")
    set_format("text")
    logging.getLogger("svcnode").info("two")
    assert re.fullmatch(r"\{.*\}\n\S+ info    two\n", pipe.text)


def test_what_no_encoding_can_hold_is_written_as_its_number(pipe: Outlet) -> None:
    configure("info", "json", pipe.descriptor)
    logging.getLogger("svcnode").info("\udcff")
    assert json.loads(pipe.text)["message"] == "\udcff"


# ---- a reader that does not read


def test_logging_goes_on_while_nobody_reads_and_all_lines_come_out_in_their_order(pipe: Outlet) -> None:
    configure("info", "text", pipe.descriptor)
    pipe.write_body()
    for number in range(1000):
        logging.getLogger("svcnode").info("line %d", number)
    logging.getLogger("svcnode").info("the end")
    numbers = re.findall(r"line (\d+)\n", pipe.read_to_the_end())
    assert numbers == [str(number) for number in range(1000)]


def test_lines_that_find_no_room_are_lost_and_counted_where_they_would_have_been(
    pipe: Outlet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_BUFFERED_BYTES", 10_000)
    configure("info", "text", pipe.descriptor)
    pipe.write_body()
    for number in range(1000):
        logging.getLogger("svcnode").info("line %d", number)
    read = ""
    while "lost" not in read:
        read += pipe.read_when_there_is_some()
    logging.getLogger("svcnode").info("the end")
    read += pipe.read_to_the_end()
    *kept, told, end = re.findall(r"(?:info    |warning )(.*)\n", read)
    assert kept == [f"line {number}" for number in range(len(kept))]
    assert 300 < len(kept) < 900
    assert told == f"{1000 - len(kept)} lines were lost here: the log could not be written, or nobody read it"
    assert end == "the end"


def test_who_waits_for_the_last_lines_waits_no_longer_than_told(pipe: Outlet) -> None:
    configure("info", "text", pipe.descriptor)
    pipe.write_body()
    logging.getLogger("svcnode").info("the end")
    flush_logs(timeout_s=0.01)
    assert "the end" not in pipe.read()
    pipe.read_to_the_end()


def test_a_line_that_cannot_be_written_is_counted_when_the_next_one_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, is_full = os.write, True

    def write_if_there_is_room(descriptor: int, text: bytes) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, "no space left")
        return write(descriptor, text)

    monkeypatch.setattr(os, "write", write_if_there_is_room)
    with (tmp_path / "log").open("wb") as file:
        configure("info", "text", file.fileno())
        logging.getLogger("svcnode").info("one")
        flush_logs(DEADLINE_S)
        is_full = False
        logging.getLogger("svcnode").info("two")
        flush_logs(DEADLINE_S)
    said = re.findall(r"(?:info    |warning )(.*)\n", (tmp_path / "log").read_text())
    assert said == ["1 line was lost here: the log could not be written, or nobody read it", "two"]


def test_a_stream_that_somebody_made_non_blocking_loses_nothing(pipe: Outlet) -> None:
    configure("info", "text", pipe.descriptor)
    pipe.write_body()
    os.set_blocking(pipe.descriptor, False)
    logging.getLogger("svcnode").info("one")
    logging.getLogger("svcnode").info("the end")
    assert re.search(r"one\n.* the end\n$", pipe.read_to_the_end())
