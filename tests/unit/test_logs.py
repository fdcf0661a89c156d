from __future__ import annotations

import io
import json
import logging
import re
import sys
from typing import TYPE_CHECKING

import pytest

from svcnode.core.wording import one_line
from svcnode.logs import JsonFormatter, TextFormatter, set_level, set_up

if TYPE_CHECKING:
    from collections.abc import Iterator


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def root() -> Iterator[logging.Logger]:
    """The root logger as it was before."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def record(message: str, *arguments: object, level: int = logging.INFO, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("svcnode.web", level, __file__, 1, message, arguments, None)
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
        "logger": "svcnode.web",
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


@pytest.mark.parametrize(
    ("style", "stream", "is_json"),
    [
        ("auto", io.StringIO(), True),
        ("auto", Terminal(), False),
        ("text", io.StringIO(), False),
        ("json", Terminal(), True),
    ],
)
def test_logs_are_text_on_a_terminal_and_json_elsewhere_unless_chosen(
    style: str, stream: io.StringIO, is_json: bool
) -> None:
    set_up("info", style, stream)
    logging.getLogger("svcnode").info("hello")
    assert stream.getvalue().startswith("{") is is_json
    assert stream.getvalue().count("\n") == 1


def test_setting_up_again_does_not_say_everything_twice() -> None:
    stream = io.StringIO()
    set_up("info", "text", stream)
    set_up("info", "text", stream)
    logging.getLogger("svcnode").info("hello")
    assert stream.getvalue().count("hello") == 1


def test_logs_go_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    set_up("info", "text")
    logging.getLogger("svcnode").info("hello")
    said = capsys.readouterr()
    assert "hello" in said.err
    assert said.out == ""


def test_the_level_can_be_changed_while_running() -> None:
    stream = io.StringIO()
    set_up("warning", "text", stream)
    logging.getLogger("svcnode").info("unheard")
    set_level("debug")
    logging.getLogger("svcnode").debug("heard")
    assert "unheard" not in stream.getvalue()
    assert "heard" in stream.getvalue()
