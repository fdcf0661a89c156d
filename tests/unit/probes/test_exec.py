"""Real programs, on either event loop. The time is real here, and only deadlines that are under test are waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from svcnode.cli import main
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import register_secret
from svcnode.node import Node
from svcnode.probes import exec as exec_kind
from svcnode.probes import make_probe
from svcnode.probes.base import Probe
from svcnode.probes.exec import MAX_OUTPUT_BYTES
from svcnode.probes.run import run_check
from tests.support.http_server import LOOPS, becomes_true

T = TypeVar("T")

SCRIPT_RUNS_WITHIN_S = 0.5  # until it has begun; far longer than it takes
FOR_EVER = "sleep 600"
MIB = 1024 * 1024

RunStory = Callable[[Coroutine[Any, Any, T]], T]
Look = Callable[..., Verdict]
Write = Callable[..., Path]


@pytest.fixture(params=list(LOOPS))
def run(request: pytest.FixtureRequest) -> RunStory[Any]:
    """Runs a story on an event loop, which must have nothing to complain about."""

    def run(story: Coroutine[Any, Any, Any]) -> Any:
        faults: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))
            result = runner.run(story)
        assert not faults
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
def look(run: RunStory[Verdict], write: Write) -> Look:
    """Looks with a shell program of these lines."""
    return lambda *lines: run(probe_of(f"exec:{write(*lines)}").check())


class Family:
    """A program that hangs with a child of its own. Both their numbers are in a file, as soon as they run."""

    def __init__(self, write: Write, folder: Path, *first: str) -> None:
        self._file = folder / "pids"
        hangs = (*first, f"{FOR_EVER} &", f"echo $$ $! > {self._file}.new && mv {self._file}.new {self._file}", "wait")
        self.probe = probe_of(f"exec:{write(*hangs, name='family')}")

    @property
    def pids(self) -> tuple[int, int]:
        parent, child = map(int, self._file.read_text().split())
        return parent, child

    async def begins(self) -> None:
        assert await asyncio.to_thread(becomes_true, self.has_begun)

    def has_begun(self) -> bool:
        return self._file.exists()

    @property
    def is_gone(self) -> bool:
        return not any(map(is_alive, self.pids))


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> list[exec_kind._Child]:
    """What is known of every program that was started, for stories that leave before it is gone."""
    known: list[exec_kind._Child] = []

    class Known(exec_kind._Child):
        def __init__(self) -> None:
            super().__init__()
            known.append(self)

    monkeypatch.setattr(exec_kind, "_Child", Known)
    return known


@pytest.fixture
def family(write: Write, tmp_path: Path) -> Family:
    return Family(write, tmp_path)


def probe_of(words: str | Mapping[str, Any], **environ: str) -> Probe:
    return make_probe(words, environ=environ, allowed={"allow_exec"})


def is_alive(pid: int) -> bool:
    """Whether it still runs; an orphan that is dead may have to wait for whoever inherits it to bury it."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (ProcessLookupError, FileNotFoundError):
        return False


