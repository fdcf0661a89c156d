"""What a program may register through the control socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from svcnode.config import ControlSettings, load
from svcnode.config.registration import PATH, define_registered
from svcnode.core.errors import ConfigError
from svcnode.core.model import Impact
from svcnode.node.definition import PushAccess
from svcnode.probes.restricted import FILE_OPTIONS, LOCAL_KINDS

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.config import Settings
    from svcnode.node.definition import Definition

ENVIRON = {"SECRET": "hunter2hunter2"}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "svcnode.toml"
    file.write_text('[defaults]\ninterval = "7s"\nimpact = "critical"\n[[services]]\nid = "a"\nprobe = "tcp://a:1"\n')
    return load(file, {"HOME": "/nowhere"})


def with_exec(settings: Settings) -> Settings:
    assert isinstance(settings.control, ControlSettings)
    return settings._replace(control=settings.control._replace(allows_exec=True))


def register(settings: Settings, **options: Any) -> Definition:
    return define_registered("indexer", options, settings, ENVIRON).definition


def error_of(settings: Settings, **options: Any) -> tuple[tuple[str | int, ...], str]:
    """The path of the key that is refused, and the text."""
    with pytest.raises(ConfigError) as caught:
        register(settings, **options)
    assert caught.value.path[: len(PATH)] == PATH
    return caught.value.path[len(PATH) :], str(caught.value)


def test_a_definition_has_the_options_of_its_request_with_the_defaults(settings: Settings) -> None:
    heartbeats = register(
        settings, ttl="5s", name="Indexer", description="of blocks", group="chain", runbook="https://wiki/"
    )
    service = heartbeats.service
    assert service.runbook == "https://wiki/"
    assert (service.id, service.name, service.group, service.policy.ttl_s) == ("indexer", "Indexer", "chain", 5.0)
    assert heartbeats.probe_config is None
    assert register(settings, ttl="5s").options == {"ttl": "5s", "impact": "critical"}
    definition = register(settings, probe={"url": "tcp://b:1"}, fall=4)
    assert definition.options == {"probe": {"url": "tcp://b:1"}, "fall": 4, "interval": "7s", "impact": "critical"}
    assert definition.probe_config is not None
    assert (definition.probe_config.schedule.interval_s, definition.service.impact) == (7.0, Impact.CRITICAL)


def test_only_a_shared_node_accepts_the_replicas_that_check_a_service(settings: Settings, tmp_path: Path) -> None:
    assert error_of(settings, probe="tcp://b:1", observers=2)[0] == ("observers",)
    file = tmp_path / "shared.toml"
    file.write_text('[node]\nname = "ledger"\n[sharing]\nregistry = "etcd://a"\n')
    shared = load(file, {"HOME": "/nowhere"})
    definition = register(shared, probe="tcp://b:1", observers=2, checked_by=["a", "b"])
    assert definition.options == {"probe": "tcp://b:1", "observers": 2, "checked_by": ["a", "b"]}
    assert error_of(shared, probe="tcp://b:1", observers=8)[0] == ("observers",)
    assert error_of(shared, ttl="5s", checked_by=["a"])[0] == ("checked_by",)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({}, ()),
        ({"ttl": "5s", "probe": "tcp://127.0.0.1:1"}, ()),
        ({"ttl": "5s", "id": "other"}, ("id",)),
        ({"ttl": "5s", "status": "Up"}, ("status",)),
        ({"ttl": "0s"}, ("ttl",)),
        ({"ttl": "5s?rise=2"}, ("ttl",)),
        ({"ttl": "5s", "rise": 2}, ("rise",)),
        ({"probe": {"url": "http://127.0.0.1", "expcet": 5}}, ("probe", "expcet")),
        ({"probe": "tcp://127.0.0.1:1", "timeout": "9s"}, ()),  # longer than the interval of the defaults
    ],
)
def test_an_error_has_the_path_of_the_key(settings: Settings, options: Any, path: tuple[str, ...]) -> None:
    assert error_of(settings, **options)[0] == path


@pytest.mark.parametrize(
    ("probe", "path"),
    [
        *((f"{kind}:/bin/true", ("probe",)) for kind in sorted(LOCAL_KINDS)),
        ("EXEC:/bin/true", ("probe",)),
        ({"url": "exec:/bin/true"}, ("probe",)),
        *(({"url": "https://a", option: "/etc/hostname"}, ("probe", option)) for option in sorted(FILE_OPTIONS)),
        ("redis://:${SECRET}@127.0.0.1", ("probe",)),
        ({"url": "http://127.0.0.1", "headers": {"Authorization": "${SECRET}"}}, ("probe",)),
        ({"url": "redis://127.0.0.1", "password": {"file": "/etc/hostname"}}, ("probe",)),
    ],
)
def test_a_probe_that_reads_the_machine_or_a_secret_of_the_node_is_refused(
    settings: Settings, probe: Any, path: tuple[str, ...]
) -> None:
    refused, text = error_of(settings, probe=probe)
    assert refused == path
    assert "allow_exec" in text


def test_allow_exec_allows_programs_files_and_secrets(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hunter2hunter2")
    for probe in (
        "exec:/bin/true",
        f"file:{tmp_path}/password",
        "redis://:${SECRET}@127.0.0.1",
        {"url": "redis://127.0.0.1", "password": {"file": f"{tmp_path}/password"}},
    ):
        assert register(with_exec(settings), probe=probe).probe_config is not None


# ---- in the registry, without a node


def test_a_registration_in_the_registry_has_the_built_in_defaults() -> None:
    definition = define_registered("web", {"probe": "tcp://a:1", "checked_by": ["host-1"]}, None, ENVIRON).definition
    assert definition.options == {"probe": "tcp://a:1", "checked_by": ["host-1"]}
    assert definition.service.impact is Impact.PARTIAL


@pytest.mark.parametrize("probe", ["disk:/", "exec:/bin/true", "redis://:hunter2hunter2@a", "tcp://${SECRET}:1"])
def test_a_probe_in_the_registry_holds_no_secret_and_reads_no_machine(probe: str) -> None:
    with pytest.raises(ConfigError) as caught:
        define_registered("web", {"probe": probe}, None, ENVIRON)
    assert caught.value.path == (*PATH, "probe")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("token", ["${SECRET}", {"file": "/etc/hostname"}, "short", "with a space 0123"])
def test_a_push_token_is_a_text_and_no_secret_of_the_node(settings: Settings, token: object) -> None:
    path, _ = error_of(settings, ttl="15s", push_token=token)
    assert path == ("push_token",)


def test_a_push_token_is_for_heartbeats_and_not_for_the_registry(settings: Settings) -> None:
    token = "0123456789abcdef"
    registered = define_registered("indexer", {"ttl": "15s", "push_token": token, "push_get": True}, settings, ENVIRON)
    assert registered.push == PushAccess(token, by_get=True)
    assert "push_token" not in (registered.definition.options or {})
    assert error_of(settings, probe="tcp://a:1", push_token=token)[0] == ("push_token",)
    with pytest.raises(ConfigError):
        define_registered("indexer", {"ttl": "15s", "push_token": token}, None, ENVIRON)
