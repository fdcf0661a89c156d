"""Programs that run to their end."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from tests.support.agents import DEADLINE_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def run_to_end(command: Sequence[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """In a folder that is its home, and with nothing of our own environment that could lead it astray."""
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environ},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
        check=False,
    )
