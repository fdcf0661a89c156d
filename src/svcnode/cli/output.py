"""Shared by the commands that show what they saw."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from svcnode.core.errors import SvcnodeError
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO


def show(text: str, stream: TextIO | None) -> None:
    """Whatever a service or a user named, it must not fail because a terminal cannot spell it."""
    if stream is None:  # closed before the start
        return
    encoding = stream.encoding
    with _write_errors():
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)


def show_bytes(content: bytes, stream: TextIO | None) -> None:
    """To the byte as a file would have it, whatever the terminal can spell."""
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
        raise SvcnodeError(f"cannot write what was seen: {os_error_text(exc)}") from exc
