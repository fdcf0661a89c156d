"""make_probe: from a URL, or a table with options, to a probe of the kind of its scheme."""

from __future__ import annotations

import sys
import traceback
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.redaction import redacted
from svcnode.probes import ENTRY_POINT_GROUP, make_probe
from svcnode.probes.http import HttpProbe
from svcnode.probes.tcp import TcpProbe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package with an entry point: its scheme and its target."""

    def put(scheme: str, target: str) -> None:
        info = tmp_path / "other_kinds-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-kinds\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{ENTRY_POINT_GROUP}]\n{scheme} = {target}\n")
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
    sys.modules.pop("other_kinds", None)  # the next test installs another one


def error_of(config: str | dict[str, Any], **options: Any) -> str:
    with pytest.raises(ProbeError) as caught:
        make_probe(config, **options)
    return str(caught.value)


def test_the_scheme_picks_the_kind() -> None:
    assert isinstance(make_probe("tcp://db:1"), TcpProbe)
    assert isinstance(make_probe("HTTP://db/"), HttpProbe)
    assert isinstance(make_probe({"url": "https://db/"}), HttpProbe)


def test_another_package_adds_a_kind_with_options(install: Install) -> None:
    install("moon", "other_kinds:MoonProbe")
    probe = make_probe({"url": "moon:/tycho", "phase": "new"})
    assert (repr(probe), getattr(probe, "phase", "")) == ("<MoonProbe moon:/tycho>", "new")
    with pytest.raises(OptionError, match='"phase"') as caught:
        make_probe({"url": "moon:/tycho", "phasr": "new"})
    assert caught.value.option == "phasr"


@pytest.mark.parametrize("target", ["no_such_moon:MoonProbe", "no_such_moon:MoonProbe [lunar-tools]"])
def test_a_missing_module_of_another_package_is_named_and_is_no_driver(target: str, install: Install) -> None:
    install("moon", target)
    text = error_of("moon:x")
    assert "no_such_moon" in text
    assert "pip install" not in text
    assert "driver" not in text


def test_another_package_cannot_replace_a_kind_of_this_package(install: Install) -> None:
    install("tcp", "other_kinds:MoonProbe")
    assert isinstance(make_probe("tcp://db:1"), TcpProbe)


@pytest.mark.parametrize(
    "target", ["other_kinds", "other_kinds:", "other_kinds.MoonProbe", "a b:C", "a:B [", "a:B [x,y]"]
)
def test_an_invalid_entry_point_is_rejected(target: str, install: Install) -> None:
    install("moon", target)
    text = error_of("moon:x")
    assert f'"{target}"' in text
    assert '"module:Class"' in text


def test_a_probe_class_without_a_check_method_is_rejected(install: Install) -> None:
    install("moon", "other_kinds:UrlProbe")
    assert "check()" in error_of("moon:x")


def test_exec_probes_need_the_permission() -> None:
    assert repr(make_probe("exec:/bin/true", allowed={"allow_exec"})) == "<ExecProbe exec:/bin/true>"
    for allowed in ((), {"something_else"}):
        text = error_of("exec:/bin/true", allowed=allowed)
        assert all(way in text for way in ("allow_exec = true", "--allow-exec", "ExecProbe"))
    for config in ("EXEC:/bin/true", {"url": "exec:", "argv": ["/bin/true"]}, {"url": "${RUN}"}):
        assert "allow_exec" in error_of(config, environ={"RUN": "exec:/bin/true"})


@pytest.mark.parametrize("as_table", [True, False])
def test_the_whole_url_may_be_in_a_file(as_table: bool, tmp_path: Path) -> None:
    (tmp_path / "url").write_text("tcp://db:1\n")
    in_file = {"file": str(tmp_path / "url")}
    probe = make_probe({"url": in_file, "send": "x"} if as_table else in_file)
    assert isinstance(probe, TcpProbe)
    assert (probe.url.host, probe.url.port) == ("db", 1)


def test_an_option_may_be_in_a_file_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("hunter2\n")
    in_file = {"file": str(tmp_path / "key")}
    probe = make_probe({"url": "http://db", "bearer": in_file})
    assert isinstance(probe, HttpProbe)
    assert probe.bearer == "hunter2"
    probe = make_probe({"url": "http://db", "headers": {"X-Key": in_file}})
    assert isinstance(probe, HttpProbe)
    assert probe.headers == (("X-Key", "hunter2"),)
    assert redacted("hunter2") == "***"


@pytest.mark.parametrize(
    "config",
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
def test_neither_an_error_nor_its_traceback_shows_a_secret(config: dict[str, Any], key: str) -> None:
    with pytest.raises(ProbeError) as caught:
        make_probe(config, environ={"KEY": key})
    assert "hun" not in "".join(traceback.format_exception(caught.value))


def test_variables_in_an_option_that_is_a_url_are_percent_encoded() -> None:
    options = {"max_lag": "5s", "primary": "postgresql://monitor:${WORD}@10.0.0.5/ledger"}
    probe: Any = make_probe(
        {"url": "postgresql://monitor@10.0.0.6/ledger", **options}, environ={"WORD": "pass/wörd#?@"}
    )
    assert (probe._primary.url.password, probe._primary.url.host) == ("pass/wörd#?@", "10.0.0.5")
    assert "pass" not in redacted(probe.primary)
