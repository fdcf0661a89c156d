"""From a URL, or a table with options, to a probe of the kind that its scheme names."""

from __future__ import annotations

import subprocess
import sys
import traceback
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import probes
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.redaction import redacted
from svcnode.probes import ENTRY_POINT_GROUP, KINDS, make_probe
from svcnode.probes.http import HttpProbe
from svcnode.probes.tcp import TcpProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Another package that brings a kind, as an installer leaves it: its scheme, and what stands for it."""

    def put(scheme: str, target: str) -> None:
        about = tmp_path / "other_kinds-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other-kinds\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{scheme} = {target}\n")
        (tmp_path / "other_kinds.py").write_text(
            "from dataclasses import dataclass\n"
            "from svcnode import Verdict\n"
            "from svcnode.probes.base import UrlProbe\n"
            "@dataclass(frozen=True, slots=True, kw_only=True, repr=False)\n"
            "class MoonProbe(UrlProbe):\n"
            "    phase: str = 'full'\n"
            "    async def check(self) -> Verdict:\n"
            "        return Verdict.not_ready(self.phase)\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        assert [entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)] == [scheme]

    yield put
    sys.modules.pop("other_kinds", None)  # the next test has one of its own


def refusal(words: str | dict[str, Any], **more: Any) -> str:
    with pytest.raises(ProbeError) as caught:
        make_probe(words, **more)
    return str(caught.value)


# ---- which kind


def test_the_scheme_picks_the_kind() -> None:
    assert isinstance(make_probe("tcp://db:1"), TcpProbe)
    assert isinstance(make_probe("HTTP://db/"), HttpProbe)
    assert isinstance(make_probe({"url": "https://db/"}), HttpProbe)


@pytest.mark.parametrize("scheme", KINDS)
def test_every_row_names_a_class_that_is_there_or_the_extra_that_brings_it(scheme: str) -> None:
    try:
        kind = probes._load_kind(scheme)
    except ProbeError as exc:
        pytest.skip(str(exc))
    assert f"{kind.__module__}:{getattr(kind, '__name__', '')}" == KINDS[scheme].partition(" ")[0]


@pytest.mark.parametrize(
    ("scheme", "near"),
    [
        ("htpp", "http"),
        ("sqllite", "sqlite"),
        ("jsonrpc", "jsonrpc+http"),
        ("heatbeat", "heartbeat"),
        ("postgre", "postgres"),
        ("postgressql", "postgresql"),
        ("mysqll", "mysql"),
        ("reddis", "redis"),
        ("memcache", "memcached"),
        ("ethereum", "ethereum+http"),
        ("ipfs", "ipfs+http"),
    ],
)
def test_an_unknown_scheme_is_offered_the_nearest_one(scheme: str, near: str) -> None:
    assert refusal(f"{scheme}://db:1") == f'unknown scheme "{scheme}"; did you mean "{near}"?'


def test_a_scheme_near_to_none_is_shown_all() -> None:
    assert refusal("gopher://db:1") == f'unknown scheme "gopher"; known ones: {", ".join(sorted(KINDS))}'


def test_what_names_no_probe_is_refused() -> None:
    assert refusal({}) == 'a probe has a url: { url = "tcp://127.0.0.1:5432", … }'
    assert refusal({"send": "x"}).startswith("a probe has a url: ")
    assert refusal({"url": 5}).startswith("a probe URL is a string")
    assert refusal("db:5432").startswith('unknown scheme "db"')


# ---- drivers


def test_a_missing_driver_is_named_by_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "redis", "tests_no_such_driver_module:RedisProbe [redis]")
    assert refusal("redis://db") == 'redis probes need their driver: pip install "svcnode[redis]"'


def test_a_missing_package_without_an_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "moon", "tests_no_such_module:MoonProbe")
    assert refusal("moon:x") == "moon probes need their driver: install the package that brings tests_no_such_module"


def test_a_kind_that_is_not_in_its_module_is_told_apart_from_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "moon", "svcnode.probes.tcp:MoonProbe")
    assert refusal("moon:x").startswith("the kind of moon cannot be loaded: ")


def test_a_module_that_breaks_when_imported_is_told_apart_from_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_moon.py").write_text("from svcnode import NoSuchName\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(KINDS, "moon", "broken_moon:MoonProbe")
    assert refusal("moon:x").startswith("the kind of moon cannot be loaded: ImportError: ")


# ---- kinds of other packages


def test_another_package_adds_a_kind_with_options(install: Install) -> None:
    install("moon", "other_kinds:MoonProbe")
    probe = make_probe({"url": "moon:/tycho", "phase": "new"})
    assert (repr(probe), getattr(probe, "phase", "")) == ("<MoonProbe moon:/tycho>", "new")
    with pytest.raises(OptionError, match='phasr: unknown option; did you mean "phase"'):
        make_probe({"url": "moon:/tycho", "phasr": "new"})


def test_another_package_may_name_an_extra(install: Install) -> None:
    install("moon", "no_such_moon:MoonProbe [lunar-tools]")
    assert refusal("moon:x") == 'moon probes need their driver: pip install "svcnode[lunar-tools]"'


def test_what_another_package_adds_is_offered_too(install: Install) -> None:
    install("moonbeam", "other_kinds:MoonProbe")
    assert refusal("moonbaem:x") == 'unknown scheme "moonbaem"; did you mean "moonbeam"?'


def test_another_package_cannot_take_the_place_of_a_kind_of_ours(install: Install) -> None:
    install("tcp", "other_kinds:MoonProbe")
    assert isinstance(make_probe("tcp://db:1"), TcpProbe)


@pytest.mark.parametrize(
    "target", ["other_kinds", "other_kinds:", "other_kinds.MoonProbe", "a b:C", "a:B [", "a:B [x,y]"]
)
def test_what_names_no_class_is_said_to(target: str, install: Install) -> None:
    install("moon", target)
    assert refusal("moon:x") == f'"{target}", which another package names for moon, is not of the form "module:Class"'


def test_what_is_no_dataclass_cannot_be_a_kind(install: Install) -> None:
    install("moon", "other_kinds:dataclass")
    assert refusal("moon:x").endswith("which another package names for moon, is not a dataclass, as a kind is")


# ---- permission


def test_programs_are_run_only_where_that_is_allowed() -> None:
    for allowed in ((), {"something_else"}):
        said = refusal("exec:/bin/true", allowed=allowed)
        assert said.startswith("exec probes run programs on this machine; to allow them, set allow_exec = true")
    assert repr(make_probe("exec:/bin/true", allowed={"allow_exec"})) == "<ExecProbe exec:/bin/true>"


@pytest.mark.parametrize("words", ["EXEC:/bin/true", {"url": "exec:", "argv": ["/bin/true"]}, {"url": "${RUN}"}])
def test_there_is_no_other_way_to_run_a_program(words: str | dict[str, Any]) -> None:
    assert "to allow them" in refusal(words, environ={"RUN": "exec:/bin/true"})


# ---- options and secrets


@pytest.mark.parametrize(
    ("words", "option", "said"),
    [
        ({"url": "tcp://db:1", "sedn": "x"}, "sedn", 'unknown option; did you mean "send"?'),
        ({"url": "tcp://db:1", "send": 5}, "send", "must be a string or { hex = "),
        ({"url": "tcp://db:1", "send": "${NO_SUCH}"}, "send", "the environment variable NO_SUCH is not set"),
        ({"url": "tcp://db:1", "send": {"file": "/no/such"}}, "send", "cannot read /no/such: no such file"),
        ({"url": "http://db", "headers": {"X-Key": "${NO_SUCH}"}}, "headers", "the environment variable NO_SUCH"),
        ({"url": "jsonrpc+http://db"}, "method", "is missing, and is needed here"),
        ({"url": "tcp://db:1", "ca": "ca.pem"}, "ca", "has no meaning for tcp, which does not speak TLS"),
    ],
)
def test_an_error_of_an_option_names_the_option(words: dict[str, Any], option: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe(words, environ={})
    assert caught.value.option == option
    assert caught.value.text.startswith(said)


def test_the_environment_of_the_process_is_used_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT_OF_DB", "5432")
    assert repr(make_probe("tcp://db:${PORT_OF_DB}")) == "<TcpProbe tcp://db:5432>"
    assert refusal("tcp://db:${PORT_OF_DB}", environ={}) == "the environment variable PORT_OF_DB is not set"


@pytest.mark.parametrize("as_table", [True, False])
def test_the_whole_url_may_stand_in_a_file(as_table: bool, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("tcp://db:1\n")
    in_file = {"file": str(tmp_path / "url")}
    probe = make_probe({"url": in_file, "send": "x"} if as_table else in_file)
    assert isinstance(probe, TcpProbe)
    assert (probe.url.host, probe.url.port) == ("db", 1)


def test_a_file_with_a_url_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert refusal({"file": str(tmp_path / "url")}) == f"cannot read {tmp_path / 'url'}: no such file or directory"


def test_an_option_may_stand_in_a_file_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hunter2\n")
    in_file = {"file": str(tmp_path / "key")}
    probe = make_probe({"url": "http://db", "bearer": in_file})
    assert isinstance(probe, HttpProbe)
    assert probe.bearer == "hunter2"
    probe = make_probe({"url": "http://db", "headers": {"X-Key": in_file}})
    assert isinstance(probe, HttpProbe)
    assert probe.headers == (("X-Key", "hunter2"),)
    assert redacted("hunter2") == "***"


def test_what_was_given_is_left_as_it_was() -> None:
    given = {"url": "http://db", "bearer": "${KEY}"}
    make_probe(given, environ={"KEY": "hunter2"})
    assert given == {"url": "http://db", "bearer": "${KEY}"}


@pytest.mark.parametrize(
    "words",
    [
        {"url": "http://me:${KEY}@db"},
        {"url": "http://db/v3/${KEY}?k=${KEY}"},
        {"url": "http://db", "bearer": "${KEY}"},
        {"url": "http://db", "body": "${KEY}", "headers": {"X-Key": "${KEY}"}, "proxy": "http://me:${KEY}@proxy"},
        {"url": "jsonrpc+http://db", "method": "m", "params": ["${KEY}"]},
        {"url": "exec:/bin/check ${KEY}"},
        {"url": "exec:", "argv": ["/bin/check", "${KEY}"]},
    ],
)
def test_no_part_of_a_probe_shows_a_secret(words: dict[str, Any]) -> None:
    probe = make_probe(words, environ={"KEY": "hunter2"}, allowed={"allow_exec"})
    shown = [repr(probe), repr(getattr(probe, "url", "")), repr(getattr(probe, "_request", ""))]
    assert "hunter2" not in " ".join(shown)


@pytest.mark.parametrize(
    "words",
    [
        {"url": "tcp://db:${KEY}"},
        {"url": "file:/x", "max_age": "${KEY}"},
        {"url": "http://db", "status": "${KEY}"},
        {"url": "http://db", "method": "${KEY}"},
        {"url": "http://db", "matches": "(?P<${KEY}>"},
        {"url": "svc+http://db", "prefix": "${KEY}"},
        {"url": "tls://db:1", "ca": "${KEY}"},
        {"url": "tcp://db:1", "send": {"hex": "${KEY}"}},
        {"url": "http://db", "headers": {"X-Key": "${KEY}\n"}},
        {"url": "heartbeat:${KEY}"},
        {"url": "${KEY}"},
        {"url": "${KEY}://db"},
    ],
)
@pytest.mark.parametrize("key", ["hunter2", "hun\\ter'2\"", "hun/ter 2é"])
def test_neither_an_error_nor_its_traceback_shows_a_secret(words: dict[str, Any], key: str) -> None:
    with pytest.raises(ProbeError) as caught:
        make_probe(words, environ={"KEY": key})
    assert "hun" not in "".join(traceback.format_exception(caught.value))


# ---- late loading

LOADED = """
import sys
import svcnode.probes, svcnode.node, svcnode.config
kinds = {target.partition(":")[0] for target in svcnode.probes.KINDS.values()}
before = kinds & set(sys.modules)
svcnode.probes.make_probe("tcp://127.0.0.1:1")
print(sorted(before), sorted(kinds & set(sys.modules)))
"""


def test_no_kind_is_loaded_before_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[] ['svcnode.probes.tcp']"
