"""Kinds whose driver is an optional package."""

from __future__ import annotations

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

from svcnode.core.errors import ProbeError
from svcnode.probes import KINDS, make_probe

EXTRAS = {scheme: row.rpartition("[")[2].rstrip("]") for scheme, row in KINDS.items() if "[" in row}
WITHOUT = ["beacon+http", "etcd", "ethereum+http", "http", "ipfs+http", "memcached", "tcp"]

OTHER_EXTRAS = {"http2", "notify", "schedules"}  # not the driver of a kind


def extras_of_the_project() -> dict[str, list[str]]:
    project: dict[str, Any] = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


@cache
def driver_of(extra: str) -> str:
    """The package to import: that of the first requirement of the extra."""
    name = re.split(r"[^\w.-]", extras_of_the_project()[extra][0])[0]
    found = [package for package, owners in packages_distributions().items() if name in owners]
    return next(package for package in found if not package.startswith("_"))


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if the packages were not installed and no kind had been imported."""
    kinds = {row.partition(":")[0] for row in KINDS.values()} | {"svcnode.net.http2", "svcnode.net.websocket"}
    for name, module in [*sys.modules.items()]:
        if name in kinds:
            package, _, child = name.rpartition(".")
            monkeypatch.setattr(sys.modules[package], child, module)  # restored after the test
        if name in kinds or name.partition(".")[0] in packages:
            monkeypatch.delitem(sys.modules, name)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


@pytest.mark.parametrize("scheme", {extra: scheme for scheme, extra in EXTRAS.items()}.values())
def test_a_kind_without_its_driver_names_the_packages_to_install(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, driver_of(EXTRAS[scheme]))
    monkeypatch.setattr("svcnode.version.checkout_folder", lambda: None)
    with pytest.raises(ProbeError) as caught:
        make_probe(f"{scheme}://me:pw@127.0.0.1:1")
    assert scheme in str(caught.value)
    for package in extras_of_the_project()[EXTRAS[scheme]]:
        assert f'"{package.partition(">=")[0]}' in str(caught.value)


@pytest.mark.parametrize(("library", "schedule"), [("cronsim", "7 3 * * *"), ("oncalendar", "03:07")])
def test_a_schedule_without_its_library_names_the_packages_to_install(
    library: str, schedule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, library)
    monkeypatch.setattr("svcnode.version.checkout_folder", lambda: None)
    with pytest.raises(ProbeError, match=f'schedule: needs a library: .*"{library}'):
        make_probe({"url": "heartbeat:", "schedule": schedule, "grace": "1h"})


def test_a_kind_that_needs_no_driver_works_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, *map(driver_of, {*EXTRAS.values()}))
    for scheme in WITHOUT:
        assert hasattr(make_probe(f"{scheme}://127.0.0.1:1"), "check")


def test_every_extra_of_a_kind_is_in_the_project_and_in_the_extra_all() -> None:
    assert set(EXTRAS.values()) == extras_of_the_project().keys() - {"all", *OTHER_EXTRAS}
    (everything,) = extras_of_the_project()["all"]
    assert everything == f"svcnode[{','.join(sorted({*EXTRAS.values(), *OTHER_EXTRAS}))}]"
