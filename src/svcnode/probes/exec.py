"""`exec:/path/to/program argument…`: a program of yours that looks, and says by its exit status what it saw.

ready      exit 0
not ready  exit 75, which is known as a temporary failure
failed     any other exit, or an end by a signal
unknown    the program cannot be started

It has no shell around it, no input, and a process group of its own, which is killed as a whole when the time is up.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from typing import ClassVar, cast
from urllib.parse import quote, unquote

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.redaction import redacted
from svcnode.core.text import os_error_text
from svcnode.net.trace import step
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import Strings

EXIT_NOT_READY = os.EX_TEMPFAIL  # 75
MAX_OUTPUT_BYTES = 4 * 1024  # that are shown; twice as many are heard, so that no half of a secret stands at the end
OUTPUT_DRAIN_TIMEOUT_S = 0.1  # after the end, for output still in the pipe; a child may hold it open for ever
REAP_TIMEOUT_S = 0.5
_MUST_ENCODE = re.compile("[%\x00-\x1f\x7f\ud800-\udfff]")  # what a URL holds only in its %-form


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExecProbe(UrlProbe):
    argv: Strings = ()  # instead of words in the URL
    _argv: tuple[str, ...] = field(init=False, compare=False)

    permission: ClassVar[str] = "allow_exec"

    def __post_init__(self) -> None:
        if self.url.host or self.url.query or bool(self.argv) == bool(self.url.path.strip()):
            raise ProbeError('names a program, once: "exec:/path/to/program", or argv = […] beside "exec:"')
        argv = self.argv or _split_argv(self.url.path)
        if not argv[0] or any("\0" in word for word in argv):
            raise OptionError("argv", "begins with a program, and holds no null characters")
        object.__setattr__(self, "_argv", argv)

    @property
    def display_url(self) -> str:
        """The URL; of words in a list only the program, since nobody can tell which of the others is a secret."""
        if not self.argv:
            return str(self.url)
        program = shlex.quote(_MUST_ENCODE.sub(_percent_encode, redacted(self.argv[0])))
        return f"exec:{program}{' …' if self.argv[1:] else ''}"

    async def check(self) -> Verdict:
        child = _Child()
        # In a task of its own: a start that is cancelled half-way leaves asyncio waiting for whatever was started.
        starting = asyncio.create_task(self._start(child))
        try:
            with step("start", self._argv[0]):
                await asyncio.shield(starting)
            with step("run"):
                await child.exited.wait()
            await _wait_at_most(OUTPUT_DRAIN_TIMEOUT_S, child.output_closed)
        except OSError as exc:
            child.exited.set()  # it has never been there
            return Verdict.unknown(f"cannot run {self._argv[0]}: {os_error_text(exc)}")
        finally:
            child.clean_up()
            await _wait_at_most(
                REAP_TIMEOUT_S, child.exited
            )  # so that no look begins beside the remains of the last one
        return _verdict(child.exit_code, child.first_line)

    async def _start(self, child: _Child) -> None:
        await asyncio.get_running_loop().subprocess_exec(
            lambda: child, *self._argv, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


def _percent_encode(found: re.Match[str]) -> str:
    return quote(found[0], safe="", errors="replace")


def _split_argv(text: str) -> tuple[str, ...]:
    try:
        return tuple(unquote(word) for word in shlex.split(text))
    except ValueError as exc:
        raise ProbeError(f"its words cannot be told apart: {str(exc).lower()}") from exc


def _verdict(code: int, said: str) -> Verdict:
    if code == 0:
        return Verdict.ready()
    ended = f"exit {code}" if code > 0 else f"ended by {_signal_name(-code)}"
    reason = f"{ended}: {said}" if said else ended
    return Verdict.not_ready(reason) if code == EXIT_NOT_READY else Verdict.failed(reason)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


async def _wait_at_most(limit_s: float, event: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()


class _Child(asyncio.SubprocessProtocol):
    def __init__(self) -> None:
        self.exited = asyncio.Event()
        self.output_closed = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self._is_abandoned = False
        self._output = bytearray()

    @property
    def exit_code(self) -> int:
        code = None if self._transport is None else self._transport.get_returncode()
        assert code is not None, "it has ended"
        return code

    @property
    def first_line(self) -> str:
        line = next(iter(bytes(self._output).decode("utf-8", "replace").strip().splitlines()), "")
        return redacted(line)[:MAX_OUTPUT_BYTES]

    def clean_up(self) -> None:
        """Nobody need stay until it is gone: it is killed as soon as it runs, and closed as soon as it has ended."""
        self._is_abandoned = True
        if self._transport is None:
            return
        if self.exited.is_set():
            self._transport.close()  # not earlier: asyncio would take its end from whoever waits for it
        else:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        if self._is_abandoned:
            self.clean_up()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._output += data[: 2 * MAX_OUTPUT_BYTES - len(self._output)]  # the rest is read, so that it need not wait

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.output_closed.set()

    def process_exited(self) -> None:
        self.exited.set()
        if self._is_abandoned:
            self.clean_up()
