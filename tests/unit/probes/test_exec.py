"""Exec probes with real programs, on both event loops."""

from __future__ import annotations

import asyncio
import os
import signal
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Verdict
from svcnode.probes import make_probe
from svcnode.probes.exec import MAX_OUTPUT_BYTES
from tests.support.http_server import LOOPS, WAIT_TIMEOUT_S, becomes_true
from tests.support.verdicts import READY, ExpectedVerdict, failed, not_ready

if TYPE_CHECKING:
    from svcnode.probes.base import Probe

T = TypeVar("T")

FAILED = failed(ReasonCode.EXIT_STATUS)
NOT_READY = not_ready(ReasonCode.EXIT_STATUS)
HANG = "sleep 600"
MIB = 1024 * 1024

Run = Callable[[Coroutine[Any, Any, T]], T]
Check = Callable[..., Verdict]
Write = Callable[..., Path]


@pytest.fixture(params=["asyncio", pytest.param("uvloop", marks=pytest.mark.wide)])
def run(request: pytest.FixtureRequest) -> Run[Any]:
    """Runs a coroutine on an event loop that must report no error."""

    def run(scenario: Coroutine[Any, Any, Any]) -> Any:
        errors: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: errors.append(context))
            result = runner.run(scenario)
        assert not errors
        return result

    return run


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a shell program and returns its path."""

    def write(*lines: str, name: str = "program", mode: int = 0o755) -> Path:
        program = tmp_path / name
        program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        program.chmod(mode)
        return program

    return write


@pytest.fixture
def check(run: Run[Verdict], write: Write) -> Check:
    """Checks with a shell program of these lines."""
    return lambda *lines: run(probe_of(f"exec:{write(*lines)}").check())


class ProcessGroup:
    """A program that hangs and has a child process. It writes both process ids to a file."""

    def __init__(self, write: Write, folder: Path, *first: str) -> None:
        self._file = folder / "pids"
        hangs = (*first, f"{HANG} &", f"echo $$ $! > {self._file}.new && mv {self._file}.new {self._file}", "wait")
        self.probe = probe_of(f"exec:{write(*hangs, name='group')}")

    @property
    def pids(self) -> tuple[int, int]:
        parent, child = map(int, self._file.read_text().split())
        return parent, child

    async def wait_until_started(self) -> None:
        assert await asyncio.to_thread(becomes_true, self.has_started)

    def has_started(self) -> bool:
        return self._file.exists()

    @property
    def has_ended(self) -> bool:
        return not any(map(is_alive, self.pids))


@pytest.fixture
def group(write: Write, tmp_path: Path) -> ProcessGroup:
    return ProcessGroup(write, tmp_path)


def probe_of(config: str | Mapping[str, Any], **environ: str) -> Probe:
    return make_probe(config, environ=environ, allowed={"allow_exec"})


def is_alive(pid: int) -> bool:
    """False for a zombie too."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (ProcessLookupError, FileNotFoundError):
        return False


