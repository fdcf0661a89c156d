"""`exec:/path/to/program argument…`: a program checks the service and reports the result by its exit status.

ready      exit status 0
not ready  exit status 75 (EX_TEMPFAIL)
failed     any other exit status, or ended by a signal
unknown    the program cannot be started

The program runs without a shell and without input, in its own process group. The group is killed at the deadline.
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

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.redaction import redacted
from svcnode.core.text import os_error_text
from svcnode.core.url import UrlForm
from svcnode.net.os_errors import code_for_os_error
from svcnode.net.trace import step
from svcnode.probes.base import UrlProbe
from svcnode.probes.options import Strings

EXIT_NOT_READY = os.EX_TEMPFAIL  # 75
MAX_OUTPUT_BYTES = 4 * 1024  # shown; twice as much is read, so that a secret at the end is redacted before it is cut
OUTPUT_DRAIN_TIMEOUT_S = 0.1  # for output still in the pipe after the exit; a child process may keep the pipe open
REAP_TIMEOUT_S = 0.5
_MUST_ENCODE = re.compile("[%\x00-\x1f\x7f\ud800-\udfff]")  # percent-encoded in a URL


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ExecProbe(UrlProbe):
    argv: Strings = ()  # instead of arguments in the URL
    _argv: tuple[str, ...] = field(init=False, compare=False)

    permission: ClassVar[str] = "allow_exec"
    url_form: ClassVar = UrlForm(host="none", path=".*", path_alone=r".*\S.*")

    def __post_init__(self) -> None:
        if self.url.host or self.url.query or bool(self.argv) == bool(self.url.path.strip()):
            raise ProbeError(
                'name the program once: "exec:/path/to/program", or "exec:" with argv = ["/path/to/program"]'
            )
        argv = self.argv or _split_argv(self.url.path)
        if not argv[0] or any("\0" in argument for argument in argv):
            raise OptionError("argv", "must begin with a program, and must not contain null characters")
        object.__setattr__(self, "_argv", argv)

    @property
    def display_url(self) -> str:
        """The URL, or only the program of `argv`: any argument may be a secret."""
        if not self.argv:
            return str(self.url)
        program = shlex.quote(_MUST_ENCODE.sub(_percent_encode, redacted(self.argv[0])))
        return f"exec:{program}{' …' if self.argv[1:] else ''}"

    async def check(self) -> Verdict:
        child = _Child()
        # In its own task: if a start is cancelled half-way, asyncio waits for the started process.
        starting = asyncio.create_task(self._start(child))
        try:
            with step("start", self._argv[0]):
                await asyncio.shield(starting)
            with step("run"):
                await child.exited.wait()
            await _wait_at_most(OUTPUT_DRAIN_TIMEOUT_S, child.output_closed)
        except OSError as exc:
            child.exited.set()  # there is no process
            is_exhausted = code_for_os_error(exc) is ReasonCode.RESOURCE_EXHAUSTED
            return Verdict.unknown(
                f"cannot start {self._argv[0]}: {os_error_text(exc)}",
                code=ReasonCode.RESOURCE_EXHAUSTED if is_exhausted else ReasonCode.COMMAND_NOT_STARTED,
            )
        finally:
            child.clean_up()
            await _wait_at_most(REAP_TIMEOUT_S, child.exited)  # so that the next check does not run beside this one
        return _verdict(child.exit_status, child.first_line)

    async def _start(self, child: _Child) -> None:
        await asyncio.get_running_loop().subprocess_exec(
            lambda: child, *self._argv, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


def _percent_encode(found: re.Match[str]) -> str:
    return quote(found[0], safe="", errors="replace")


def _split_argv(text: str) -> tuple[str, ...]:
    try:
        return tuple(unquote(argument) for argument in shlex.split(text))
    except ValueError as exc:
        raise ProbeError(f"cannot split the command into arguments: {str(exc).lower()}") from exc


def _verdict(exit_status: int, output: str) -> Verdict:
    if exit_status == 0:
        return Verdict.ready()
    ended = f"exit status {exit_status}" if exit_status > 0 else f"ended by {_signal_name(-exit_status)}"
    reason = f"{ended}: {output}" if output else ended
    if exit_status == EXIT_NOT_READY:
        return Verdict.not_ready(reason, code=ReasonCode.EXIT_STATUS)
    return Verdict.failed(reason, code=ReasonCode.EXIT_STATUS)


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
    def exit_status(self) -> int:
        status = None if self._transport is None else self._transport.get_returncode()
        assert status is not None, "the process has exited"
        return status

    @property
    def first_line(self) -> str:
        line = next(iter(bytes(self._output).decode("utf-8", "replace").strip().splitlines()), "")
        return redacted(line)[:MAX_OUTPUT_BYTES]

    def clean_up(self) -> None:
        """Kill the process group as soon as it runs; close the transport as soon as the process has exited."""
        self._is_abandoned = True
        if self._transport is None:
            return
        if self.exited.is_set():
            self._transport.close()  # not earlier: closing would also end the wait for the exit
        else:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._transport.get_pid(), signal.SIGKILL)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        if self._is_abandoned:
            self.clean_up()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        # More is read but dropped, so that the program does not block.
        self._output += data[: 2 * MAX_OUTPUT_BYTES - len(self._output)]

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.output_closed.set()

    def process_exited(self) -> None:
        self.exited.set()
        if self._is_abandoned:
            self.clean_up()
