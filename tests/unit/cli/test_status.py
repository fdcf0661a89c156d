"""The arguments of `svcnode status` and `svcnode watch`, and the errors before a request is sent."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING

import pytest

from svcnode.cli import build_parser, main
from svcnode.cli._node_args import MAX_LIST_CHARS, sources_from, timeout_from
from svcnode.core.errors import InvalidValueError
from tests.support.certificates import make_chain

if TYPE_CHECKING:
    import argparse
    from pathlib import Path


def parsed(*arguments: str) -> argparse.Namespace:
    return build_parser().parse_args(["status", *arguments])


def urls(*arguments: str) -> list[str]:
    return [source.client.url for source in asyncio.run(sources_from(parsed(*arguments), None))]


def test_nodes_have_the_order_of_the_arguments() -> None:
    assert urls("b:1", "a", "https://c/base") == ["http://b:1", "http://a", "https://c/base"]


def test_a_file_adds_nodes_and_may_have_comments(tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    file.write_text("\ufeff# all nodes\n\n  a:1  \nb:2 # the second\n#c:3\n")
    assert urls("z", "--from", str(file)) == ["http://z", "http://a:1", "http://b:2"]


@pytest.mark.parametrize(
    ("config", "url", "prefix"),
    [
        ("", "http://127.0.0.1:8420", "/svc"),
        ('[server]\nlisten = "0.0.0.0:9000"\nprefix = ["/eigen", "/svc"]', "http://127.0.0.1:9000", "/eigen"),
        ('[server]\nlisten = ["192.0.2.1:1", "127.0.0.1:2"]', "http://127.0.0.1:2", "/svc"),
        ('[server]\nlisten = "unix:/run/a.sock"\n[node]\nname = 5', "unix:/run/a.sock", "/svc"),
    ],
)
def test_without_a_url_the_node_is_that_of_the_configuration(
    config: str, url: str, prefix: str, tmp_path: Path
) -> None:
    arguments = parsed() if not config else parsed("-c", "a.toml")
    (tmp_path / "a.toml").write_text(config)
    (source,) = asyncio.run(sources_from(arguments, None))
    assert (source.client.url, arguments.prefix) == (url, prefix)


def test_a_node_with_tls_is_trusted_by_its_own_certificate_and_not_by_its_authority(tmp_path: Path) -> None:
    made, root = make_chain(tmp_path)
    file = tmp_path / "a.toml"
    file.write_text(
        f'[server]\nlisten = "127.0.0.1:1"\ntls = {{ certificate = "{made.certificate}", key = "{made.key}" }}\n'
    )
    arguments = parsed("-c", str(file))
    asyncio.run(sources_from(arguments, None))
    assert arguments.ca.cert_store_stats()["x509"] == 1
    arguments = parsed("-c", str(file), "--ca", str(root))
    asyncio.run(sources_from(arguments, None))
    assert arguments.ca == str(root)


@pytest.mark.parametrize("content", ["", "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"])
def test_a_file_without_a_certificate_is_no_reason_to_trust_others(content: str, tmp_path: Path) -> None:
    (tmp_path / "a.pem").write_text(content)
    file = tmp_path / "a.toml"
    file.write_text(f'[server]\nlisten = "127.0.0.1:1"\ntls = {{ certificate = "{tmp_path}/a.pem", key = "k" }}\n')
    with pytest.raises(InvalidValueError, match="--ca"):
        asyncio.run(sources_from(parsed("-c", str(file)), None))


def test_an_endless_list_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "nodes"
    file.write_text("#" * MAX_LIST_CHARS)
    assert urls("h", "--from", str(file)) == ["http://h"]
    file.write_text("#" * (MAX_LIST_CHARS + 1))
    monkeypatch.setattr("sys.stdin", io.StringIO("#" * (MAX_LIST_CHARS + 1)))
    for name in (str(file), "-"):
        with pytest.raises(InvalidValueError, match="1,000,000"):
            urls("--from", name)


def test_a_timeout_has_a_unit() -> None:
    assert timeout_from(parsed("h")) == 10
    assert timeout_from(parsed("h", "--timeout", "500ms")) == 0.5


def test_the_file_may_be_stdin_unless_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\ufeffa\nb"))
    assert urls("--from", "-") == ["http://a", "http://b"]
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidValueError, match="--from: stdin"):
        urls("--from", "-")


@pytest.mark.parametrize("command", ["status", "watch"])
def test_no_node_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--from", "/dev/null"])
    assert ended.value.code == 2
    assert f"svcnode {command}: error: " in capsys.readouterr().err


def test_watch_has_the_node_arguments_of_status_and_an_interval(capsys: pytest.CaptureFixture[str]) -> None:
    text = "watch a b --from f --prefix /eigen --version v0.0.1 --timeout 5s --ca c --interval 1s"
    arguments = build_parser().parse_args(text.split())
    assert (arguments.urls, arguments.file, arguments.prefix) == (["a", "b"], "f", "/eigen")
    assert (arguments.version, arguments.timeout, arguments.ca, arguments.interval) == ("v0.0.1", "5s", "c", "1s")
    assert build_parser().parse_args(["watch", "a"]).interval == "2s"
    for invalid, named in ((("--interval", "0s"), "--interval: "), (("--timeout", "0s"), "--timeout: ")):
        assert main(["watch", "h", *invalid]) == 2
        assert capsys.readouterr().err.startswith(f"svcnode: {named}")
