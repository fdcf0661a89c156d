"""The command that installs what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode import version
from svcnode.version import install_command

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def package_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version, "__file__", str(folder / "src" / "svcnode" / "version.py"))


def test_a_checkout_is_completed_by_make_because_its_environment_has_no_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Makefile", "pyproject.toml"):
        (tmp_path / name).touch()
    package_in(tmp_path, monkeypatch)
    assert install_command("redis") == "make setup"


def test_elsewhere_pip_installs_the_packages_of_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").touch()  # of another project
    package_in(tmp_path, monkeypatch)
    assert install_command("redis").startswith('pip install "redis')
