"""Where the nodes of a fleet are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.agent.fleet.found import FoundReplica
from svcnode.agent.fleet.sources import ABSENT, NO_REPLICA, NO_URL, FileSource, found_replicas, parse_node_list
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, Verdict
from svcnode.sharing.client import NodeReplicas
from svcnode.sharing.format import Ignored, IgnoredKind, ReplicaDocument

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def replica(url: str) -> ReplicaDocument:
    return ReplicaDocument(instance="1", url=url, software="0.1.0")


def found_in(
    live: Mapping[str, ReplicaDocument | Ignored] | None = None,
    absent: tuple[str, ...] = (),
    *,
    service_count: int = 1,
) -> list[FoundReplica]:
    return list(found_replicas("pay", NodeReplicas(live or {}, frozenset(absent), service_count)))


def test_each_live_replica_is_found_with_its_url_and_one_without_is_not_ready() -> None:
    live = {"c": replica(""), "b": replica("http://10.0.0.2:8420"), "a": replica("https://10.0.0.1")}
    *found, last = found_in({**live, "d": Ignored(IgnoredKind.NEWER_VERSION, "version 2")})
    assert found == [
        FoundReplica("pay", "a", "https://10.0.0.1"),
        FoundReplica("pay", "b", "http://10.0.0.2:8420"),
        FoundReplica("pay", "c", unchecked=NO_URL),
    ]
    assert [one.id for one in found] == ["pay/a", "pay/b", "pay/c"]
    assert last.unchecked is not None
    assert last.unchecked.outcome is Outcome.NOT_READY


def test_a_replica_that_has_left_and_still_defines_services_has_failed() -> None:
    assert found_in({"a": replica("http://a")}, ("b",)) == [
        FoundReplica("pay", "a", "http://a"),
        FoundReplica("pay", "b", unchecked=ABSENT),
    ]


def test_a_node_without_replicas_has_failed_as_a_whole_if_it_has_services() -> None:
    [found] = found_in()
    assert (found.id, found.unchecked) == ("pay", NO_REPLICA)
    assert found_in(service_count=0) == []


def test_a_line_is_a_url_and_a_name_of_the_node() -> None:
    text = """
        # the fleet
        http://10.0.0.1:8420 payments
        svc+https://10.0.0.2/eigen payments   # the second
        10.0.0.3:8420
    """
    assert parse_node_list(text) == [
        FoundReplica("payments", "10.0.0.1:8420", "http://10.0.0.1:8420"),
        FoundReplica("payments", "10.0.0.2", "https://10.0.0.2/eigen"),
        FoundReplica("", "10.0.0.3:8420", "http://10.0.0.3:8420"),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("http://a\nftp://b\n", "line 2"),
        ("unix:/run/node.sock\n", "line 1"),
        ("http://a pay\nhttp://a/ pay\n", "line 2"),
        ("http://a pay\x1b\n", "line 1"),
        ("http://\n", "line 1"),
    ],
)
def test_an_invalid_line_is_named(text: str, line: str) -> None:
    with pytest.raises(InvalidValueError, match=line):
        parse_node_list(text)


def read(path: Path) -> list[FoundReplica] | Verdict:
    return asyncio.run(FileSource(path).read())


def test_the_file_is_read_again_each_time(tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    path.write_text("http://a")
    assert read(path) == [FoundReplica("", "a", "http://a")]
    path.write_text("http://b")
    assert read(path) == [FoundReplica("", "b", "http://b")]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, ReasonCode.FILE_NOT_FOUND),
        (b"\xff\xff", ReasonCode.UNEXPECTED_RESPONSE),
        (b"", ReasonCode.UNEXPECTED_RESPONSE),
        (b"http://[", ReasonCode.UNEXPECTED_RESPONSE),
    ],
)
def test_a_file_that_cannot_be_used_is_a_failed_search(content: bytes | None, code: str, tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    if content is not None:
        path.write_bytes(content)
    verdict = read(path)
    assert isinstance(verdict, Verdict)
    assert (verdict.outcome, verdict.code) == (Outcome.FAILED, code)


def test_a_password_in_the_file_is_in_no_text(tmp_path: Path) -> None:
    path = tmp_path / "nodes.txt"
    path.write_text("http://user:hunter2-secret@10.0.0.1:99999 pay")
    verdict = read(path)
    assert isinstance(verdict, Verdict)
    assert "hunter2-secret" not in verdict.reason
    [found] = parse_node_list("http://user:hunter2-secret@10.0.0.1 pay")
    assert "hunter2-secret" not in found.id
