"""The table [sharing], and which replicas check a service."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from svcnode.config import load
from svcnode.config.sharing import registry_from
from svcnode.core.address import RegistryAddress
from svcnode.core.errors import InvalidValueError
from svcnode.core.redaction import redacted
from tests.support.certificates import make_certificate

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.sharing import SharingSettings

HOST = RegistryAddress((("10.0.0.1", 2379),))
MINIMAL = '[node]\nname = "ledger"\n[sharing]\nregistry = "etcd://10.0.0.1"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "svcnode.toml"


def sharing_of(file: Path, text: str, **environ: str) -> SharingSettings:
    file.write_text(text)
    sharing = load(file, {"HOME": "/nowhere", **environ}).sharing
    assert sharing is not None
    return sharing


def options_of(file: Path, service: str) -> object:
    file.write_text(f"{MINIMAL}{service}")
    return load(file, {"HOME": "/nowhere"}).services[0].definition.options


def test_only_the_registry_and_the_name_of_the_node_are_required(file: Path) -> None:
    sharing = sharing_of(file, MINIMAL)
    assert (sharing.registry, sharing.tls, sharing.replica) == (HOST, None, socket.gethostname())
    assert (sharing.observers, sharing.lease_s, sharing.url) == (1, 10.0, "")
    text = f'{MINIMAL}replica = "host-a"\nobservers = 3\nlease = "1m"\nurl = "https://host-a:8420/"\n'
    sharing = sharing_of(file, text)
    assert (sharing.replica, sharing.observers, sharing.lease_s) == ("host-a", 3, 60.0)
    assert sharing.url == "https://host-a:8420"


def test_a_password_comes_from_a_variable_or_a_file_and_is_not_shown(file: Path, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("p@ss:word-1\n")
    (tmp_path / "url").write_text("etcd://svcnode:p%40ss:word-1@10.0.0.1\n")
    for keys in (
        'registry = "etcd://svcnode:${ETCD_PASSWORD}@10.0.0.1"',
        'registry = "etcd://svcnode@10.0.0.1"\npassword = "${ETCD_PASSWORD}"',
        f'registry = "etcd://svcnode@10.0.0.1"\npassword = {{ file = "{tmp_path}/password" }}',
        f'registry = {{ file = "{tmp_path}/url" }}',
    ):
        sharing = sharing_of(file, f'[node]\nname = "ledger"\n[sharing]\n{keys}\n', ETCD_PASSWORD="p@ss:word-1")
        assert sharing.registry._replace(password_file="", url_file="") == HOST._replace(
            username="svcnode", password="p@ss:word-1"
        )
        assert "word-1" not in f"{sharing!r}"
        assert "word-1" not in redacted(f"login failed: {sharing.registry.password}")


def test_a_registry_url_of_the_command_line_may_have_a_variable() -> None:
    url = "etcd://me:${PW}@a:1,b/x"
    assert registry_from(url, {"PW": "s/1"}) == RegistryAddress((("a", 1), ("b", 2379)), "/x", "me", "s/1")
    with pytest.raises(InvalidValueError, match="PW"):
        registry_from(url, {})


def test_the_tls_files_are_those_of_the_table(file: Path, tmp_path: Path) -> None:
    made = make_certificate(tmp_path, "etcd")
    text = f'{MINIMAL}tls = true\nca = "{made.certificate}"\n'
    tls = sharing_of(file, f'{text}client_certificate = "{made.certificate}"\nclient_key = "{made.key}"\n').tls
    assert tls is not None
    assert (tls.ca, tls.client_certificate, tls.client_key) == (*[str(made.certificate)] * 2, str(made.key))
    assert sharing_of(file, text).tls != tls
    assert sharing_of(file, f"{MINIMAL}tls = true\n").tls is not None


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("127.0.0.1:8420", ""),
        ("localhost:8420", ""),
        ("unix:/run/svcnode.sock", ""),
        ("10.0.0.5:0", ""),
        ("10.0.0.5:8420", "http://10.0.0.5:8420"),
        ("127.0.0.1:8420,[fd00::5]:8420", "http://[fd00::5]:8420"),
        ("0.0.0.0:8420", f"http://{socket.gethostname()}:8420"),
        ("[::]:8420", f"http://{socket.gethostname()}:8420"),
    ],
)
def test_by_default_the_url_is_an_address_that_others_can_reach(listen: str, url: str, file: Path) -> None:
    assert sharing_of(file, MINIMAL, SVCNODE_SERVER_LISTEN=listen).url == url


def test_a_shared_node_without_services_does_not_probe_its_store(file: Path) -> None:
    file.write_text(MINIMAL)
    for environ in ({"HOME": "/nowhere"}, {"HOME": "/home/me"}):
        settings = load(file, environ)
        assert (settings.services, settings.uses_store) == ((), False)


def test_a_definition_has_its_table_with_the_defaults_and_without_resolved_secrets(file: Path) -> None:
    (file.parent / "password").write_text("hidden-1")
    probe = f'{{ url = "redis://me@a", password = {{ file = "{file.parent}/password" }} }}'
    text = f'[[services]]\nid = "db"\nprobe = {probe}\nfall = 4\nobservers = 2\nchecked_by = ["a", "b"]\n'
    assert options_of(file, f'[defaults]\ninterval = "7s"\n{text}') == {
        "probe": {"url": "redis://me@a", "password": {"file": f"{file.parent}/password"}},
        "interval": "7s",
        "fall": 4,
        "observers": 2,
        "checked_by": ["a", "b"],
    }


def test_the_options_of_a_service_have_no_push_token_and_without_checks_no_key_about_them(file: Path) -> None:
    defaults = '[defaults]\nimpact = "critical"\ninterval = "7s"\n'
    assert options_of(file, f'{defaults}[[services]]\nid = "db"\nname = "Ledger"\nstatus = "Up"\n') == {
        "impact": "critical",
        "name": "Ledger",
        "status": "Up",
    }
    control = f'[control]\nlisten = "unix:{file.parent}/s"\n'
    service = '[[services]]\nid = "db"\nprobe = "heartbeat:30s"\npush_token = "0123456789abcdefgh"\n'
    file.write_text(f"{MINIMAL}{control}{service}")
    definition = load(file, {"HOME": "/nowhere"}).services[0].definition
    assert definition.options == {"probe": "heartbeat:30s"}
    assert "options" not in repr(definition)
