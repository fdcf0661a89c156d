"""The version of the package, and what its extras need."""

from __future__ import annotations

__version__ = "0.1.0"


def install_command(extra: str) -> str:
    """Installs the packages of an extra into the environment of svcnode, however svcnode came there."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        found = [row.partition(";")[0].strip() for row in requires("svcnode") or () if f"extra == '{extra}'" in row]
    except PackageNotFoundError:  # run from its sources
        found = []
    names = [f'"{name}"' for name in found or [f"svcnode[{extra}]"]]
    return f"pip install {' '.join(names)}"
