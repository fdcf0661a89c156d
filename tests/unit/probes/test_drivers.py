"""Kinds that need a package which only their extra brings."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from svcnode import probes
from svcnode.core.errors import ProbeError
from svcnode.probes import KINDS, make_probe

# What a kind imports, by the extra that brings it.
DRIVERS = {
    "amqp": {"aiormq", "yarl"},
    "grpc": {"h2"},
    "mysql": {"asyncmy"},
    "nats": {"nats"},
    "postgresql": {"psycopg"},
    "redis": {"redis"},
}
EXTRAS = {scheme: row.rpartition("[")[2].rstrip("]") for scheme, row in KINDS.items() if "[" in row}
WITHOUT = ["beacon+http", "etcd", "ethereum+http", "http", "ipfs+http", "memcached", "tcp"]

OTHER_EXTRAS = {"notify"}  # bring something else than a driver


def hide(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if they were not installed, and no kind had been loaded yet."""
    kinds = {row.partition(":")[0] for row in KINDS.values()}
    for name, module in [*sys.modules.items()]:
        if name in kinds:
            monkeypatch.setattr(probes, name.rpartition(".")[2], module)  # so that it is the same one again afterwards
        if name in kinds or name.partition(".")[0] in packages:
            monkeypatch.delitem(sys.modules, name)
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)


def extras_of_the_project() -> dict[str, list[str]]:
    project: dict[str, Any] = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


@pytest.mark.parametrize(
    ("scheme", "driver"), [(scheme, driver) for scheme, extra in EXTRAS.items() for driver in sorted(DRIVERS[extra])]
)
def test_without_its_driver_a_kind_says_what_to_install(
    scheme: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, driver)
    with pytest.raises(ProbeError) as caught:
        make_probe(f"{scheme}://me:pw@127.0.0.1:1")
    assert str(caught.value) == f'{scheme} probes need their driver: pip install "svcnode[{EXTRAS[scheme]}]"'


@pytest.mark.parametrize("scheme", WITHOUT)
def test_what_needs_no_driver_is_there_without_any(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, *set[str]().union(*DRIVERS.values()))
    assert hasattr(make_probe(f"{scheme}://127.0.0.1:1"), "check")


def test_every_extra_that_a_kind_names_is_one_of_the_project() -> None:
    assert set(EXTRAS.values()) == extras_of_the_project().keys() - {"all", *OTHER_EXTRAS}


def test_one_extra_brings_all_the_drivers() -> None:
    (everything,) = extras_of_the_project()["all"]
    assert everything == f"svcnode[{','.join(sorted({*EXTRAS.values(), *OTHER_EXTRAS}))}]"
