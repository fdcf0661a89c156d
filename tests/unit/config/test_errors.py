"""All errors of a configuration are found in one pass, and none that follows from another one."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest

from svcnode.config import load, reading
from svcnode.config.toml_lines import TomlLines
from svcnode.core.errors import MAX_SHOWN_ERRORS, ConfigError, error_lines
from svcnode.core.redaction import MASK
from svcnode.probes import make_probe

if TYPE_CHECKING:
    from pathlib import Path

ENVIRON = {"HOME": "/nowhere"}


def error_of(config: str, folder: Path, **environ: str) -> ConfigError:
    file = folder / "svcnode.toml"
    file.write_text(config)
    with pytest.raises(ConfigError) as caught:
        load(file, ENVIRON | environ)
    return caught.value


def keys_of(error: ConfigError) -> list[str | None]:
    return [one.key for one in (error, *error.others)]


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
        (
            'node = 1\n[server]\ndrain = 5\n[[services]]\nid = ""',
            ["node", "server.drain", "services[0]", "services[0].id"],
        ),
        (
            '[nodes]\n[control]\ngroup = "no-such-group"\n[sharing]',
            ["nodes", "control.group", "sharing", "sharing.registry"],
        ),
        # Errors that could follow from the first one are not reported.
        (
            '[server]\nlisten = ["https://h:1"]\n[server.tls]\ncertificate = "/no.pem"',
            ["server.tls", "server.tls.certificate"],
        ),
        ('[security]\noperator_token = "short"\ntrust_loopback = false', ["security.operator_token"]),
        ('[security]\nallow_exec = 1\n[[services]]\nid = "a"\nprobe = "exec:/bin/true"', ["security.allow_exec"]),
        ('[[services]]\nid = "a"\nprobe = "file:/a"\ninterval = 30\ntimeout = "20s"', ["services.a.interval"]),
        ('[[services]]\nid = "a"\nprob = "file:/a"', ["services.a.prob"]),
        (
            '[[services]]\nid = "a"\nprobe = { url = "heartbeat:", period = 5, grace = "1s" }',
            ["services.a.probe.period"],
        ),
        # Errors of several options and of other keys of the same service.
        (
            '[[services]]\nid = "a"\nprobe.url = "http://a"\nprobe.redirects = "x"\nprobe.expcet = 1\ntimeout = "20s"',
            ["services.a", "services.a.probe.redirects", "services.a.probe.expcet"],
        ),
        ('[[services]]\nid = "a"\nprobe = "file:/a"\nstatus = "Up"\nimpact = "x"', ["services.a", "services.a.impact"]),
        ('[[services]]\nprobe = "file:/a"\nimpact = "x"', ["services[0]", "services[0].impact"]),
        ('[[services]]\nid = "a"\n[[services]]\nid = "b"', ["services.a", "services.b"]),
        # A wrong combination of defaults is one error, whatever the number of services.
        (WRONG_DEFAULTS, ["defaults"]),
        ("services = 5", ["services"]),
        ("services = [1, 2]", ["services[0]", "services[1]"]),
        ('[notify]\nwebhook = ["x", "https://h/", "y"]', ["notify.webhook[0]", "notify.webhook[2]"]),
        ('[server]\nlisten = ["a", "b:1", "c"]', ["server.listen[0]", "server.listen[2]"]),
    ],
)
def test_errors_that_do_not_follow_from_others_are_found(config: str, keys: list[str], tmp_path: Path) -> None:
    assert sorted(map(str, keys_of(error_of(config, tmp_path)))) == sorted(keys)


def test_errors_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    error = error_of('[[services]]\nid = "a"\n[server]\ndrain = 5\n[node]\nname = 1', tmp_path, SVCNODE_LOG_LEVEL="x")
    assert keys_of(error) == ["log.level", "services.a", "server.drain", "node.name"]
    assert [one.line for one in (error, *error.others)] == [None, 1, 4, 6]


def test_a_secret_of_a_later_table_is_not_shown_in_an_error(tmp_path: Path) -> None:
    secret = "hidden-in-a-later-table"
    error = error_of(f'[log]\nlevel = "{secret}"\n[security]\noperator_token = "{secret}"', tmp_path)
    assert secret not in str(error)
    assert MASK in str(error)


def test_only_the_first_of_very_many_errors_are_shown(tmp_path: Path) -> None:
    count = MAX_SHOWN_ERRORS + 5
    error = error_of("".join(f'[[services]]\nid = "{index}"\n' for index in range(count)), tmp_path)
    assert len(error.texts) == count
    assert len(error_lines(error)) == MAX_SHOWN_ERRORS + 1


def work_of(services_count: int, errors: int, folder: Path) -> dict[str, int]:
    """How often the expensive steps run for a file with errors."""
    table = '[[services]]\nid = "s{0}"\nprobe = "tcp://a:1"\ninterval = {1}\n'
    config = "".join(table.format(index, "5" if index < errors else '"5s"') for index in range(services_count))
    with (
        patch.object(reading, "read_table", wraps=reading.read_table) as read,
        patch("svcnode.config.services.make_probe", wraps=make_probe) as probes,
        patch.object(TomlLines, "_scan", autospec=True, side_effect=TomlLines._scan) as scans,
    ):
        assert len(error_of(config, folder).texts) == errors
    return {"tables": read.call_count, "probes": probes.call_count, "scans": scans.call_count}


def test_the_work_does_not_grow_with_the_number_of_errors(tmp_path: Path) -> None:
    assert work_of(50, 1, tmp_path) == work_of(50, 50, tmp_path)
    assert work_of(50, 50, tmp_path)["probes"] == 50
    assert work_of(50, 50, tmp_path)["scans"] == 1
