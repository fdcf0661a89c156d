"""The table [fleet]."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from svcnode.config import load

if TYPE_CHECKING:
    from svcnode.config import Settings


def load_text(text: str, folder: Path, **environ: str) -> Settings:
    file = folder / "svcnode.toml"
    file.write_text(text)
    return load(file, {"HOME": "/nowhere", **environ})


def test_a_registry_has_the_keys_of_sharing(tmp_path: Path) -> None:
    fleet = load_text(
        '[fleet]\nregistry = "etcd://viewer@10.0.0.1,10.0.0.2:2380/prod"\npassword = "${PASSWORD}"\ntls = true',
        tmp_path,
        PASSWORD="hunter2-secret",
    ).fleet
    assert fleet is not None
    assert fleet.registry is not None
    assert fleet.registry.endpoints == (("10.0.0.1", 2379), ("10.0.0.2", 2380))
    assert (fleet.registry.prefix, fleet.registry.password) == ("/prod", "hunter2-secret")
    assert fleet.tls is not None
    assert "hunter2-secret" not in fleet.location + repr(fleet)


def test_options_of_the_nodes_override_the_defaults(tmp_path: Path) -> None:
    settings = load_text(
        '[defaults]\ninterval = "20s"\nfall = 5\n[fleet]\nfile = "nodes.txt"\ninterval = "30s"\nimpact = "critical"\n'
        '[fleet.probe]\nbearer = "${TOKEN}"\n',
        tmp_path,
        TOKEN="hunter2-secret",
    )
    fleet = settings.fleet
    assert fleet is not None
    assert fleet.file == Path("nodes.txt")
    assert fleet.options == {"interval": "30s", "fall": 5, "impact": "critical"}
    assert fleet.probe_options == {"bearer": "hunter2-secret"}


def test_a_fleet_replaces_the_service_of_the_store(tmp_path: Path) -> None:
    settings = load_text('[fleet]\nfile = "nodes.txt"', tmp_path)
    assert not settings.uses_store
    assert settings.services == ()
