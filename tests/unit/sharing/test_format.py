"""The registry format: what is written is read again, and what is not understood is ignored."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.model import MAX_STALE_AFTER_S, Status
from svcnode.core.redaction import register_secret
from svcnode.core.text import MAX_REASON_CHARS, has_control_chars
from svcnode.sharing.format import (
    AGES_S,
    NAME_COUNTS,
    EvidenceDocument,
    Ignored,
    IgnoredKind,
    IssueDocument,
    KeyKind,
    ParsedEntry,
    RegistryKey,
    ReplicaDocument,
    ReportDocument,
    SenderDocument,
    StateDocument,
    ToldDocument,
    WorkDocument,
    Written,
    decode_age_s,
    encode_age,
    encode_document,
    encode_key,
    evidence_document,
    node_of,
    node_root,
    parse_entry,
    parse_key,
    service_document,
)

ROOT = node_root("/svcnode", "n")
FEW = settings(max_examples=30)  # each example parses options
SECRET = "hunter2hunter2"

names = st.text(min_size=1, max_size=20).filter(lambda text: not has_control_chars(text) and text not in (".", ".."))
texts = st.text(max_size=40).filter(str.isprintable)
durations_s = st.floats(0, 1e6)
times_s = st.integers(0, 4 * 10**12).map(lambda ms: ms / 1000)
written = st.builds(Written, st.integers(0, 2**62), durations_s)
codes = st.sampled_from(ReasonCode)
probes: st.SearchStrategy[Any] = st.sampled_from(
    ["http://a:1/h", "exec:/bin/true", "redis://:hunter2@a", "heartbeat:5s", {"url": "https://a", "contains": "ok"}]
)
service_options = st.fixed_dictionaries(
    {},
    optional={
        "name": texts,
        "description": texts,
        "group": texts,
        "tags": st.sampled_from([[], ["chain", "eu"]]),
        "runbook": st.sampled_from(["", "https://wiki/db"]),
        "slo": st.sampled_from(["off", "99.9%"]),
        "depends_on": st.lists(names, max_size=3, unique=True),
        "impact": st.sampled_from(["critical", "partial", "none"]),
        "observers": st.integers(1, 7),
        "checked_by": st.lists(texts, max_size=3),
    },
).flatmap(
    lambda options: st.one_of(
        probes.map(lambda probe: {**options, "probe": probe}),
        st.just({**options, "probe": "tcp://a:1", "interval": "5s", "rise": 1}),
        st.just({**options, "ttl": "30s"}),
        st.sampled_from(["Up", "Down"]).map(lambda status: {**options, "status": status}),
    )
)
documents = st.one_of(
    st.tuples(st.just(KeyKind.REPLICAS), st.builds(ReplicaDocument, texts, st.sampled_from(["", "http://a"]), texts)),
    st.tuples(st.just(KeyKind.ISSUES), st.builds(IssueDocument, texts)),
    st.tuples(
        st.just(KeyKind.STATES),
        st.builds(StateDocument, st.sampled_from(Status), texts, codes, durations_s, durations_s, texts, written),
    ),
    st.tuples(
        st.just(KeyKind.EVIDENCE),
        st.builds(evidence_document, st.dictionaries(names, st.tuples(st.sampled_from(Status), durations_s)), written),
    ),
    st.tuples(st.just(KeyKind.REPORTS), st.builds(ReportDocument, st.sampled_from(Status), texts, codes)),
    st.tuples(st.just(KeyKind.SENDERS), st.builds(SenderDocument, texts, texts)),
    st.tuples(
        st.just(KeyKind.DRAINS), st.builds(WorkDocument, texts, texts, texts, st.none() | times_s, st.none(), st.none())
    ),
    st.tuples(
        st.sampled_from([KeyKind.MAINTENANCE, KeyKind.PLANNED_MAINTENANCE]),
        st.builds(
            WorkDocument, texts, texts, texts, times_s, st.just(1e9), st.integers(1, 30 * 86_400).map(lambda s: 1e9 + s)
        ),
    ),
    st.tuples(st.just(KeyKind.TOLD), st.builds(ToldDocument, st.lists(st.dictionaries(texts, texts), max_size=3))),
)


def parse(kind: KeyKind, value: object, *key_names: str, has_lease: bool = True) -> ParsedEntry | Ignored:
    key_names = key_names or ("a", "b")[: NAME_COUNTS[kind][0]]
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_entry(ROOT, encode_key(ROOT, kind, *key_names), raw, has_lease=has_lease)


def ignored_kind(found: ParsedEntry | Ignored) -> IgnoredKind | None:
    return found.kind if isinstance(found, Ignored) else None


# ---- keys


@FEW
@given(st.sampled_from([KeyKind.SERVICES, KeyKind.ISSUES, KeyKind.STATES, KeyKind.REPORTS]), names, names, names)
def test_a_key_is_parsed_to_what_it_was_made_of(kind: KeyKind, node: str, first: str, second: str) -> None:
    root = node_root("/svcnode", node)
    key = encode_key(root, kind, first, second)
    assert parse_key(root, key) == RegistryKey(kind, (first, second))
    assert node_of("/svcnode", key) == node


@pytest.mark.parametrize(
    "key",
    [
        "services",
        "services/a",
        "services/a/",
        "services//b",
        "services/a/b/c",
        "services/%61/b",  # another spelling of a/b
        "services/a/replica:b",  # a colon is written as %3A
        "services/a/replica%3ab",
        "services/%FF/b",
        "services/%0A/b",
        f"services/{'a' * 300}/b",
        "replicas/a/b",
        "evidence",
        "unknown/a",
        "",
    ],
)
def test_a_key_in_any_other_form_is_ignored(key: str) -> None:
    assert ignored_kind(parse_entry(ROOT, ROOT + key, b"{}", has_lease=True)) is IgnoredKind.UNKNOWN_KEY


def test_keys_of_other_nodes_and_other_versions_are_not_keys_of_this_node() -> None:
    assert parse_key(ROOT, "/svcnode/v1/other/replicas/a") is None
    assert parse_key(ROOT, "/svcnode/v2/n/replicas/a") is None
    assert node_of("/svcnode", "/svcnode/v2/n/replicas/a") is None
    assert node_of("/svcnode", "/svcnode/v1/n") is None


# ---- documents


@FEW
@given(documents)
def test_a_document_is_parsed_to_what_was_encoded(case: tuple[KeyKind, Any]) -> None:
    kind, document = case
    found = parse(kind, encode_document(document))
    assert isinstance(found, ParsedEntry)
    assert found.document == document


@FEW
@given(names, service_options, st.integers(0, 1000))
def test_a_definition_is_parsed_to_what_was_encoded(service_id: str, options: dict[str, Any], position: int) -> None:
    assume(service_id not in options.get("depends_on", ()))
    document = service_document(service_id, options, position)
    found = parse(KeyKind.SERVICES, encode_document(document), service_id, "owner")
    assert isinstance(found, ParsedEntry)
    assert found.document == document


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS: dict[KeyKind, dict[str, Any]] = {
    KeyKind.REPLICAS: {"instance": "1", "url": "", "software": ""},
    KeyKind.SERVICES: {"position": 1, "options": {"probe": "tcp://a:1", "interval": "5s"}, "restricted": False},
    KeyKind.ISSUES: {"reason": "x"},
    KeyKind.STATES: {
        "status": "Up",
        "reason": "",
        "code": "ok",
        "age_s": 1,
        "since_age_s": 1,
        "source": "status",
        "revision": 1,
        "elapsed_s": 0,
    },
    KeyKind.EVIDENCE: {"count": 1, "digest": "00000000", "ages": "AA==", "revision": 1, "elapsed_s": 0.5},
    KeyKind.REPORTS: {"status": "up", "reason": "", "code": "reported"},
    KeyKind.SENDERS: {"replica": "a", "lease": "1f"},
    KeyKind.TOLD: {"told": [{"told": 503}]},
    KeyKind.DRAINS: {"by": "alice", "via": "replica:a", "reason": "x", "at": "2026-12-01T22:00:00Z"},
    KeyKind.MAINTENANCE: {"by": "alice", "from": "2026-12-01T22:00:00Z", "until": "2026-12-01T23:00:00Z"},
    KeyKind.PLANNED_MAINTENANCE: {"via": "client", "from": "2026-12-01T22:00:00Z", "until": "2026-12-31T22:00:00Z"},
}
OPTIONAL = {"restricted", "code", "reason", "by", "via", "at"}


@pytest.mark.parametrize("value", [None, 7, "tomorrow", "2026-12-01T22:00:00", ["x"], {"a": 1}])
def test_a_drain_is_never_ignored_for_its_fields(value: Any) -> None:
    fields = dict.fromkeys(FIELDS[KeyKind.DRAINS], value)
    for written in ({}, fields):
        found = parse(KeyKind.DRAINS, {"version": 1, **written}, "all")
        assert isinstance(found, ParsedEntry)
        assert found.document.at_s is None  # type: ignore[union-attr]


def test_maintenance_is_of_the_node_or_of_a_service() -> None:
    for names in (("all",), ("replica:a", "db")):
        found = parse(KeyKind.MAINTENANCE, {"version": 1, **FIELDS[KeyKind.MAINTENANCE]}, *names)
        assert isinstance(found, ParsedEntry)
        assert found.key == RegistryKey(KeyKind.MAINTENANCE, names)


@pytest.mark.parametrize("until", ["2026-12-01T22:00:00Z", "2026-12-31T22:00:01Z", "9999-12-31T00:00:00Z"])
def test_maintenance_without_a_near_end_is_ignored(until: str) -> None:
    found = parse(KeyKind.MAINTENANCE, {"version": 1, **FIELDS[KeyKind.MAINTENANCE], "until": until}, "all")
    assert ignored_kind(found) is IgnoredKind.INVALID_VALUE


def test_only_a_lease_makes_a_replica_live() -> None:
    assert ignored_kind(parse(KeyKind.REPLICAS, {"version": 1, **FIELDS[KeyKind.REPLICAS]})) is None
    without = parse(KeyKind.REPLICAS, {"version": 1, **FIELDS[KeyKind.REPLICAS]}, has_lease=False)
    assert ignored_kind(without) is IgnoredKind.INVALID_VALUE
    newer = parse(KeyKind.REPLICAS, {"version": 2}, has_lease=False)
    assert ignored_kind(newer) is IgnoredKind.NEWER_VERSION


@FEW
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_arbitrary_keys_and_values_never_raise(key: bytes, value: bytes) -> None:
    parse_entry(ROOT, ROOT + key.decode(errors="surrogateescape"), value, has_lease=True)
    for kind in KeyKind:
        assert ignored_kind(parse(kind, value)) is IgnoredKind.INVALID_VALUE


@FEW
@given(st.sampled_from(KeyKind), st.data())
def test_a_document_with_one_arbitrary_field_never_raises(kind: KeyKind, data: st.DataObject) -> None:
    fields: dict[str, Any] = {"version": 1, **FIELDS[kind]}
    assert isinstance(parse(kind, fields), ParsedEntry)
    name = data.draw(st.sampled_from(sorted(fields)))
    parse(kind, json.dumps({**fields, name: data.draw(json_values)}).encode())


@FEW
@given(
    st.sampled_from(["name", "description", "probe", "ttl", "status", "impact", "interval", "rise", "x"]), json_values
)
def test_a_definition_with_an_arbitrary_option_never_raises(name: str, value: Any) -> None:
    parse(KeyKind.SERVICES, {"version": 1, "position": 1, "options": {"probe": "tcp://a:1", name: value}})
    parse(KeyKind.SERVICES, {"version": 1, "position": 1, "options": {name: value}, "restricted": True})


@pytest.mark.parametrize("kind", KeyKind)
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (2, IgnoredKind.NEWER_VERSION),
        (0, IgnoredKind.INVALID_VALUE),
        ("1", IgnoredKind.INVALID_VALUE),
        (True, IgnoredKind.INVALID_VALUE),
        (None, IgnoredKind.INVALID_VALUE),
    ],
)
def test_a_newer_version_is_not_an_invalid_one(kind: KeyKind, version: Any, expected: IgnoredKind) -> None:
    assert ignored_kind(parse(kind, {**FIELDS[kind], "version": version})) is expected


@pytest.mark.parametrize("kind", KeyKind)
def test_an_unknown_field_is_ignored_and_a_missing_one_is_not(kind: KeyKind) -> None:
    fields: dict[str, Any] = {"version": 1, **FIELDS[kind]}
    assert isinstance(parse(kind, {**fields, "later": 1}), ParsedEntry)
    for name in fields.keys() - OPTIONAL:
        without = {key: value for key, value in fields.items() if key != name}
        assert ignored_kind(parse(kind, without)) is IgnoredKind.INVALID_VALUE, name


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (KeyKind.REPLICAS, {"url": "javascript:alert(1)"}),
        (KeyKind.STATES, {"status": "up"}),
        (KeyKind.STATES, {"age_s": -1}),
        (KeyKind.STATES, {"age_s": True}),
        (KeyKind.STATES, {"age_s": 1e300}),
        (KeyKind.STATES, {"revision": 2**70}),
        (KeyKind.EVIDENCE, {"count": 2}),
        (KeyKind.EVIDENCE, {"ages": "not base64"}),
        (KeyKind.REPORTS, {"status": "Up"}),
        (KeyKind.TOLD, {"told": {}}),
        (KeyKind.TOLD, {"told": ["db"]}),
        (KeyKind.SERVICES, {"options": {}}),
        (KeyKind.SERVICES, {"options": {"probe": "tcp://a:1", "ttl": "5s"}}),
        (KeyKind.SERVICES, {"options": {"probe": "tcp://a:1", "unknown": 1}}),
        (KeyKind.SERVICES, {"options": {"probe": 1}}),
        (KeyKind.SERVICES, {"options": {"ttl": "5s", "interval": "5s"}}),
        (KeyKind.SERVICES, {"options": {"status": "up"}}),
        (KeyKind.SERVICES, {"options": {"probe": "tcp://a:1"}, "restricted": True}),
        (KeyKind.SERVICES, {"options": {"probe": "tcp://a:1", "observers": 0}}),
        (KeyKind.SERVICES, {"options": {"probe": "tcp://a:1", "checked_by": "a"}}),
        (KeyKind.SERVICES, {"options": {"ttl": "5s", "name": "x" * 257}}),
        (KeyKind.SERVICES, {"options": {"ttl": "5s", "description": "x" * 1001}}),
    ],
)
def test_an_invalid_value_is_ignored(kind: KeyKind, changes: dict[str, Any]) -> None:
    assert ignored_kind(parse(kind, {"version": 1, **FIELDS[kind], **changes})) is IgnoredKind.INVALID_VALUE


@pytest.mark.parametrize("kind", [KeyKind.STATES, KeyKind.REPORTS])
@pytest.mark.parametrize("reason", [b"null", b"5", b'["a"]', b'"\\ud800\\u001b"', b'"\xff\n"', b'"%s"' % (b"x" * 9000)])
def test_a_document_is_not_ignored_for_its_reason_or_code(kind: KeyKind, reason: bytes) -> None:
    fields = {**FIELDS[kind], "version": 1, "status": "Down" if kind is KeyKind.STATES else "down", "code": None}
    raw = json.dumps({**fields, "reason": "REASON"}).encode().replace(b'"REASON"', reason)
    found = parse(kind, raw)
    assert isinstance(found, ParsedEntry)
    assert isinstance(found.document, StateDocument | ReportDocument)
    assert (found.document.status, found.document.code) == (Status.DOWN, ReasonCode.OTHER)
    assert found.document.reason.isprintable()
    assert len(found.document.reason) <= MAX_REASON_CHARS


@pytest.mark.parametrize("probe", ["exec:/bin/sh", "file:/etc/passwd", {"url": "http://a", "ca": "/x"}, "http://${A}/"])
def test_no_replica_runs_programs_or_reads_files_because_of_a_key(probe: Any) -> None:
    found = parse(KeyKind.SERVICES, {"version": 1, "position": 1, "options": {"probe": probe}})
    assert ignored_kind(found) is IgnoredKind.INVALID_VALUE


PAGE = Path(__file__).parents[3] / "docs" / "registry-format.md"


@pytest.mark.skipif(not PAGE.exists(), reason="the wheel has no pages")
def test_the_documented_examples_are_valid() -> None:
    examples = re.findall(r"(?m)^\$ etcdctl put (?:--lease=\S+ )?(\S+) '(.*)'$", PAGE.read_text(encoding="utf-8"))
    kinds = []
    for key, value in examples:
        node = node_of("/svcnode", key)
        assert node is not None
        entry = parse_entry(node_root("/svcnode", node), key, value.encode(), has_lease=False)
        assert isinstance(entry, ParsedEntry)
        kinds.append(entry.key.kind)
    assert kinds == [KeyKind.SERVICES, KeyKind.SERVICES, KeyKind.REPORTS, KeyKind.DRAINS]


# ---- definitions


def test_a_definition_has_the_meaning_of_its_options() -> None:
    document = service_document("db", {"id": "db", "probe": "tcp://a:1", "interval": "4s", "observers": 3}, 7)
    assert (document.service.name, document.valid_s, document.observers, document.is_checked) == ("db", 14, 3, True)
    assert "id" not in document.options


@pytest.mark.parametrize("options", [{"ttl": "30s"}, {"probe": "heartbeat:30s"}])
def test_a_service_that_reports_is_not_checked_and_is_valid_for_its_ttl(options: dict[str, Any]) -> None:
    document = service_document("job", options, 0)
    assert (document.is_checked, document.valid_s, document.restricted) == (False, 30, False)


def test_a_fixed_status_never_expires() -> None:
    document = service_document("a", {"status": "Up"}, 0)
    assert (document.fixed_status, document.is_checked, document.valid_s) == (Status.UP, False, float("inf"))


secret_places: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {"probe": f"redis://:{SECRET}@a/"},
        {"probe": {"url": "redis://a", "password": SECRET}},
        {"probe": {"url": "http://a", "headers": {"Authorization": f"Bearer {SECRET}"}}},
        {"probe": {"url": "http://a", "bearer": SECRET}},
        {"probe": {"url": "http://a", "body": SECRET}},
        {"probe": {"url": "http://a", "x_third_party": [SECRET]}},
        {"probe": f"http://a/?token={SECRET}"},
        {"probe": f"custom://{SECRET}"},
        {"probe": {"url": "exec:", "argv": ["x", SECRET]}},
        {"probe": "heartbeat:5s", "push_token": SECRET},
    ]
)


@FEW
@given(secret_places, service_options)
def test_no_secret_of_a_probe_gets_into_a_document(secret: dict[str, Any], options: dict[str, Any]) -> None:
    others = {
        name: value for name, value in options.items() if name not in ("probe", "ttl", "status", "interval", "rise")
    }
    document = service_document("a", {**others, **secret}, 0)
    assert SECRET not in repr(document)
    assert SECRET.encode() not in encode_document(document)


def test_no_registered_secret_gets_into_a_document() -> None:
    register_secret(SECRET)
    options = {"name": SECRET, "description": SECRET, "probe": {"url": "http://a", "contains": SECRET}}
    written_ = Written(1, 0)
    for document in (
        service_document("a", options, 0),
        IssueDocument(SECRET),
        ReplicaDocument("1", f"http://{SECRET}/", ""),
        StateDocument(Status.DOWN, SECRET, "other", 0, 0, "", written_),
        ReportDocument(Status.DOWN, SECRET, "other"),
    ):
        assert SECRET.encode() not in encode_document(document)


def test_a_restricted_definition_names_no_probe() -> None:
    document = service_document("a", {"probe": "exec:/bin/true", "interval": "5s"}, 0)
    assert (document.restricted, document.is_checked, dict(document.options)) == (True, True, {"interval": "5s"})


# ---- evidence


@given(st.floats(0, 2 * MAX_STALE_AFTER_S))
def test_an_age_is_rounded_up_by_little(age_s: float) -> None:
    decoded_s = decode_age_s(encode_age(age_s))
    if decoded_s is None:
        assert age_s > AGES_S[-1]
    else:
        assert age_s <= decoded_s <= 1.07 * age_s + 0.0034


def test_the_record_is_as_documented() -> None:
    states = {"b": (Status.DOWN, 1e9), "a": (Status.UP, 0.0)}
    document = evidence_document(states, Written(7, 0.5))
    assert document == EvidenceDocument(
        2, f"{zlib.crc32(b'a Up' + bytes([10]) + b'b Down'):08x}", b"\x00\xff", Written(7, 0.5)
    )
    fields = json.loads(encode_document(document))
    assert base64.b64decode(fields.pop("ages")) == document.ages
    assert fields == {"version": 1, "count": 2, "digest": document.digest, "revision": 7, "elapsed_s": 0.5}


# ---- the source of evidence


def source_of(**options: Any) -> str:
    return service_document("db", options, 0).source


def test_a_probe_is_a_source_of_evidence_of_its_own() -> None:
    probe = {"url": "tcp://a:1", "send": "x"}
    assert source_of(probe=probe) == source_of(probe=dict(reversed(probe.items())), interval="3s", name="other")
    assert len({source_of(probe=probe), source_of(probe="tcp://a:1"), source_of(ttl="5s"), source_of(status="Up")}) == 4
    assert source_of(ttl="5s") == source_of(probe="heartbeat:9s")


def test_a_report_needs_only_a_status() -> None:
    found = parse(KeyKind.REPORTS, {"version": 1, "status": "down"})
    assert isinstance(found, ParsedEntry)
    assert found.document == ReportDocument(Status.DOWN, "", ReasonCode.REPORTED)
