"""All errors of a configuration, and none that follows from another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from svcnode.config import load
from svcnode.config.all_errors import find_errors
from svcnode.core.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "bad_configs"
ENVIRON = {"HOME": "/nowhere"}


def first_error(file: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(file, ENVIRON)
    return caught.value


def test_a_file_with_one_error_has_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    for file in sorted(Path().iterdir()):
        assert [str(error) for error in find_errors(file, ENVIRON)] == [str(first_error(file))], file


def keys_of(config: str, folder: Path) -> list[str | None]:
    file = folder / "svcnode.toml"
    file.write_text(config)
    return [error.key for error in find_errors(file, ENVIRON)]


WRONG_DEFAULTS = """
[defaults]
interval = "1s"
timeout = "2s"
[[services]]
id = "a"
probe = "file:/a"
[[services]]
id = "b"
probe = "file:/b"
"""


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        # Two errors of one table, and of several tables.
        ('[log]\nlevel = "x"\nformat = "y"\n[store]\npath = 1', ["log.level", "log.format", "store.path"]),
        # Errors that could follow from the first one are not reported.
        ('[server]\nlisten = ["https://h:1"]\n[server.tls]\ncertificate = "/no.pem"', ["server.tls"]),
        ('[security]\noperator_token = "short"\ntrust_loopback = false', ["security.operator_token"]),
        ('[security]\nallow_exec = 1\n[[services]]\nid = "a"\nprobe = "exec:/bin/true"', ["security.allow_exec"]),
        ('[[services]]\nid = "a"\nprobe = "file:/a"\ninterval = 30\ntimeout = "20s"', ["services.a.interval"]),
        (
            '[[services]]\nid = "a"\nprobe = { url = "heartbeat:", period = 5, grace = "1s" }',
            ["services.a.probe.period"],
        ),
        # An error of several keys, and of another key of the same service.
        ('[[services]]\nid = "a"\nprobe = "file:/a"\nstatus = "Up"\nimpact = "x"', ["services.a", "services.a.impact"]),
        ('[[services]]\nprobe = "file:/a"\nimpact = "x"', ["services[0]", "services[0].impact"]),
        ('[[services]]\nid = "a"\n[[services]]\nid = "b"', ["services.a", "services.b"]),
        # A wrong combination of defaults is one error, whatever the number of services.
        (WRONG_DEFAULTS, ["services.a"]),
        ("services = 5", ["services"]),
        ("services = [1, 2]", ["services[0]", "services[1]"]),
        ('[notify]\nwebhook = ["x", "https://h/", "y"]', ["notify.webhook[0]", "notify.webhook[2]"]),
    ],
)
def test_errors_that_do_not_follow_from_others_are_found(config: str, keys: list[str], tmp_path: Path) -> None:
    assert sorted(map(str, keys_of(config, tmp_path))) == sorted(keys)


def test_an_error_of_the_environment_is_found() -> None:
    errors = find_errors(None, {**ENVIRON, "SVCNODE_SERVER_DRAIN": "5", "SVCNODE_LOG_LEVEL": "x"})
    assert [error.key for error in errors] == ["log.level", "server.drain"]
    assert len(find_errors(None, {**ENVIRON, "SVCNODE_SERVER_DRAINS": "5"})) == 1
