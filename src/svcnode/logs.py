"""What the agent says on stderr: lines for people on a terminal, JSON for machines elsewhere."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from svcnode.core.redaction import redacted
from svcnode.core.wording import one_line

if TYPE_CHECKING:
    from typing import TextIO

# What a driver has to say about a look, the look says; drivers say it with tracebacks, at every look.
_DRIVERS = ("aiormq", "asyncmy", "hpack", "nats", "psycopg", "redis")

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
        entry.update((key, _shown(value)) for key, value in vars(record).items() if key not in _STANDARD_FIELDS)
        if record.exc_info:
            entry["exception"] = redacted(self.formatException(record.exc_info))
        return json.dumps(entry, ensure_ascii=False)


def _shown(value: object) -> object:
    return value if isinstance(value, int | float | None) else redacted(str(value))


def set_up(level: str, style: str, stream: TextIO | None = None) -> None:
    """`style` is "text", "json", or "auto": text on a terminal."""
    stream = stream or sys.stderr
    is_text = stream.isatty() if style == "auto" else style == "text"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    for driver in _DRIVERS:
        logging.getLogger(driver).setLevel(logging.CRITICAL)
    set_level(level)


def set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())