def is_reaped(pid: int) -> bool:
    """Whether the process has ended and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def cancelled(task: Awaitable[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize(
    ("last_line", "expected", "named"),
    [
        ("exit 0", READY, ""),
        ("exit 74", FAILED, "74"),
        ("exit 75", NOT_READY, "block 12"),
        ("exit 76", FAILED, "76"),
        ("kill -KILL $$", FAILED, "SIGKILL"),
        ("kill -40 $$", FAILED, "40"),  # a signal without a name
    ],
)
def test_the_exit_status_decides(check: Check, last_line: str, expected: ExpectedVerdict, named: str) -> None:
    verdict = check("echo block 12", last_line)
    assert verdict == expected
    assert named in verdict.reason


# ---- arguments

PRINT_ARGUMENTS = ('for argument in "$@"; do printf "[%s]" "$argument"; done', "exit 1")


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        ("", ""),
        ("one two", "[one][two]"),
        ("'one two' \"it's\"", "[one two][it's]"),
        ("one%20two %25 100%", "[one two][%][100%]"),
        ("'' %20", "[][ ]"),
        ("$(id) `id` $HOME $${PATH} $$", "[$(id)][`id`][$HOME][${PATH}][$$]"),
        ("grüß 日本", "[grüß][日本]"),
    ],
)
def test_arguments_are_passed_without_a_shell(run: Run[Verdict], write: Write, arguments: str, printed: str) -> None:
    verdict = run(probe_of(f"exec:{write(*PRINT_ARGUMENTS)} {arguments}").check())
    assert verdict == FAILED
    assert verdict.reason.endswith(printed or "1")


def test_a_value_from_the_environment_is_one_argument_and_is_redacted(
    run: Run[Verdict], write: Write, tmp_path: Path
) -> None:
    path = write(f'printf "%s" "$1" > {tmp_path}/argument', *PRINT_ARGUMENTS)
    verdict = run(probe_of(f"exec:{path} ${{ODD}} end", ODD="a b' $(id) %20; *").check())
    assert (tmp_path / "argument").read_text() == "a b' $(id) %20; *"
    assert verdict == FAILED
    assert verdict.reason.endswith("[***][end]")


@pytest.mark.parametrize("program", ["/bin/true", "/bin/my program", "it's", "100%", "a%20b", '"', "a\nb\x7f"])
def test_only_the_program_of_a_list_is_shown_as_an_equivalent_url(program: str) -> None:
    probe: Any = probe_of({"url": "exec:", "argv": [program]})
    assert probe.display_url.isprintable()
    again: Any = probe_of(probe.display_url)
    assert again._argv == (program,)
    with_password = {"url": "exec:", "argv": ["/bin/check", "--password", "written-out"]}
    assert probe_of(with_password).display_url == "exec:/bin/check …"
    assert probe_of("exec:/bin/check --all").display_url == "exec:/bin/check --all"


def test_standard_input_is_empty(check: Check) -> None:
    assert check("cat", "exit 3") == FAILED


@pytest.mark.parametrize("config", ["exec:''", "exec:/bin/true%00", {"url": "exec:", "argv": ["", "a"]}])
def test_an_empty_program_or_a_null_character_is_rejected(config: str | Mapping[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        probe_of(config)
    assert caught.value.option == "argv"


def test_a_cancelled_check_kills_the_process_group_even_if_it_ignores_signals(
    run: Run[None], write: Write, tmp_path: Path
) -> None:
    group = ProcessGroup(write, tmp_path, "trap '' TERM INT HUP QUIT")  # the child process inherits this

    async def scenario() -> None:
        task = asyncio.create_task(group.probe.check())
        await group.wait_until_started()
        parent, child = group.pids
        assert os.getpgid(parent) == os.getpgid(child) == parent != os.getpgid(0)
        task.cancel()
        await cancelled(task)
        assert is_reaped(parent)
        assert becomes_true(lambda: group.has_ended)

    run(scenario())


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_check_that_is_cancelled_during_the_start_ends_at_once(
    run: Run[None], group: ProcessGroup, steps: int
) -> None:
    async def scenario() -> None:
        task = asyncio.create_task(group.probe.check())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert becomes_true(group.has_started)  # the program runs, but the loop has not handled its output yet
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        ended, _ = await asyncio.wait([task], timeout=WAIT_TIMEOUT_S)
        assert ended
        assert task.cancelled()
        assert is_reaped(group.pids[0])
        assert becomes_true(lambda: group.has_ended)

    run(scenario())


def first_line(verdict: Verdict) -> str:
    """The output in the reason, after the exit status."""
    assert verdict == FAILED
    return verdict.reason.partition(": ")[2]


def test_the_first_line_of_the_output_is_in_the_reason_up_to_a_limit(check: Check) -> None:
    assert first_line(check("echo; echo '  no peers'; echo 'retrying'; exit 1")) == "no peers"
    assert first_line(check("head -c 100000 /dev/zero | tr '\\0' x; exit 1")) == "x" * MAX_OUTPUT_BYTES
    assert MAX_OUTPUT_BYTES == 4096


def test_a_secret_at_the_limit_is_redacted(run: Run[Verdict], write: Write) -> None:
    path = write(f'head -c {MAX_OUTPUT_BYTES - 4} /dev/zero | tr "\\0" x; echo "$1"; exit 1')
    verdict = run(probe_of(f"exec:{path} ${{SECRET}}", SECRET="swordfish").check())
    assert verdict.reason.endswith("xxx***")


def test_a_large_output_neither_blocks_the_program_nor_fills_the_memory(check: Check) -> None:
    tracemalloc.start()
    try:
        verdict = check(f"echo flood; head -c {64 * MIB} /dev/zero; exit 75")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert verdict == NOT_READY
    assert "flood" in verdict.reason
    assert peak_bytes < 32 * MIB


def test_a_child_that_keeps_the_output_open_does_not_delay_the_verdict(check: Check, tmp_path: Path) -> None:
    """Otherwise the check would take the 10 minutes that the child sleeps."""
    verdict = check(f"{HANG} &", f"echo $! > {tmp_path}/pid", "echo started; exit 75")
    try:
        assert verdict == NOT_READY
        assert "started" in verdict.reason
    finally:
        kill(int((tmp_path / "pid").read_text()))


def test_a_check_that_is_cancelled_after_the_exit_leaves_nothing_open(
    run: Run[None], write: Write, tmp_path: Path
) -> None:
    """A transport that is not closed causes a warning, and warnings are errors here."""
    ended, child = tmp_path / "ended", tmp_path / "child"
    probe = probe_of(f"exec:{write(f'{HANG} &', f'echo $! > {child}', f'echo $$ > {ended}')}")

    def has_ended() -> bool:
        return ended.exists() and ended.read_text().endswith("\n") and is_reaped(int(ended.read_text()))

    async def scenario() -> None:
        task = asyncio.create_task(probe.check())
        assert await asyncio.to_thread(becomes_true, has_ended)
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await cancelled(task)

    try:
        run(scenario())
    finally:
        kill(int(child.read_text()))


def test_a_program_has_default_signal_handlers(check: Check) -> None:
    """Python ignores SIGPIPE. If the program did too, `yes` would print an error."""
    assert first_line(check("yes | head -n 1 >/dev/null; echo done; exit 1")) == "done"
