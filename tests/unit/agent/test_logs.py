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
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.agent import logs
from svcnode.agent.logs import (
    LINES_PER_CAUSE,
    MAX_CAUSES,
    WINDOW_S,
    JsonFormatter,
    RateLimiter,
    TextFormatter,
    configure,
    flush_logs,
    set_format,
    set_level,
)
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Status
from svcnode.core.redaction import register_secret
from svcnode.core.text import one_line
from tests.support.commands import restored_logging
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_TIMEOUT_S = 30.0


@pytest.fixture(autouse=True)
def root() -> Iterator[logging.Logger]:
    with restored_logging():
        yield logging.getLogger()


def record(message: str, *arguments: object, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    record = logging.LogRecord("svcnode.server", level, __file__, 1, message, arguments, None)
    record.created, record.msecs = 1_767_225_600.25, 250.0  # 2026-01-01
    vars(record).update(extra)
    return record


def fail() -> None:
    raise ValueError("out of\ndisk")


def with_exception(record: logging.LogRecord) -> logging.LogRecord:
    try:
        fail()
    except ValueError:
        record.exc_info = sys.exc_info()
    return record


def test_a_json_entry_is_one_line_with_time_level_logger_and_message() -> None:
    failed = with_exception(record("%d of\n%s\u2028 ä", 3, "db", level=logging.WARNING))
    line = JsonFormatter().format(failed)
    assert "\n" not in line
    entry = json.loads(line)
    assert entry.pop("exception").endswith("ValueError: out of\ndisk")
    assert entry == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "warning",
        "logger": "svcnode.server",
        "message": "3 of\ndb\u2028 ä",
    }


def test_the_fields_of_a_status_change_have_plain_values_in_a_fixed_order() -> None:
    fields: dict[str, Any] = {
        "extra": ValueError("x"),
        "time": "now",
        "node_health": Health.UNHEALTHY,
        "reason": "refused",
        "code": ReasonCode.CONNECTION_REFUSED,
        "previous": Status.UP,
        "status": Status.DOWN,
        "service": "db",
        "event": "status_changed",
    }
    entry = json.loads(JsonFormatter().format(record("m", **fields)))
    assert list(entry.items())[4:] == [
        ("event", "status_changed"),
        ("service", "db"),
        ("status", "Down"),
        ("previous", "Up"),
        ("code", "connection_refused"),
        ("reason", "refused"),
        ("node_health", 503),
        ("extra", "x"),
    ]
    assert entry["time"].startswith("2026-01-01"), "a field does not replace a standard one"


def test_extra_fields_contain_no_secret() -> None:
    register_secret("hunter2")
    line = JsonFormatter().format(record("m", reason="wrong: hunter2", event="hunter2", other=["hunter2"]))
    assert "hunter2" not in line
    assert json.loads(line)["reason"] == "wrong: ***"


def test_a_text_line_has_time_level_and_message_and_a_traceback_follows() -> None:
    failed = with_exception(record("service %s is %s", "db", "Down", level=logging.WARNING))
    first, *rest = TextFormatter().format(failed).splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d UTC warning service db is Down", first)
    assert rest[0] == "Traceback (most recent call last):"


@pytest.mark.parametrize("odd", ["\n", "\x1b[2J", "\u2028", "\udcff"])
def test_a_message_cannot_break_its_line_or_control_the_terminal(odd: str) -> None:
    line = TextFormatter().format(record("reason: %s", odd))
    assert line.isprintable()
    assert line.endswith("reason: " + one_line(odd))


class LogPipe:
    """The read end of a pipe or terminal that the log is written to."""

    def __init__(self, *, is_terminal: bool = False) -> None:
        self._reader, self.descriptor = pty.openpty() if is_terminal else os.pipe()
        os.set_blocking(self._reader, False)

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.descriptor)

    @property
    def text(self) -> str:
        """The lines since the last read."""
        flush_logs(WAIT_TIMEOUT_S)
        return self.read()

    def read(self, count: int = 65536) -> str:
        try:
            return os.read(self._reader, count).decode()
        except BlockingIOError:
            return ""

    def fill(self) -> None:
        """Fill the buffer of the pipe, like a reader that has stopped reading."""
        os.set_blocking(self.descriptor, False)
        with suppress(BlockingIOError):
            while os.write(self.descriptor, b"-" * 4096):
                pass
        os.set_blocking(self.descriptor, True)

    def read_until_end(self) -> str:
        """Everything until the line "the end"."""
        read = ""
        while not read.endswith("the end\n"):
            read += self.read_when_ready()
        return read

    def read_when_ready(self) -> str:
        assert select.select([self._reader], [], [], WAIT_TIMEOUT_S)[0]
        return self.read()


@pytest.fixture
def pipe() -> Iterator[LogPipe]:
    with closing(LogPipe()) as pipe:
        yield pipe


@pytest.mark.parametrize(
    ("log_format", "is_terminal", "is_json"),
    [("auto", False, True), ("auto", True, False), ("text", False, False), ("json", True, True)],
)
def test_logs_are_text_on_a_terminal_and_json_elsewhere_unless_a_format_is_set(
    log_format: str, is_terminal: bool, is_json: bool
) -> None:
    with closing(LogPipe(is_terminal=is_terminal)) as pipe:
        configure("info", log_format, pipe.descriptor)
        logging.getLogger("svcnode").info("hello")
        text = pipe.text
    assert text.startswith("{") is is_json
    assert text.count("\n") == 1


