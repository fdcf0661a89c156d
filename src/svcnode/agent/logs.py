"""The log of the agent on stderr: text on a terminal, JSON lines elsewhere.

The reader of the log may stop reading, such as a collector that hangs or a terminal after Ctrl-S. A write then blocks,
so a separate thread writes. It writes to the file descriptor, not to `sys.stderr`, whose lock the interpreter needs
at exit, and it holds no lock while it writes.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from svcnode.core.redaction import redacted
from svcnode.core.text import sanitize
from svcnode.core.units import iso_time, utc_text
from svcnode.net.clock import monotonic_s
from svcnode.net.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

STDERR = 2
MAX_BUFFERED_BYTES = 4 * 1024**2  # some 20,000 lines
FLUSH_TIMEOUT_S = 1.0

# Drivers log a traceback for every failed check; the verdict reports the same failure.
_DRIVER_LOGGERS = ("httpcore2", "httpx2", "aiormq", "asyncmy", "hpack", "nats", "psycopg", "redis")

# Clients can cause lines of these loggers, so each cause has a limit.
_CLIENT_LOGGERS = ("asyncio", "svcnode.api", "svcnode.operator", "svcnode.push", "svcnode.server")
LINES_PER_CAUSE = 5  # in one window
WINDOW_S = 60.0
MAX_CAUSES = 100  # further ones share a limit

# Attributes of every record. The others come from `extra={…}` and become fields of the JSON line, these first.
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FIRST_FIELDS = ("event", "service", "status", "previous", "since", "first_failure", "code", "reason", "node_health")


def log_line(level: str, text: str, wall_s: float) -> str:
    """On a terminal, with the time of day."""
    return f"{utc_text(wall_s, wall_s)} {level:7} {text}"


class TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the name in logging
        return log_line(record.levelname.lower(), sanitize(record.message), record.created)

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": iso_time(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        extra = {key: value for key, value in vars(record).items() if key not in _STANDARD_FIELDS and key not in entry}
        for key in (*(key for key in _FIRST_FIELDS if key in extra), *extra):
            entry[key] = _json_value(extra[key])
        if record.exc_info:
            entry["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


def _json_value(value: object) -> object:
    value = value.value if isinstance(value, Enum) else value
    return value if isinstance(value, int | float | None) else redacted(str(value))


class _CauseWindow:
    """The lines of one cause in one window."""

    __slots__ = ("ends_at_s", "lines", "summary")

    def __init__(self, ends_at_s: float) -> None:
        self.ends_at_s = ends_at_s
        self.lines = 0
        self.summary: logging.LogRecord | None = None  # of the suppressed lines


class RateLimiter:
    """Limits the lines that clients can cause. Not thread-safe: the handler has a lock.

    Lines have the same cause if they come from the same place in the code and have the same field `cause`, and, for
    an exception, the same type and the place that raised it. Nothing that a client sends is part of the cause.
    """

    def __init__(self, clock: Callable[[], float] = monotonic_s) -> None:
        self._clock = clock
        self._causes: dict[object, _CauseWindow] = {}

    def admits(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(_CLIENT_LOGGERS):
            return True
        cause = self._cause_of(record)
        cause.lines += 1
        if cause.lines <= LINES_PER_CAUSE:
            return True
        cause.summary = _suppressed_lines_record(record, cause.lines - LINES_PER_CAUSE)
        return False

    def _cause_of(self, record: logging.LogRecord) -> _CauseWindow:
        key: object = (record.pathname, record.lineno, vars(record).get("cause"), _raised_at(record))
        if key not in self._causes and len(self._causes) >= MAX_CAUSES:
            key = None
        return self._causes.setdefault(key, _CauseWindow(self._clock() + WINDOW_S))

    def next_summary_in_s(self) -> float | None:
        """None: no line is suppressed."""
        ends_s = [cause.ends_at_s for cause in self._causes.values() if cause.summary is not None]
        return max(0.0, min(ends_s) - self._clock()) if ends_s else None

    def take_summaries(self, *, is_closing: bool = False) -> list[logging.LogRecord]:
        """A record for each cause with suppressed lines whose window has ended; its next line is admitted again."""
        now_s = self._clock()
        ended = [key for key, cause in self._causes.items() if is_closing or cause.ends_at_s <= now_s]
        summaries = [self._causes.pop(key).summary for key in ended]
        return [summary for summary in summaries if summary is not None]


def _raised_at(record: logging.LogRecord) -> object:
    if not record.exc_info or record.exc_info[0] is None:
        return None
    traceback = record.exc_info[2]
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return record.exc_info[0], traceback and (traceback.tb_frame.f_code, traceback.tb_lineno)


def _suppressed_lines_record(last: logging.LogRecord, lines: int) -> logging.LogRecord:
    text = f"{lines} more in {WINDOW_S:g} s, not logged: {last.getMessage()}"
    fields = {
        "name": "svcnode.logs",
        "levelno": last.levelno,
        "levelname": last.levelname,
        "msg": "%s",
        "args": (text,),
    }
    return logging.makeLogRecord({**fields, "event": "log_lines_suppressed", "lines": lines})


class NonBlockingHandler(logging.Handler):
    """Writes lines in order from a background thread.

    If the reader is slow, lines are buffered. When the buffer is full, new lines are dropped until it is empty; then
    one line reports how many were lost at this point.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._dropped = 0  # since the last buffered line
        self._is_writing = False
        self._limiter = RateLimiter()
        self._changed = threading.Condition()
        # A daemon: if the log is not read, the thread never ends.
        start_thread(threading.Thread(target=self._write_loop, name="svcnode log", daemon=True))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with self._changed:
                self._append_summaries()
                if not self._limiter.admits(record):
                    self._changed.notify_all()  # the thread sets its timeout
                    return
            line = self._encode_line(record)
        except MemoryError:
            with self._changed:
                self._dropped += 1
            return
        except Exception:  # noqa: BLE001  handleError reports it
            self.handleError(record)
            return
        with self._changed:
            self._append(line)
            self._changed.notify_all()

    def _append(self, line: bytes) -> None:
        if self._dropped or self._buffered_bytes + len(line) > MAX_BUFFERED_BYTES:
            self._dropped += 1
        else:
            self._lines.append(line)
            self._buffered_bytes += len(line)

    def _append_summaries(self, *, is_closing: bool = False) -> None:
        for record in self._limiter.take_summaries(is_closing=is_closing):
            self._append(self._encode_line(record))

    def flush_within(self, timeout_s: float) -> None:
        """Return when everything is written, or after the timeout."""
        with self._changed:
            self._append_summaries(is_closing=True)
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._lines or self._dropped or self._is_writing), timeout_s)

    def _encode_line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(_encoding(), "backslashreplace")

    # ---- in the thread

    def _write_loop(self) -> None:
        lost = 0  # since the last written line
        while True:
            lines, dropped = self._next_batch()
            lost += dropped
            notice = [self._encode_line(_lost_lines_record(lost))] if lost else []
            lost = 0 if self._write(b"".join(notice + lines)) else lost + len(lines)

    def _next_batch(self) -> tuple[list[bytes], int]:
        """The next lines to write, or the number of lines dropped at this point.

        Several lines at a time, because this thread rarely runs in a busy process; but at most the size that a pipe
        writes atomically, so that the lines of two processes on one pipe do not mix.
        """
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            while not (self._lines or self._dropped):
                self._changed.wait(self._limiter.next_summary_in_s())
                self._append_summaries()
            self._is_writing = True
            if not self._lines:
                dropped, self._dropped = self._dropped, 0
                return [], dropped
            lines = [self._lines.popleft()]
            size = len(lines[0])
            while self._lines and size + len(self._lines[0]) <= select.PIPE_BUF:
                size += len(self._lines[0])
                lines.append(self._lines.popleft())
            self._buffered_bytes -= size
            return lines, 0

    def _write(self, text: bytes) -> bool:
        """Returns False if the reader has closed the pipe or the disk is full."""
        try:
            while text:
                text = text[self._write_some(text) :]
        except OSError:
            return False
        return True

    def _write_some(self, text: bytes) -> int:
        try:
            return os.write(self.descriptor, text)
        except BlockingIOError:  # another process has made the stream non-blocking
            select.select((), (self.descriptor,), ())
            return 0


