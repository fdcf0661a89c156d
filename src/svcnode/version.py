"""The version of the package, and what its extras need."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"


def checkout_folder() -> Path | None:
    """The folder of the sources that svcnode runs from; None if it is installed."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "Makefile").is_file() and (folder / "pyproject.toml").is_file() else None


def install_command(extra: str) -> str:
    """Installs the packages of an extra into the environment of svcnode, however svcnode came there."""
    if checkout_folder() is not None:
        return "make setup"  # which installs all of them; the environment of a checkout has no pip
    from importlib.metadata import PackageNotFoundError, requires

    try:
        found = [row.partition(";")[0].strip() for row in requires("svcnode") or () if f"extra == '{extra}'" in row]
    except PackageNotFoundError:  # run from its sources
        found = []
    names = [f'"{name}"' for name in found or [f"svcnode[{extra}]"]]
    return f"pip install {' '.join(names)}"
