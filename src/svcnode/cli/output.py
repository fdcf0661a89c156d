"""Writes the output of a command."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from svcnode.core.errors import SvcnodeError
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


def show(text: str, stream: TextIO | None) -> None:
    """Characters that the stream cannot encode are written as escapes."""
    if stream is None:  # closed at start
        return
    encoding = stream.encoding
    with _write_errors():
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def show_bytes(content: bytes, stream: TextIO | None) -> None:
    """The bytes as they are, whatever the encoding of the stream."""
    if stream is None:
        return
    with _write_errors():
        stream.flush()
        stream.buffer.write(content)
        stream.buffer.flush()


@contextmanager
def _write_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise SvcnodeError(f"cannot write the output: {os_error_text(exc)}") from exc
