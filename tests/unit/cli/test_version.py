from __future__ import annotations

import json
import platform
from typing import TYPE_CHECKING

from svcnode.cli import main
from svcnode.version import __version__

if TYPE_CHECKING:
    import pytest


def test_the_versions_are_shown_as_text_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"svcnode {__version__} (")
    assert main(["version", "--json"]) == 0
    versions = json.loads(capsys.readouterr().out)
    assert (versions["svcnode"], versions["interface"]) == (__version__, "v0.0.1")
    assert versions["python"] == platform.python_version()
