from __future__ import annotations

import gc
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

# A busy machine makes an example slow; that says nothing about the code.
settings.register_profile("svcnode", deadline=None)
settings.register_profile("quick", deadline=None, max_examples=20)  # for `make quick`
settings.load_profile("svcnode")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-wording", action="store_true", help="write the snapshots of tests/wording again")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give each run its own temporary folder: a second run would change the permissions of pytest's shared one."""
    if config.option.basetemp is None and not hasattr(config, "workerinput"):
        folder = Path(tempfile.mkdtemp(prefix="svcnode-tests-"))
        folder.chmod(0o711)  # servers run as other users
        config.option.basetemp = str(folder / "run")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_finish() -> None:
    """Thousands of collected tests stay in memory; freezing them keeps each garbage collection short."""
    gc.collect()
    gc.freeze()