def has_been_buried(pid: int) -> bool:
    """Whether a child of ours is no zombie either."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def cancelled(look: Awaitable[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await look


# ---- what its end says


def test_exit_0_is_ready_whatever_it_printed(look: Look) -> None:
    assert look("echo all is well") == Verdict.ready()


def test_exit_75_is_not_ready(look: Look) -> None:
    assert look("echo 'block 12 of 40'", "exit 75") == Verdict.not_ready("exit 75: block 12 of 40")


@pytest.mark.parametrize("code", [1, 2, 74, 76, 127, 255])
def test_every_other_exit_is_failed(look: Look, code: int) -> None:
    assert look(f"exit {code}") == Verdict.failed(f"exit {code}")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGSEGV"])
def test_an_end_by_a_signal_is_failed_and_named(look: Look, name: str) -> None:
    assert look("ulimit -c 0", "echo ouch", f"kill -{name[3:]} $$") == Verdict.failed(f"ended by {name}: ouch")


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="every signal of this system has a name")
def test_a_signal_without_a_name_is_told_by_its_number(look: Look) -> None:
    assert look("kill -40 $$") == Verdict.failed("ended by signal 40")


# ---- what cannot be started


def test_a_missing_program_is_unknown(run: RunStory[Verdict], tmp_path: Path) -> None:
    path = tmp_path / "gone"
    assert run(probe_of(f"exec:{path}").check()) == Verdict.unknown(f"cannot run {path}: no such file or directory")


def test_a_program_that_may_not_be_run_is_unknown(run: RunStory[Verdict], write: Write) -> None:
    path = write(mode=0o644)
    assert run(probe_of(f"exec:{path}").check()) == Verdict.unknown(f"cannot run {path}: permission denied")


def test_a_folder_is_unknown(run: RunStory[Verdict], tmp_path: Path) -> None:
    assert run(probe_of(f"exec:{tmp_path}").check()) == Verdict.unknown(f"cannot run {tmp_path}: permission denied")


def test_a_program_that_comes_back_is_run_by_the_same_probe(run: RunStory[None], write: Write) -> None:
    async def story() -> None:
        path = write()
        probe = probe_of(f"exec:{path}")
        path.unlink()
        assert (await probe.check()).outcome is Outcome.UNKNOWN
        write()
        assert await probe.check() == Verdict.ready()

    run(story())


# ---- what it is given

SAYS_ITS_WORDS = ('for word in "$@"; do printf "[%s]" "$word"; done', "exit 1")


@pytest.mark.parametrize(
    ("words", "heard"),
    [
        ("", ""),
        ("one two", "[one][two]"),
        ("'one two' \"it's\"", "[one two][it's]"),
        ("one%20two %25 100%", "[one two][%][100%]"),
        ("'' %20", "[][ ]"),
        ("a; echo b", "[a;][echo][b]"),
        ("a && b || c | d & e", "[a][&&][b][||][c][|][d][&][e]"),
        ("$(id) `id` $HOME $${PATH} $$", "[$(id)][`id`][$HOME][${PATH}][$$]"),
        ("* /* ~ ?", "[*][/*][~][?]"),
        (">out <in 2>&1", "[>out][<in][2>&1]"),
        ("# no comment", "[#][no][comment]"),
        ("grüß 日本", "[grüß][日本]"),
    ],
)
def test_words_reach_the_program_as_they_are_since_there_is_no_shell(
    run: RunStory[Verdict], write: Write, words: str, heard: str
) -> None:
    verdict = run(probe_of(f"exec:{write(*SAYS_ITS_WORDS)} {words}").check())
    assert verdict == Verdict.failed(f"exit 1: {heard}" if heard else "exit 1")


def test_words_may_stand_in_a_list_and_then_nothing_is_taken_apart(run: RunStory[Verdict], write: Write) -> None:
    argv = [str(write(*SAYS_ITS_WORDS)), "one two", "%20", "'", "$(id)", "*", ""]
    verdict = run(probe_of({"url": "exec:", "argv": argv}).check())
    assert verdict == Verdict.failed("exit 1: [one two][%20]['][$(id)][*][]")


def test_a_value_from_the_environment_is_one_word_whatever_it_holds_and_is_not_told(
    run: RunStory[Verdict], write: Write, tmp_path: Path
) -> None:
    path = write(f'printf "%s" "$1" > {tmp_path}/heard', *SAYS_ITS_WORDS)
    verdict = run(probe_of(f"exec:{path} ${{ODD}} end", ODD="a b' $(id) %20; *").check())
    assert (tmp_path / "heard").read_text() == "a b' $(id) %20; *"
    assert verdict == Verdict.failed("exit 1: [***][end]")


@pytest.mark.parametrize("program", ["/bin/true", "/bin/my program", "it's", "100%", "a%20b", '"', "a\nb\x7f"])
def test_a_program_in_a_list_is_shown_as_the_url_that_means_the_same(program: str) -> None:
    probe: Any = make_probe({"url": "exec:", "argv": [program]}, allowed={"allow_exec"})
    assert probe.shown.isprintable()
    again: Any = make_probe(probe.shown, allowed={"allow_exec"})
    assert again._argv == (program,)


def test_of_the_words_in_a_list_only_the_program_is_shown() -> None:
    words = {"url": "exec:", "argv": ["/bin/check", "--password", "written-out"]}
    probe: Any = make_probe(words, allowed={"allow_exec"})
    assert probe.shown == "exec:/bin/check …"


def test_a_secret_in_the_path_of_a_program_is_not_shown() -> None:
    register_secret("it's-my-secret")
    probe: Any = make_probe({"url": "exec:", "argv": ["/opt/it's-my-secret/check"]}, allowed={"allow_exec"})
    assert probe.shown == "exec:'/opt/***/check'"


def test_a_program_may_have_a_space_in_its_path(run: RunStory[Verdict], write: Write) -> None:
    path = write("exit 75", name="my program")
    for words in (f"exec:'{path}'", f"exec:{str(path).replace(' ', '%20')}", f"exec://{str(path).replace(' ', '%20')}"):
        assert run(probe_of(words).check()) == Verdict.not_ready("exit 75")


def test_a_program_without_a_path_is_searched_for_as_usual(run: RunStory[Verdict]) -> None:
    assert run(probe_of("exec:true").check()) == Verdict.ready()


def test_it_has_nothing_to_read(look: Look) -> None:
    assert look("cat", "exit 3") == Verdict.failed("exit 3")


# ---- how it is named


@pytest.mark.parametrize(
    "words",
    ["exec:", "exec:   ", {"url": "exec:", "argv": []}, {"url": "exec:/bin/true", "argv": ["/bin/true"]}],
)
def test_a_program_is_named_once(words: str | Mapping[str, Any]) -> None:
    with pytest.raises(ProbeError, match="names a program, once"):
        probe_of(words)


@pytest.mark.parametrize("url", ["exec://bin/true", "exec:///bin/grep a?b"])
def test_what_would_be_lost_from_a_url_is_refused(url: str) -> None:
    with pytest.raises(ProbeError, match='"exec:/path/to/program"'):
        probe_of(url)


@pytest.mark.parametrize("url", ["exec:/bin/echo 'a", 'exec:/bin/echo "a', "exec:/bin/echo a\\"])
def test_quotes_that_do_not_close_are_refused(url: str) -> None:
    with pytest.raises(ProbeError, match="its words cannot be told apart"):
        probe_of(url)


@pytest.mark.parametrize("words", ["exec:''", "exec:/bin/true%00", {"url": "exec:", "argv": ["", "a"]}])
def test_words_that_no_program_could_get_are_refused(words: str | Mapping[str, Any]) -> None:
    with pytest.raises(OptionError, match="begins with a program, and holds no null characters"):
        probe_of(words)


@pytest.mark.parametrize("argv", ["/bin/true", [1], {"program": "/bin/true"}])
def test_a_list_of_words_is_a_list_of_strings(argv: object) -> None:
    with pytest.raises(OptionError, match=r"^argv: must be a list of strings"):
        probe_of({"url": "exec:", "argv": argv})


def test_programs_are_run_only_where_that_is_allowed() -> None:
    with pytest.raises(ProbeError, match="set allow_exec = true in "):
        make_probe("exec:/bin/true", environ={})


def test_the_same_words_make_equal_probes_so_that_a_reload_restarts_nothing() -> None:
    assert probe_of("exec:/bin/true a") == probe_of("exec:/bin/true a")
    assert probe_of("exec:/bin/true a") != probe_of("exec:/bin/true b")


# ---- when the time is up


def test_when_the_time_is_up_the_whole_group_is_killed(run: RunStory[None], family: Family) -> None:
    async def story() -> None:
        verdict, fault = await run_check(family.probe, SCRIPT_RUNS_WITHIN_S)
        assert verdict == Verdict.failed(f"no answer within {SCRIPT_RUNS_WITHIN_S} s, in its step run")
        assert fault is None
        assert has_been_buried(family.pids[0])
        assert becomes_true(lambda: family.is_gone)

    run(story())


def test_a_look_that_is_cancelled_kills_the_whole_group(run: RunStory[None], family: Family) -> None:
    async def story() -> None:
        look = asyncio.create_task(family.probe.check())
        await family.begins()
        parent, child = family.pids
        assert os.getpgid(parent) == os.getpgid(child) == parent != os.getpgid(0)
        look.cancel()
        await cancelled(look)
        assert has_been_buried(parent)
        assert becomes_true(lambda: family.is_gone)

    run(story())


def test_a_program_that_will_not_be_ended_is_ended(run: RunStory[None], write: Write, tmp_path: Path) -> None:
    family = Family(write, tmp_path, "trap '' TERM INT HUP QUIT")  # its child inherits this

    async def story() -> None:
        look = asyncio.create_task(family.probe.check())
        await family.begins()
        look.cancel()
        await cancelled(look)
        assert has_been_buried(family.pids[0])
        assert becomes_true(lambda: family.is_gone)

    run(story())


def test_a_program_that_is_stopped_is_ended(run: RunStory[None], family: Family) -> None:
    async def story() -> None:
        look = asyncio.create_task(family.probe.check())
        await family.begins()
        os.kill(family.pids[0], signal.SIGSTOP)
        look.cancel()
        await cancelled(look)
        assert becomes_true(lambda: family.is_gone)

    run(story())


@pytest.mark.parametrize("how", ["the looking ends", "the service is removed"])
def test_the_supervisor_leaves_no_program_behind(
    run: RunStory[None], family: Family, children: list[exec_kind._Child], how: str
) -> None:
    async def story() -> None:
        node = Node("validator-7", version="v1")
        node.register("batch", probe=family.probe, interval="60s", timeout="30s")
        async with node.probing():
            await family.begins()
            if how == "the service is removed":
                node.deregister("batch")
                await children[0].exited.wait()
        assert has_been_buried(family.pids[0])
        assert becomes_true(lambda: family.is_gone)

    run(story())


def test_a_look_that_is_cancelled_while_it_kills_leaves_nothing_either(
    run: RunStory[None], family: Family, children: list[exec_kind._Child]
) -> None:
    async def story() -> None:
        look = asyncio.create_task(family.probe.check())
        await family.begins()
        look.cancel()
        await asyncio.sleep(0)
        look.cancel()
        await cancelled(look)
        await children[0].exited.wait()
        assert has_been_buried(family.pids[0])
        assert becomes_true(lambda: family.is_gone)

    run(story())


@pytest.mark.parametrize("steps", range(6))
def test_a_look_that_is_cancelled_while_it_starts_is_held_up_by_nobody(
    run: RunStory[None], family: Family, steps: int
) -> None:
    async def story() -> None:
        look = asyncio.create_task(family.probe.check())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert becomes_true(family.has_begun)  # it runs, while the loop has not yet got round to its output
        for _ in range(steps):
            await asyncio.sleep(0)
        look.cancel()
        ended, _ = await asyncio.wait([look], timeout=10.0)
        assert ended
        assert look.cancelled()
        assert has_been_buried(family.pids[0])
        assert becomes_true(lambda: family.is_gone)

    run(story())


def test_after_a_look_that_was_cut_short_the_next_one_is_sound(run: RunStory[None], write: Write) -> None:
    async def story() -> None:
        path = write(FOR_EVER)
        probe = probe_of(f"exec:{path}")
        assert (await run_check(probe, 0.05))[0].outcome is Outcome.FAILED
        write("exit 0")
        assert (await run_check(probe, 5.0))[0] == Verdict.ready()

    run(story())


# ---- what it prints


def test_the_first_line_of_what_it_prints_is_the_reason(look: Look) -> None:
    assert look("echo; echo '  no peers'; echo 'retrying'; exit 1") == Verdict.failed("exit 1: no peers")


def test_what_it_complains_of_is_a_reason_too(look: Look) -> None:
    assert look("echo 'no peers' >&2; exit 1") == Verdict.failed("exit 1: no peers")


def test_a_line_that_is_not_ended_counts(look: Look) -> None:
    assert look("printf 'no peers'; exit 1") == Verdict.failed("exit 1: no peers")


def test_bytes_that_are_no_text_do_no_harm(look: Look) -> None:
    assert look(r"printf '\377\376 gr\303\274\303\237'; exit 1") == Verdict.failed("exit 1: \ufffd\ufffd grüß")


def test_a_reason_cannot_steer_a_terminal(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(r"printf '\033[2J\033]0;gotcha\007red\000\nready\n'; exit 1")
    assert main(["probe", f"exec:{path}", "--allow-exec"]) == 2
    said = capsys.readouterr().out
    assert said.startswith("failed: exit 1: \\x1b[2J\\x1b]0;gotcha\\x07red\\x00\n")
    assert all(char.isprintable() for line in said.splitlines() for char in line)


def test_only_so_much_of_what_it_prints_is_kept(look: Look) -> None:
    verdict = look("head -c 100000 /dev/zero | tr '\\0' x; exit 1")
    assert verdict == Verdict.failed("exit 1: " + "x" * MAX_OUTPUT_BYTES)
    assert MAX_OUTPUT_BYTES == 4096


def test_no_half_of_a_secret_stands_where_the_rest_was_cut_off(run: RunStory[Verdict], write: Write) -> None:
    path = write(f'head -c {MAX_OUTPUT_BYTES - 4} /dev/zero | tr "\\0" x; echo "$1"; exit 1')
    verdict = run(probe_of(f"exec:{path} ${{SECRET}}", SECRET="swordfish").check())
    assert verdict.reason.endswith("xxx***")


def test_a_program_that_prints_without_end_is_neither_held_up_nor_remembered(look: Look) -> None:
    tracemalloc.start()
    try:
        verdict = look(f"echo flood; head -c {64 * MIB} /dev/zero; exit 75")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert verdict == Verdict.not_ready("exit 75: flood")
    assert peak_bytes < 32 * MIB


def test_a_child_that_keeps_the_output_open_does_not_hold_up_the_verdict(look: Look, tmp_path: Path) -> None:
    began_s = time.monotonic()
    verdict = look(f"{FOR_EVER} &", f"echo $! > {tmp_path}/pid", "echo started; exit 75")
    try:
        assert verdict == Verdict.not_ready("exit 75: started")
        assert time.monotonic() - began_s < 10.0
    finally:
        kill(int((tmp_path / "pid").read_text()))


# ---- how it lives with others


def test_no_look_leaves_a_descriptor_open(run: RunStory[None], write: Write, tmp_path: Path, family: Family) -> None:
    def open_files() -> set[str]:
        return set(os.listdir("/dev/fd"))  # noqa: PTH208  names only; a path of it may be gone

    async def story() -> None:
        quick = probe_of(f"exec:{write()}")
        leaves_a_child = probe_of(f"exec:{write(f'{FOR_EVER} & echo $! > {tmp_path}/pid', name='leaves')}")
        await quick.check()  # what the loop opens for the first program it keeps
        await asyncio.to_thread(int)
        before = len(open_files())
        await quick.check()
        assert (await probe_of("exec:/nowhere/to/be/found").check()).outcome is Outcome.UNKNOWN
        await leaves_a_child.check()
        look = asyncio.create_task(family.probe.check())
        await family.begins()
        look.cancel()
        await cancelled(look)
        assert await asyncio.to_thread(becomes_true, lambda: len(open_files()) == before)

    try:
        run(story())
    finally:
        kill(int((tmp_path / "pid").read_text()))


def test_a_look_cancelled_between_the_end_and_the_last_words_leaves_nothing_open(
    run: RunStory[None], write: Write, tmp_path: Path
) -> None:
    """A transport that nobody closes is a warning, and those are errors here."""
    ended, child = tmp_path / "ended", tmp_path / "child"
    probe = probe_of(f"exec:{write(f'{FOR_EVER} &', f'echo $! > {child}', f'echo $$ > {ended}')}")

    def has_ended() -> bool:
        return ended.exists() and ended.read_text().endswith("\n") and has_been_buried(int(ended.read_text()))

    async def story() -> None:
        look = asyncio.create_task(probe.check())
        assert await asyncio.to_thread(becomes_true, has_ended)
        for _ in range(3):
            await asyncio.sleep(0)
        look.cancel()
        await cancelled(look)

    try:
        run(story())
    finally:
        kill(int(child.read_text()))


def test_many_programs_are_told_apart(run: RunStory[list[Verdict]], write: Write) -> None:
    path = write('echo "number $1"; exit $1')

    async def story() -> list[Verdict]:
        return await asyncio.gather(*(probe_of(f"exec:{path} {code}").check() for code in range(1, 21)))

    assert run(story()) == [Verdict.failed(f"exit {code}: number {code}") for code in range(1, 21)]


def test_it_can_look_from_a_thread_that_is_not_the_main_one(run: RunStory[Verdict], write: Write) -> None:
    seen: list[Verdict] = []
    probe = probe_of(f"exec:{write('exit 75')}")
    thread = threading.Thread(target=lambda: seen.append(run(probe.check())))
    thread.start()
    thread.join(10.0)
    assert seen == [Verdict.not_ready("exit 75")]


def test_a_program_keeps_its_own_ways_with_signals(look: Look) -> None:
    """Python ignores SIGPIPE; in a program that did, `yes` would complain of a reader that has left."""
    assert look("yes | head -n 1 >/dev/null; echo done; exit 1") == Verdict.failed("exit 1: done")
