"""What the agent says on stderr: lines for people on a terminal, JSON for machines elsewhere.

Whoever reads the log may stop reading: a collector that hangs, a terminal that is held with Ctrl-S. A write then does
not return, and nothing but a thread of its own may wait for it. It writes to the descriptor and not to `sys.stderr`,
whose lock the process would need at its end; nor does it hold any other lock while it writes.
"""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import threading
from collections import deque
from datetime import UTC, datetime

from svcnode.core.redaction import redacted
from svcnode.core.text import one_line

STDERR = 2
MAX_BUFFERED_BYTES = 4 * 1024**2  # some 20,000 lines
FLUSH_TIMEOUT_S = 1.0

# What a driver has to say about a check, the check says; drivers say it with tracebacks, at every check.
_DRIVER_LOGGERS = ("aiormq", "asyncmy", "hpack", "nats", "psycopg", "redis")

# What every record has; anything else on it was added by whoever logged, to be read by machines.
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TextFormatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  as logging has it
        time = self.formatTime(record, "%H:%M:%S")
        return f"{time} {record.levelname.lower():7} {one_line(redacted(record.message))}"

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        entry.update((key, _json_value(value)) for key, value in vars(record).items() if key not in _STANDARD_FIELDS)
        if record.exc_info:
            entry["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


def _json_value(value: object) -> object:
    return value if isinstance(value, int | float | None) else redacted(str(value))


class NonBlockingHandler(logging.Handler):
    """Lines go out in their order and at once, as long as somebody reads.

    Otherwise they wait. Once as much waits as may, whatever comes is dropped until the last of it is out; then one line
    says how many were lost, in the place where they would have been.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._dropped = 0  # after all that waits
        self._is_writing = False
        self._changed = threading.Condition()
        # A daemon: where nobody reads, it never ends.
        threading.Thread(target=self._write_loop, name="svcnode log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._encode_line(record)
        except Exception:  # noqa: BLE001  whatever it is, logging has its way to tell
            self.handleError(record)
            return
        with self._changed:
            if self._dropped or self._buffered_bytes + len(line) > MAX_BUFFERED_BYTES:
                self._dropped += 1
            else:
                self._lines.append(line)
                self._buffered_bytes += len(line)
            self._changed.notify_all()

    def flush_within(self, timeout_s: float) -> None:
        """Returns when all has been written, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._dropped or self._is_writing), timeout_s)

    def _encode_line(self, record: logging.LogRecord) -> bytes:
        return f"{self.format(record)}\n".encode(_encoding(), "backslashreplace")

    # ---- in the thread

    def _write_loop(self) -> None:
        lost = 0  # since the last line that went out
        while True:
            lines, dropped = self._next_batch()
            lost += dropped
            told = [self._encode_line(_lost_lines_record(lost))] if lost else []
            lost = 0 if self._write(b"".join(told + lines)) else lost + len(lines)

    def _next_batch(self) -> tuple[list[bytes], int]:
        """What to write, or how many lines were dropped here.

        Several lines at a time, since in a busy process the turn of this thread comes rarely; but no more than a pipe
        takes as a whole, so that the lines of two processes on one pipe do not mix.
        """
        with self._changed:
            self._is_writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines or self._dropped)
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
        """Returns whether it is out: not if the reader is gone, or the disk is full."""
        try:
            while text:
                text = text[self._write_some(text) :]
        except OSError:
            return False
        return True

    def _write_some(self, text: bytes) -> int:
        try:
            return os.write(self.descriptor, text)
        except BlockingIOError:  # made so by somebody who has the same stream
            select.select((), (self.descriptor,), ())
            return 0


def _encoding() -> str:
    return "utf-8" if sys.stderr is None else sys.stderr.encoding


def _lost_lines_record(lost: int) -> logging.LogRecord:
    were = "1 line was" if lost == 1 else f"{lost} lines were"
    text = f"{were} lost here: the log could not be written, or nobody read it"
    return logging.LogRecord("svcnode.logs", logging.WARNING, __file__, 0, text, (), None)


def configure(level: str, log_format: str, descriptor: int = STDERR) -> None:
    logging.getLogger().handlers[:] = [NonBlockingHandler(descriptor)]
    for driver in _DRIVER_LOGGERS:
        logging.getLogger(driver).setLevel(logging.CRITICAL)
    set_format(log_format)
    set_level(level)


def set_format(log_format: str) -> None:
    """Which is "text", "json", or "auto": text on a terminal."""
    for handler in _installed_handlers():
        is_text = os.isatty(handler.descriptor) if log_format == "auto" else log_format == "text"
        handler.setFormatter(TextFormatter() if is_text else JsonFormatter())


def set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())


def flush_logs(timeout_s: float = FLUSH_TIMEOUT_S) -> None:
    """The last lines before the end, as far as somebody reads them in time."""
    for handler in _installed_handlers():
        handler.flush_within(timeout_s)


def _installed_handlers() -> list[NonBlockingHandler]:
    return [handler for handler in logging.getLogger().handlers if isinstance(handler, NonBlockingHandler)]