def test_logs_go_to_stderr_and_once_although_they_are_configured_twice(capfd: pytest.CaptureFixture[str]) -> None:
    configure("info", "text")
    configure("info", "text")
    logging.getLogger("svcnode").info("hello")
    flush_logs(WAIT_TIMEOUT_S)
    output = capfd.readouterr()
    assert (output.err.count("hello"), output.out) == (1, "")


def test_the_level_and_the_format_can_be_changed_while_running(pipe: LogPipe) -> None:
    configure("warning", "auto", pipe.descriptor)
    logging.getLogger("svcnode").info("dropped")
    logging.getLogger("svcnode").warning("\udcff")
    first = pipe.text
    assert json.loads(first)["message"] == "\udcff"
    set_level("debug")
    set_format("text")
    logging.getLogger("svcnode").debug("written")
    assert re.fullmatch(r"\S+ UTC debug   written\n", pipe.text)


# ---- a reader that has stopped reading


def test_lines_beyond_the_buffer_are_lost_and_counted_at_their_position(
    pipe: LogPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_BUFFERED_BYTES", 10_000)
    configure("info", "text", pipe.descriptor)
    pipe.fill()
    for number in range(1000):
        logging.getLogger("svcnode").info("line %d", number)
    read = ""
    while "lost" not in read:
        read += pipe.read_when_ready()
    logging.getLogger("svcnode").info("the end")
    read += pipe.read_until_end()
    *written, notice, end = re.findall(r"(?:info    |warning )(.*)\n", read)
    assert written == [f"line {number}" for number in range(len(written))]
    assert 300 < len(written) < 900
    assert notice.startswith(f"{1000 - len(written)} ")
    assert end == "the end"


def test_flushing_ends_after_the_timeout(pipe: LogPipe) -> None:
    configure("info", "text", pipe.descriptor)
    pipe.fill()
    logging.getLogger("svcnode").info("the end")
    flush_logs(timeout_s=0.01)
    assert "the end" not in pipe.read()
    pipe.read_until_end()


def test_a_line_that_cannot_be_written_is_counted_when_the_next_one_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, is_full = os.write, True

    def write_unless_full(descriptor: int, text: bytes) -> int:
        if is_full:
            raise OSError(errno.ENOSPC, "no space left")
        return write(descriptor, text)

    monkeypatch.setattr(os, "write", write_unless_full)
    with (tmp_path / "log").open("wb") as file:
        configure("info", "text", file.fileno())
        logging.getLogger("svcnode").info("one")
        flush_logs(WAIT_TIMEOUT_S)
        is_full = False
        logging.getLogger("svcnode").info("two")
        flush_logs(WAIT_TIMEOUT_S)
    levels = re.findall(r"(info|warning) +(\S+)", (tmp_path / "log").read_text())
    assert levels == [("warning", "1"), ("info", "two")]


def test_a_non_blocking_stream_loses_no_lines(pipe: LogPipe) -> None:
    configure("info", "text", pipe.descriptor)
    pipe.fill()
    os.set_blocking(pipe.descriptor, False)
    logging.getLogger("svcnode").info("one")
    logging.getLogger("svcnode").info("the end")
    assert re.search(r"one\n.* the end\n$", pipe.read_until_end())


# ---- lines that clients cause


def client_record(number: int = 0, **options: Any) -> logging.LogRecord:
    return with_exception(record("request %d failed", number, level=logging.ERROR, **options))


def test_a_client_cannot_flood_the_log_and_each_cause_has_its_own_limit() -> None:
    clock = VirtualClock()
    limiter = RateLimiter(clock)
    assert [limiter.admits(client_record(number)) for number in range(1000)].count(True) == LINES_PER_CAUSE
    assert limiter.next_summary_in_s() == WINDOW_S
    assert limiter.take_summaries() == []
    assert limiter.admits(record("accept failed", level=logging.ERROR)), "another place raised, or none"
    status = record("service db is Down")
    status.name = "svcnode"
    assert all(limiter.admits(status) for _ in range(1000)), "no client causes it"
    clock.advance(WINDOW_S)
    (summary,) = limiter.take_summaries()
    assert (vars(summary)["event"], vars(summary)["lines"]) == ("log_lines_suppressed", 1000 - LINES_PER_CAUSE)
    assert summary.levelno == logging.ERROR
    assert limiter.next_summary_in_s() is None
    assert limiter.admits(client_record())


def test_the_number_of_causes_is_bounded() -> None:
    limiter = RateLimiter(VirtualClock())
    records = [record("m") for _ in range(10 * MAX_CAUSES)]
    for number, one in enumerate(records):
        one.lineno = number
    assert sum(map(limiter.admits, records)) == MAX_CAUSES + LINES_PER_CAUSE


def test_suppressed_lines_are_counted_when_the_window_ends(pipe: LogPipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "WINDOW_S", 0.05)
    configure("info", "json", pipe.descriptor)
    logger = logging.getLogger("svcnode.server")
    for number in range(LINES_PER_CAUSE + 3):
        logger.error("request %d failed", number)
    lines: list[str] = []
    while "log_lines_suppressed" not in "".join(lines):
        lines.append(pipe.read_when_ready())
    entries = list(map(json.loads, "".join(lines).splitlines()))
    assert entries[-1]["event"] == "log_lines_suppressed"
    assert sum(entry.get("lines", 1) for entry in entries) == LINES_PER_CAUSE + 3


def test_suppressed_lines_are_counted_at_the_end(pipe: LogPipe) -> None:
    configure("info", "json", pipe.descriptor)
    logger = logging.getLogger("svcnode.api")
    for _ in range(LINES_PER_CAUSE + 3):
        logger.error("internal error")
    *_, last = pipe.text.splitlines()
    assert json.loads(last)["lines"] == 3
