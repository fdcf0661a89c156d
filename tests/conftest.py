from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.guard import guard

# A busy machine makes an example slow; that says nothing about the code.
settings.register_profile("svcnode", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)  # for `make quick`
settings.load_profile("svcnode")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-wording", action="store_true", help="write the snapshots of tests/wording again")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give each run a guard, and a folder for all temporary files, which is removed even if the run is killed."""
    if hasattr(config, "workerinput"):
        return
    folder = Path(tempfile.mkdtemp(prefix="svcnode-tests-"))
    guard(folder)
    folder.chmod(0o711)  # servers run as other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    Path(tempfile.tempdir).mkdir()
    Path(tempfile.tempdir).chmod(0o1777)
    if config.option.basetemp is None:
        config.option.basetemp = str(folder / "run")  # another run would change the permissions of pytest's shared one


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay in memory; freezing them keeps each garbage collection short."""
    gc.collect()
    gc.freeze()
