"""Records which tests reach which mutants, and runs chosen tests. PYTEST_DONT_REWRITE

`scripts/mutants.py` copies this file into the environment of a copy of the source. Each process of that environment
imports it first, so it also records what happens in processes that tests start, whatever their variables are. A process
finds the current test in a file of its nearest ancestor that runs pytest. Imports are few: each process pays for them.
"""

from __future__ import annotations

import builtins
import mmap
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import pytest

FOLDER = __file__.replace("mutant_hits.py", "mutant-hits")
NAME_SIZE = 4096
# Tests replace these to find calls that block.
_open, _read, _write, _close = os.open, os.read, os.write, os.close

_current: mmap.mmap | None = None
_looked = False
_seen: set[tuple[int, bytes]] = set()


def mutant_hit(number: int) -> None:
    """Called by the code where a mutant would be."""
    try:
        _record(number, _current_test())
    except OSError:  # a test took away files or descriptors
        return


def _record(number: int, test: bytes) -> None:
    if (number, test) in _seen:
        return
    _seen.add((number, test))
    file = _open(f"{FOLDER}/hits-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        _write(file, b"%d %s\n" % (number, test))
    finally:
        _close(file)


def _current_test() -> bytes:
    global _current, _looked  # noqa: PLW0603
    if not _looked:
        _looked = True
        _current = _find_current()
    if _current is None:
        return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0].encode()
    return _current[:NAME_SIZE].rstrip(b"\0")


def _find_current() -> mmap.mmap | None:
    process = os.getpid()
    while process > 1:
        try:
            return _map(process, os.O_RDONLY, mmap.PROT_READ)
        except FileNotFoundError:
            process = _parent(process)
    return None


def _map(process: int, flags: int, protection: int) -> mmap.mmap:
    file = _open(f"{FOLDER}/current-{process}", flags, 0o644)
    try:
        if flags & os.O_CREAT:
            os.ftruncate(file, NAME_SIZE)
        return mmap.mmap(file, NAME_SIZE, prot=protection)
    finally:
        _close(file)


def _parent(process: int) -> int:
    file = _open(f"/proc/{process}/stat", os.O_RDONLY)
    try:
        return int(_read(file, 4096).rpartition(b")")[2].split()[1])
    finally:
        _close(file)


builtins.__dict__["mutant_hit"] = mutant_hit


# ---- the plugin of pytest


def pytest_runtest_logstart(nodeid: str) -> None:
    _name_test(nodeid)


def pytest_runtest_logfinish() -> None:
    _name_test("")


def _name_test(nodeid: str) -> None:
    global _current, _looked  # noqa: PLW0603
    if _current is None:
        _current = _map(os.getpid(), os.O_RDWR | os.O_CREAT, mmap.PROT_READ | mmap.PROT_WRITE)
        _looked = True
    _current[:NAME_SIZE] = nodeid.encode()[:NAME_SIZE].ljust(NAME_SIZE, b"\0")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """One line per phase of each test, in the file that MUTANT_REPORT names."""
    if "PYTEST_XDIST_WORKER" not in os.environ and (path := os.environ.get("MUTANT_REPORT")):
        import json

        with open(path, "a") as file:  # noqa: PTH123 - pathlib is not imported
            file.write(json.dumps([report.nodeid, report.outcome, report.duration]) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Only the tests that are listed in the file that MUTANT_TESTS names, in its order."""
    if path := os.environ.get("MUTANT_TESTS"):
        with open(path) as file:  # noqa: PTH123
            order = {nodeid: number for number, nodeid in enumerate(file.read().splitlines())}
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
