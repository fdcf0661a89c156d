"""Shared by the commands that show what they saw."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.core.errors import SvcnodeError

if TYPE_CHECKING:
    from typing import TextIO


def show(text: str, stream: TextIO | None) -> None:
    """Whatever a service or a user named, it must not fail because a terminal cannot spell it."""
    if stream is None:  # closed before the start
        return
    encoding = stream.encoding
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise SvcnodeError(f"cannot write what was seen: {exc.strerror}") from exc
