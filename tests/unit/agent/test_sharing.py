from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.agent.sharing import check_sharing_change
from svcnode.config import Settings, load
from svcnode.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

NODE = '[node]\nname = "ledger"\n'
SHARED = f'{NODE}[sharing]\nregistry = "etcd://me:first@10.0.0.1"\nreplica = "a"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "svcnode.toml"


def loaded(file: Path, text: str) -> Settings:
    file.write_text(text)
    return load(file, {"HOME": "/nowhere"})


@pytest.mark.parametrize(
    "access",
    ["me:second@10.0.0.1", "other:second@10.0.0.1", '10.0.0.1"\ntls = true\nca = "/etc/ssl/certs/ca-certificates.crt'],
)
def test_the_login_and_the_certificates_of_the_registry_can_change_at_a_reload(access: str, file: Path) -> None:
    old, new = loaded(file, SHARED), loaded(file, SHARED.replace("me:first@10.0.0.1", access))
    check_sharing_change(old, new)
    check_sharing_change(new, old)


@pytest.mark.parametrize("text", [NODE, SHARED, f"{SHARED}observers = 3\n"])
def test_observers_and_everything_else_can_change_at_a_reload(text: str, file: Path) -> None:
    old = loaded(file, text)
    new = loaded(file, f'{text.replace("observers = 3", "observers = 5")}[log]\nlevel = "debug"\n')
    check_sharing_change(old, new)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (NODE, None),
        (SHARED.replace("ledger", "other"), None),
        (SHARED.replace("10.0.0.1", "10.0.0.2"), "sharing.registry"),
        (SHARED.replace("10.0.0.1", "10.0.0.1/other"), "sharing.registry"),
        (SHARED.replace('"a"', '"b"'), "sharing.replica"),
        (f'{SHARED}lease = "20s"\n', "sharing.lease"),
        (f'{SHARED}url = "http://10.0.0.5:8420"\n', "sharing.url"),
    ],
)
def test_any_other_change_of_sharing_needs_a_restart(text: str, key: str | None, file: Path) -> None:
    old, new = loaded(file, SHARED), loaded(file, text)
    for before, after in ((old, new), (new, old)):
        with pytest.raises(ConfigError, match="restart") as caught:
            check_sharing_change(before, after)
        assert caught.value.key == key
        assert "second" not in str(caught.value)