def _encoding() -> str:
    return "utf-8" if sys.stderr is None else sys.stderr.encoding


def _lost_lines_record(lost: int) -> logging.LogRecord:
    lines = "1 log line" if lost == 1 else f"{lost} log lines"
    text = f"{lines} lost: the log was not read in time, or could not be written"
    fields = {"name": "svcnode.logs", "levelno": logging.WARNING, "levelname": "WARNING", "msg": text}
    return logging.makeLogRecord({**fields, "event": "log_lines_lost", "lines": lost})


def configure(level: str, log_format: str, descriptor: int = STDERR) -> None:
    logging.getLogger().handlers[:] = [NonBlockingHandler(descriptor)]
    silence_drivers()
    set_format(log_format)
    set_level(level)


def silence_drivers() -> None:
    for driver in _DRIVER_LOGGERS:
        logging.getLogger(driver).setLevel(logging.CRITICAL)


def set_format(log_format: str) -> None:
    """`log_format`: "text", "json" or "auto" (text on a terminal, else JSON)."""
    for handler in _installed_handlers():
        is_text = os.isatty(handler.descriptor) if log_format == "auto" else log_format == "text"
        handler.setFormatter(TextFormatter() if is_text else JsonFormatter())


def set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())


def flush_logs(timeout_s: float = FLUSH_TIMEOUT_S) -> None:
    """Write the last lines before exit, or give up after the timeout."""
    for handler in _installed_handlers():
        handler.flush_within(timeout_s)


def _installed_handlers() -> list[NonBlockingHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, NonBlockingHandler)]
