from __future__ import annotations

import os
import pwd
import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from svcnode import __version__
from svcnode.config import (
    HistorySettings,
    OperatorSettings,
    Override,
    Settings,
    TlsSettings,
    find_file,
    find_node_file,
    load,
    load_control,
    load_history,
    load_notify,
    node_environ,
)
from svcnode.config.settings import RESERVED_SEGMENTS, node_folder_name
from svcnode.core.address import Address
from svcnode.core.errors import ConfigError
from svcnode.core.model import REPORTED_POLICY, Impact, Policy, Schedule, Status
from svcnode.core.redaction import redacted
from svcnode.core.url import Url
from svcnode.node.definition import ProbeConfig, PushAccess
from svcnode.operator import ROUTES
from svcnode.probes.http import HttpProbe
from svcnode.probes.sqlite import STORE_APPLICATION_ID, SqliteProbe

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.config import ServiceSettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "svcnode.toml"


def loaded(file: Path, text: str, environ: Mapping[str, str] | None = None, *flags: Override) -> Settings:
    file.write_text(text)
    return load(file, environ or {}, flags)


def the_service(file: Path, text: str, environ: Mapping[str, str] | None = None) -> ServiceSettings:
    (service,) = loaded(file, text, environ).services
    return service


def refused_key(file: Path, text: str, environ: Mapping[str, str] | None = None) -> str | None:
    with pytest.raises(ConfigError) as caught:
        loaded(file, text, environ)
    return caught.value.key


# ---- defaults


def test_by_default_the_node_probes_its_own_store_and_listens_on_loopback() -> None:
    store = Path("/home/me/.local/state/svcnode/store.db")
    defaults = load(None, {"HOME": "/home/me"})
    assert defaults.node_name == socket.gethostname()
    assert defaults.node_version == f"v{__version__}"
    assert defaults.listen == (Address(scheme="http", host="127.0.0.1", port=8420),)
    assert defaults.prefixes == ("/svc",)
    assert defaults.drain_s is None
    assert defaults.tls is None
    assert defaults.operator == OperatorSettings(listen=(), token=None, trusts_loopback=True)
    assert defaults.history == HistorySettings(
        path=store.parent / "nodes" / node_folder_name(socket.gethostname()) / "history.db",
        max_age_s=400 * 86_400.0,
        max_bytes=256 * 1024**2,
        shared_path=store.with_name("history.db"),
    )
    assert (defaults.log_level, defaults.log_format) == ("info", "auto")
    assert defaults.store_path == store
    assert defaults.uses_store
    (service,) = defaults.services
    assert (service.id, service.status) == ("store", None)
    assert service.definition.probe_config == ProbeConfig(SqliteProbe.for_path(store, STORE_APPLICATION_ID), Schedule())


HOME = pwd.getpwuid(os.getuid()).pw_dir


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"STATE_DIRECTORY": "/var/lib/svcnode", "HOME": "/root"}, "/var/lib/svcnode/store.db"),
        ({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}, "/var/lib/a/store.db"),
        ({"XDG_STATE_HOME": "/state", "HOME": "/root"}, "/state/svcnode/store.db"),
        ({"XDG_STATE_HOME": "", "HOME": "/root"}, "/root/.local/state/svcnode/store.db"),
        ({"SVCNODE_STORE_PATH": "here.db", "STATE_DIRECTORY": "/var/lib/svcnode"}, "here.db"),
        ({}, f"{HOME}/.local/state/svcnode/store.db"),
        ({"HOME": ""}, f"{HOME}/.local/state/svcnode/store.db"),
    ],
)
def test_the_store_is_in_the_state_folder_and_the_history_of_each_node_in_a_folder_beside_it(
    environ: dict[str, str], path: str
) -> None:
    loads = load(None, {**environ, "SVCNODE_NODE_NAME": "validator-7"})
    assert loads.store_path == Path(path)
    if "SVCNODE_STORE_PATH" not in environ:
        assert loads.history.path == loads.store_path.parent / "nodes" / "validator-7" / "history.db"
        assert loads.history.shared_path == loads.store_path.with_name("history.db")


def no_such_user(_: int) -> NoReturn:
    raise KeyError("uid not found")


