from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.cli.conftest import Run

PROBED, FIXED = 'probe = "tcp://127.0.0.1:1"', 'status = "Up"'


def write(config: str) -> None:
    Path("svcnode.toml").write_text(config)


def lines_of(config: str, run: Run) -> list[str]:
    write(config)
    ended = run("check-config")
    assert (ended.code, ended.err) == (0, "")
    return ended.out.splitlines()


def rows_of(output: str) -> list[list[str]]:
    """The services, with what their checks found."""
    _, _, rest = output.partition("\nChecked once: ")
    return [line.split()[:2] for line in rest.partition("\nExposed:")[0].splitlines()[1:]]


@pytest.fixture
def bare_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A configuration that uses nothing of this machine."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return '[server]\nlisten = "127.0.0.1:0"\n[control]\nlisten = "unix:control.sock"\n'


def service(service_id: str, *keys: str) -> str:
    return "\n".join([f'[[services]]\nid = "{service_id}"', *keys, ""])


def test_all_errors_are_shown_each_with_its_line(run: Run) -> None:
    write("""[node]
nam = "a"
[server]
drain = 5
[[services]]
id = "db"
probe = "tpc://127.0.0.1:1"
impact = "critcal"
[[services]]
id = "db"
probe = { url = "http://127.0.0.1/", redirect = 1, method = 2 }
""")
    ended = run("check-config")
    assert (ended.code, ended.out) == (2, "")
    first, second = ["services.db.probe", "services.db.impact"], ["services.db.id", "services.db.probe.method"]
    keys = ["node.nam", "server.drain", *first, *second, "services.db.probe.redirect"]
    errors = ended.err.splitlines()
    assert sorted(error.split(": ")[1] for error in errors) == sorted(keys)
    assert [int(error.rpartition(":")[2].rstrip(")")) for error in errors] == [2, 4, 7, 8, 10, 11, 11]
    assert run("serve") == ended
    assert run("check-config", "--check") == ended, "no probe of an invalid configuration runs"


def test_a_service_is_shown_with_its_probe_and_without_secrets(run: Run) -> None:
    _, line = lines_of(service("api", 'probe = { url = "http://h/x", status = 204, bearer = "to-ken-1" }'), run)
    assert line.endswith(": http://h/x, bearer = ***, status = [204]")
    _, line = lines_of(service("api", 'probe = "http://me:pass-word@h/x"'), run)
    assert line.endswith(": http://me:***@h/x")


def test_each_probe_is_run_once_on_request(bare_node: str, run: Run) -> None:
    Path("spool").write_text("is good")
    good = 'probe = { url = "file:spool", contains = "good" }'
    config = bare_node + service("good", good) + service("set", FIXED)
    write(config)
    ended = run("check-config", "--check")
    assert (ended.code, rows_of(ended.out)) == (0, [["good", "ready"]])
    write(config + service("other", good.replace('"good"', '"other"')))
    ended = run("check-config", "--check")
    assert (ended.code, rows_of(ended.out)) == (1, [["good", "ready"], ["other", "failed"]])


def test_the_store_of_a_node_that_never_ran_is_not_checked(bare_node: str, run: Run) -> None:
    write(f'{bare_node}[store]\npath = "store.db"\n')
    ended = run("check-config", "--check")
    assert ended.code == 0
    assert "\nNot checked: " in ended.out
    assert not Path("store.db").exists()
    Path("store.db").write_text("not a database, and long enough to be read as one" * 20)
    ended = run("check-config", "--check")
    assert (ended.code, rows_of(ended.out)) == (1, [["store", "failed"]])


def test_a_replica_and_its_registry_are_shown_without_the_password(run: Run) -> None:
    sharing = '[sharing]\nregistry = "etcd://me:hidden-1@a/x"\nreplica = "host-a"\n'
    named = service("db", 'name = "good\\u202Elive"', PROBED)
    _, line, service_line = lines_of(f'[node]\nname = "ledger"\n{sharing}{named}', run)
    assert line == "  replica host-a, registry etcd://me:***@a:2379/x"
    assert service_line.startswith("  db: good\\u202elive ("), "control characters are escaped"


@pytest.mark.parametrize(
    ("services", "note"),
    [
        ([], ""),
        ([(PROBED,), (FIXED, 'impact = "none"')], ""),
        ([(PROBED, 'impact = "none"'), (FIXED, 'impact = "none"')], "impact"),
        ([(FIXED,)], "fixed status"),
        ([(FIXED, 'impact = "critical"'), (PROBED, 'impact = "none"')], "fixed status"),
        ([(PROBED, 'stale_after = "600s"')], ""),
        ([(PROBED, 'stale_after = "601s"'), (FIXED,)], "stale_after"),
        ([(PROBED, 'interval = "1h"', 'stale_after = "1d"')], ""),
    ],
)
def test_a_constant_node_health_and_a_stale_after_of_many_intervals_are_noted(
    services: list[tuple[str, ...]], note: str, run: Run
) -> None:
    lines = lines_of("".join(service(f"s{number}", *keys) for number, keys in enumerate(services)), run)
    found = [line for line in lines if line.startswith("Note: ")]
    assert len(found) == bool(note)
    assert all(note in line for line in found)


def test_a_target_of_services_that_are_not_in_the_file_is_noted(run: Run) -> None:
    target = '{ url = "https://a.example.com", services = ["s0", "dbb"], groups = ["storage"] }'
    lines = lines_of(f"[notify]\nwebhook = {target}\n" + service("s0", PROBED, 'group = "storage"'), run)
    (note,) = (line for line in lines if line.startswith("Note: "))
    assert '"dbb"' in note
    assert "storage" not in note


def test_what_is_published_is_shown_with_where_and_names_that_are_missing_are_noted(run: Run) -> None:
    public = '[public]\nservices = ["db", "nope"]\ngroups = ["Edge", "Far"]\nlisten = "127.0.0.1:8080"\n'
    config = public + service("db", FIXED) + service("web", PROBED, 'group = "Edge"') + service("hidden", PROBED)
    lines = lines_of(config, run)
    first = next(number for number, line in enumerate(lines) if line.startswith("Public"))
    assert "http://127.0.0.1:8080" in lines[first]
    assert [line.split(":")[0].strip() for line in lines[first + 1 : first + 3]] == ["db", "web"]
    notes = [line for line in lines[first + 3 :] if line.startswith("Note: [public]")]
    assert ["nope" in notes[0], "Far" in notes[1]] == [True, True]
    assert "hidden" not in "".join(lines[first:])


def test_a_public_path_is_shown_with_the_addresses_of_the_server(run: Run) -> None:
    lines = lines_of('[public]\nservices = ["db"]\npath = "/public"\n' + service("db", PROBED), run)
    assert [line for line in lines if line.endswith("http://127.0.0.1:8420/public")]
    assert not [line for line in lines_of(service("db", PROBED), run) if "ublic" in line]