def test_without_a_home_folder_only_a_node_that_needs_its_store_must_set_a_path(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    assert refused_key(file, "") == "store.path"
    service = '[[services]]\nid = "db"\nstatus = "Up"\n'
    history = loaded(file, service).history
    assert (history.path, history.shared_path, history.has_folder) == (None, None, False)
    history = loaded(file, f"[history]\nkeep = false\n{service}").history
    assert (history.path, history.has_folder) == (None, True)
    loads = loaded(file, '[history]\npath = "a.db"\n[store]\npath = "b.db"')
    assert (loads.history.path, loads.store_path) == (Path("a.db"), Path("b.db"))


AWKWARD_NAMES = (
    *("a", "A", "ä", "Ä", "a b", "a/b", "a-b", "..", ".", "../a", "/", "~", "a~", "a.", ".a", "-", "con", "nodes"),
    *("x" * 64, "x" * 65, "x" * 5000, "é", "e\u0301", "名前", "🙂", "a\u200b"),
)


def test_each_node_name_has_a_folder_of_its_own_on_any_file_system() -> None:
    folders = [node_folder_name(name) for name in AWKWARD_NAMES]
    folders += [node_folder_name(folder) for folder in folders if "~" in folder]
    assert len({folder.casefold() for folder in folders}) == len(folders)
    for folder in folders:
        assert re.fullmatch(r"[a-z0-9][a-z0-9._~-]{0,63}", folder)


def test_the_defaults_apply_to_the_store(file: Path) -> None:
    service = the_service(file, '[defaults]\ninterval = "500ms"\nfall = 1\nstart_period = "0s"\n')
    assert service.definition.probe_config is not None
    assert service.definition.probe_config.schedule == Schedule(interval_s=0.5, timeout_s=0.25)
    assert service.definition.service.policy == Policy(fall=1, start_period_s=0.0, stale_after_s=1.75, window_s=5.0)


# ---- finding the file


def test_a_command_about_a_node_finds_the_file_and_the_socket_of_the_node_that_systemd_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    system, runtime = system_file(tmp_path, monkeypatch), tmp_path / "run" / "svcnode"
    assert find_node_file(None) is None
    system.write_text("[node]\n")
    assert (find_node_file(None), find_file(None)) == (system, None)
    assert socket_of(system, HOME="/home").parts[1] == "home"  # systemd does not run it
    runtime.mkdir(parents=True)
    assert socket_of(system, HOME="/home") == runtime / "control.sock"
    assert socket_of(system, STATE_DIRECTORY="/state").parts[1] == "state"  # in the environment of the node
    Path("svcnode.toml").write_text("[node]\n")
    assert find_node_file(None) == Path("svcnode.toml")
    assert socket_of(Path("svcnode.toml"), HOME="/home").parts[1] == "home"


def system_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/etc/svcnode/svcnode.toml of another root."""
    (folder / "etc" / "svcnode").mkdir(parents=True)
    directories = {"RUNTIME_DIRECTORY": folder / "run", "STATE_DIRECTORY": folder / "var" / "lib"}
    monkeypatch.setattr("svcnode.config.SYSTEM_FOLDER", folder / "etc" / "svcnode")
    monkeypatch.setattr("svcnode.config.SYSTEM_FILE", folder / "etc" / "svcnode" / "svcnode.toml")
    monkeypatch.setattr("svcnode.config.SYSTEM_DIRECTORIES", directories)
    return folder / "etc" / "svcnode" / "svcnode.toml"


@pytest.mark.parametrize(("name", "unit"), [("svcnode", "svcnode"), ("validator-8", "svcnode@validator-8")])
def test_commands_find_the_folders_of_the_unit_that_runs_the_node(
    name: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = system_file(tmp_path, monkeypatch).with_stem(name)
    runtime, state = tmp_path / "run" / unit, tmp_path / "var" / "lib" / unit
    state.mkdir(parents=True)
    assert node_environ(file, {"A": "b"}) == {"A": "b", "STATE_DIRECTORY": str(state)}
    runtime.mkdir(parents=True)
    both = {"RUNTIME_DIRECTORY": str(runtime), "STATE_DIRECTORY": str(state)}
    assert node_environ(file, {}) == both
    given = {"STATE_DIRECTORY": "/state"}  # the environment of the node itself
    assert node_environ(file, given) == given
    file.write_text(f'[node]\nname = "{name}"\n')
    assert socket_of(file) == runtime / "control.sock"
    assert load_history(file, {}).path == state / "nodes" / name / "history.db"
    monkeypatch.chdir(file.parent)
    assert node_environ(Path(file.name), {}) == both


def test_other_files_have_no_folders_of_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = system_file(tmp_path, monkeypatch)
    (tmp_path / "run" / "svcnode").mkdir(parents=True)
    others = (None, tmp_path / "svcnode.toml", system.with_name("svcnode"), system.with_name("other.toml"))
    assert [node_environ(file, {}) for file in others] == [{}] * len(others)


def socket_of(file: Path, **environ: str) -> Path:
    control = load_control(file, environ)
    assert control is not None
    return control.listen


def test_a_dangling_link_or_a_file_that_cannot_be_examined_counts_as_a_file_and_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("svcnode.toml").symlink_to("gone.toml")
    hidden = Path("x" * 300) / "svcnode.toml"
    for file in (Path("svcnode.toml"), hidden):
        monkeypatch.setattr("svcnode.config.DEFAULT_FILE", file)
        assert find_file(None) == file
        with pytest.raises(ConfigError) as caught:
            load(find_file(None), {})
        assert caught.value.file == file
        assert isinstance(caught.value.__cause__, OSError)


# ---- services


def test_a_service_has_the_values_of_its_table(file: Path) -> None:
    text = """
        [[services]]
        id = "db-1"
        name = "Ledger database"
        description = "Holds the ledger"
        group = "storage"
        impact = "critical"
        probe = "sqlite:/var/lib/ledger.db"
        interval = "5s"
        transition_interval = "2s"
        timeout = "1500ms"
        max_latency = "500ms"
        rise = 4
        fall = 5
        start_period = "2m"
        stale_after = "1h"
    """
    service = the_service(file, text)
    about = service.definition.service
    assert (about.id, about.name, about.description) == ("db-1", "Ledger database", "Holds the ledger")
    assert about.group == "storage"
    assert about.impact is Impact.CRITICAL
    assert about.policy == Policy(rise=4, fall=5, start_period_s=120.0, stale_after_s=3600.0, window_s=50.0)
    assert service.definition.probe_config == ProbeConfig(
        SqliteProbe.for_path(Path("/var/lib/ledger.db")),
        Schedule(interval_s=5.0, timeout_s=1.5, transition_interval_s=2.0),
        max_latency_s=0.5,
    )
    assert service.status is None


def test_a_service_needs_only_an_id_and_a_probe_or_a_fixed_status(file: Path) -> None:
    about = the_service(file, '[[services]]\nid = "db"\nprobe = "sqlite:a.db"\n').definition.service
    assert (about.name, about.description, about.impact) == ("db", "", Impact.PARTIAL)
    assert about.policy == Policy(stale_after_s=33.0, window_s=100.0)
    service = the_service(file, '[[services]]\nid = "db"\nstatus = "Initializing"\n')
    assert service.status is Status.INITIALIZING
    assert service.definition.probe_config is None
    assert service.definition.service.policy == REPORTED_POLICY


def test_the_impact_has_a_default_for_all_services(file: Path) -> None:
    text = (
        '[defaults]\nimpact = "critical"\n[[services]]\nid = "a"\nprobe = "sqlite:a"\n'
        '[[services]]\nid = "b"\nstatus = "Up"\nimpact = "none"\n[[services]]\nid = "c"\nstatus = "Up"\n'
    )
    impacts = [service.definition.service.impact for service in loaded(file, text).services]
    assert impacts == [Impact.CRITICAL, Impact.NONE, Impact.CRITICAL]


# ---- probes


HTTP = """
    [[services]]
    id = "api"
"""


def test_variables_and_secret_files_are_inserted(file: Path) -> None:
    secret = file.with_name("token.txt")
    secret.write_text("let-me-in-by-the-file\n")
    text = f"""{HTTP}
        [services.probe]
        url = "http://${{API_HOST}}/health"
        bearer = {{ file = "{secret}" }}
        headers = {{ X-Key = "${{API_KEY}}" }}
    """
    probe_config = the_service(
        file, text, {"API_HOST": "127.0.0.1", "API_KEY": "let-me-in-by-the-header"}
    ).definition.probe_config
    assert probe_config is not None
    assert probe_config.probe == HttpProbe(
        Url(scheme="http", host="127.0.0.1", path="/health"),
        bearer="let-me-in-by-the-file",
        headers=(("X-Key", "let-me-in-by-the-header"),),
    )
    assert "let-me-in" not in repr(probe_config)


def test_a_heartbeat_is_not_probed(file: Path) -> None:
    text = f'[defaults]\ninterval = "1s"\nfall = 7\n{HTTP}probe = "heartbeat:30s"\n'
    definition = the_service(file, text).definition
    assert definition.probe_config is None
    assert definition.service.policy == Policy(rise=1, fall=1, start_period_s=0.0, window=0, ttl_s=30.0)


EXEC = '[[services]]\nid = "own"\nprobe = "exec:/bin/true"\n'


def test_an_exec_probe_is_accepted_only_if_allowed(file: Path) -> None:
    assert the_service(file, f"[security]\nallow_exec = true\n{EXEC}").id == "own"
    for environ in ({}, {"SVCNODE_SECURITY_ALLOW_EXEC": "false"}):
        assert refused_key(file, EXEC, environ) == "services.own.probe"


# ---- addresses and prefixes


@pytest.mark.parametrize("given_text", ['"127.0.0.1:1, [::1]:2 ,unix:/a"', '["127.0.0.1:1", "[::1]:2", "unix:/a"]'])
def test_several_addresses_are_a_list_or_separated_by_commas(given_text: str, file: Path) -> None:
    assert loaded(file, f"[server]\nlisten = {given_text}\n").listen == (
        Address(scheme="http", host="127.0.0.1", port=1),
        Address(scheme="http", host="::1", port=2),
        Address(scheme="unix", path="/a"),
    )
    in_a_list = loaded(file, '[server]\nlisten = ["unix:/a,b"]\n').listen
    assert in_a_list == (Address(scheme="unix", path="/a,b"),), "a comma is part of the path"


@pytest.mark.parametrize(
    ("text", "environ", "flags", "set_by"),
    [
        ("", {}, (), None),
        ('[server]\nlisten = "127.0.0.1:1"', {}, (), "listen in [server]"),
        ('[server]\nlisten = "127.0.0.1:1"', {"SVCNODE_SERVER_LISTEN": "a:2"}, (), "SVCNODE_SERVER_LISTEN"),
        ('[server]\nlisten = "127.0.0.1:1"', {}, (Override(("server", "listen"), ["a:2"], "--listen"),), "--listen"),
    ],
)
def test_set_by_names_the_option_variable_or_key_of_an_address(
    text: str, environ: dict[str, str], flags: tuple[Override, ...], set_by: str | None, file: Path
) -> None:
    loads = loaded(file, text, {"HOME": "/home/me", **environ}, *flags)
    assert loads.addresses[loads.listen[0]] == set_by


def test_with_a_certificate_an_address_without_a_scheme_uses_tls(file: Path) -> None:
    text = f"""
        [server]
        listen = ["127.0.0.1:1", "http://127.0.0.1:2", "unix:/a"]
        [server.tls]
        certificate = "{file}"
        key = "{file}"
    """
    loads = loaded(file, text)
    assert [address.scheme for address in loads.listen] == ["https", "http", "unix"]
    assert loads.tls == TlsSettings(certificate=file, key=file)


# ---- the operator surface and history


TOKEN = "a-token-of-some-length"
OWN = Address(scheme="http", host="0.0.0.0", port=9000)


def operator_of(settings: Settings) -> OperatorSettings:
    assert settings.operator is not None
    return settings.operator


def test_the_operator_surface_can_have_its_own_address_which_is_not_used_without_it(file: Path) -> None:
    loads = loaded(file, '[server]\noperator_listen = "0.0.0.0:9000"\n')
    assert operator_of(loads).listen == (OWN,)
    assert tuple(loads.addresses) == (*loads.listen, OWN)
    loads = loaded(file, '[server]\noperator = false\noperator_listen = "0.0.0.0:9000"\n')
    assert loads.operator is None
    assert tuple(loads.addresses) == loads.listen


def test_only_the_operator_surface_may_use_tls(file: Path) -> None:
    tls = f'tls = {{ certificate = "{file}", key = "{file}" }}'
    text = f'[server]\nlisten = "http://127.0.0.1:1"\noperator_listen = "0.0.0.0:9000"\n{tls}\n'
    (own,) = operator_of(loaded(file, text)).listen or ()
    assert own.scheme == "https"
    assert refused_key(file, text.replace("operator_listen", "operator = false\noperator_listen")) == "server.listen"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('listen = "0.0.0.0:9000"\noperator_listen = "127.0.0.1:9000"\n', "server.operator_listen"),
        ('listen = "[::1]:9000"\n[public]\nservices = ["a"]\nlisten = "[::]:9000"\n', "public.listen"),
    ],
)
def test_an_address_of_all_addresses_overlaps_with_each_of_them(file: Path, text: str, key: str) -> None:
    assert refused_key(file, f"[server]\n{text}") == key


@pytest.mark.parametrize("name", RESERVED_SEGMENTS)
def test_a_prefix_with_a_path_of_the_operator_surface_needs_operator_false(name: str, file: Path) -> None:
    assert refused_key(file, f'[server]\nprefix = "/{name}"\n') == "server.prefix"
    assert loaded(file, f'[server]\nprefix = "/{name}"\noperator = false\n').prefixes == (f"/{name}",)
    assert loaded(file, f'[server]\nprefix = "/{name}s"\n').prefixes == (f"/{name}s",)
    assert set(RESERVED_SEGMENTS) == {path.split("/")[1] for path in ROUTES} - {""}


@pytest.mark.parametrize(
    ("given_text", "environ"),
    [
        (f'operator_token = "{TOKEN}"', {}),
        ('operator_token = "${OPERATOR}"', {"OPERATOR": TOKEN}),
        ('operator_token = { file = "token.txt" }', {}),
        ("", {"SVCNODE_SECURITY_OPERATOR_TOKEN": TOKEN}),
        ("", {"SVCNODE_SECURITY_OPERATOR_TOKEN": "${OPERATOR}", "OPERATOR": TOKEN}),
    ],
)
def test_a_token_may_come_from_a_variable_or_file_and_is_never_shown(
    given_text: str, environ: dict[str, str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    Path("token.txt").write_text(f"{TOKEN}\n")
    push = f'{HTTP}probe = "heartbeat:30s"\npush_token = "${{PUSH}}"\n'
    loads = loaded(file, f"[security]\n{given_text}\n{push}", {"PUSH": TOKEN, "HOME": "/home/me", **environ})
    assert loads.services[0].push == PushAccess(operator_of(loads).token or "") == PushAccess(TOKEN)
    assert TOKEN not in repr(loads)
    assert redacted(f"it is {TOKEN}") == "it is ***"


@pytest.mark.parametrize(
    "token", ["", "short", "x" * 15, "x" * 15 + " ", "x" * 15 + "ä", "x" * 15 + ":", "x" * 20 + "\n"]
)
def test_a_short_or_invalid_token_is_refused_without_being_shown(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(None, {"SVCNODE_SECURITY_OPERATOR_TOKEN": token})
    assert caught.value.key == "security.operator_token"
    assert not token or token not in str(caught.value)


@pytest.mark.parametrize(("given_text", "trusts_loopback"), [("", False), ("true", True), ("false", False)])
def test_with_a_token_loopback_is_trusted_only_if_configured(
    given_text: str, trusts_loopback: bool, file: Path
) -> None:
    trust = f"trust_loopback = {given_text}\n" if given_text else ""
    loads = loaded(file, f'[security]\noperator_token = "{TOKEN}"\n{trust}')
    assert operator_of(loads).trusts_loopback is trusts_loopback


def test_alerts_link_to_the_page_also_those_of_a_test(file: Path) -> None:
    text = '[operator]\nurl = "https://node.example.com:8420"\n[notify]\nwebhook = "http://127.0.0.1:1/"\n'
    for notify in (loaded(file, text, {"HOME": "/nowhere"}).notify, load_notify(file, {})[1]):
        assert notify is not None
        assert notify.page_url == "https://node.example.com:8420"
