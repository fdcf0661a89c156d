"""The registry format, version 1: keys and JSON documents, in both directions. docs/registry-format.md describes it.

`parse_entry` never raises. A key or a value that this version does not understand is `Ignored`, and is left as it is:
it may be of a newer version, or of another program. The two directions are inverse: `parse_entry` returns what
`encode_document` was given. No document contains a secret.
"""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from bisect import bisect_left
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote

from svcnode.core.codes import ReasonCode, known_code
from svcnode.core.errors import InvalidValueError, SvcnodeError
from svcnode.core.maintenance import DAY_S, MAX_MAINTENANCE_DAYS, parse_time_s
from svcnode.core.model import MAX_TEXT_CHARS, Service, Status, validate_service_id, validate_text
from svcnode.core.strict_json import compact_json, parse_strict_json
from svcnode.core.text import encodable, safe_reason, sanitize, type_name
from svcnode.core.units import iso_time
from svcnode.net.etcd_json import MAX_VALUE_BYTES, OVERSIZED
from svcnode.node.definition import ServiceOptions, define
from svcnode.probes import make_probe
from svcnode.probes.restricted import is_restricted, reject_local_access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from svcnode.probes.base import Probe

T = TypeVar("T")

FORMAT_VERSION = 1
REPLICA_OWNER = "replica:"  # begins the owner of a definition that is in the file or the control store of a replica
LOST_OWNER = "lost:"  # begins the owner of what the registry has lost, and a replica has written again
MAX_NAME_CHARS = 256
MAX_OBSERVERS = 7
MAX_DURATION_S = 1e9  # of an age; the time since the start of a machine is less
MAX_REVISION = 2**63 - 1
ROUNDING_S = 0.001  # of the times in documents
# The age that each byte from 0 to 254 stands for, from 0 s to 6 days; 255 is an age beyond that, which renews nothing.
# One byte per state keeps the record of 10,000 states small.
AGES_S = [0.05 * (1.066**byte - 1) for byte in range(255)]
_PLAIN_SEGMENT = re.compile(rf"[A-Za-z0-9_.~-]{{1,{MAX_NAME_CHARS}}}")
TEXTS = ("name", "description", "group", "runbook")
OPTIONS = {*ServiceOptions.__annotations__, "status", "observers", "checked_by"}  # not `push_token`, a secret
REPORTED_STATUS = {"up": Status.UP, "initializing": Status.INITIALIZING, "down": Status.DOWN}


class KeyKind(StrEnum):
    """The first segment of a key below the root; the other segments are names."""

    REPLICAS = "replicas"  # /{replica}
    SERVICES = "services"  # /{id}/{owner}
    ISSUES = "issues"  # /{name}/{owner}
    STATES = "states"  # /{replica}/{id}
    EVIDENCE = "evidence"  # /{replica}
    REPORTS = "reports"  # /{id}/{owner}
    SENDERS = "senders"  # /{target}
    TOLD = "told"  # /{target}
    DRAINS = "drains"  # /{scope}
    MAINTENANCE = "maintenance"  # /{scope} of the node, /{scope}/{id} of a service
    PLANNED_MAINTENANCE = "planned_maintenance"  # the same, for a later time


REPORTS = "reports"  # the source of a state that follows from reports to a replica
ALL_REPLICAS = "all"  # the scope of what is asked of all replicas; that of one replica is its owner
WORK_KINDS = (KeyKind.DRAINS, KeyKind.MAINTENANCE, KeyKind.PLANNED_MAINTENANCE)


_WITH_REASON = (
    KeyKind.STATES,
    KeyKind.REPORTS,
    KeyKind.ISSUES,
    KeyKind.DRAINS,
)  # which may be anything: bad news is never ignored for it
_WITH_LEASE = (KeyKind.REPLICAS, KeyKind.SENDERS)  # without one, they would never go
_WITH_ONE_NAME = (KeyKind.REPLICAS, KeyKind.EVIDENCE, KeyKind.SENDERS, KeyKind.TOLD, KeyKind.DRAINS)
_WITH_ONE_OR_TWO = (KeyKind.MAINTENANCE, KeyKind.PLANNED_MAINTENANCE)
NAME_COUNTS = {
    kind: (1,) if kind in _WITH_ONE_NAME else (1, 2) if kind in _WITH_ONE_OR_TWO else (2,) for kind in KeyKind
}


class IgnoredKind(StrEnum):
    UNKNOWN_KEY = "unknown_key"
    INVALID_VALUE = "invalid_value"
    TOO_LARGE = "too_large"
    NEWER_VERSION = "newer_version"


class RegistryKey(NamedTuple):
    kind: KeyKind
    names: tuple[str, ...]


class Ignored(NamedTuple):
    kind: IgnoredKind
    reason: str


class ReplicaDocument(NamedTuple):
    instance: str  # random, of the process
    url: str  # of its interface; may be empty
    software: str


class ServiceDocument(NamedTuple):
    """The definition of a service by one owner. Made by `service_document` only, which leaves secrets out."""

    position: int  # in the file, or in the order of registration
    options: Mapping[str, Any]  # the keys of a [[services]] table; no `probe` if restricted
    restricted: bool  # only its owners have the probe
    service: Service  # what the options mean
    observers: int
    checked_by: tuple[str, ...]  # replicas; empty: any
    source: str  # of `_evidence_source`

    @property
    def is_checked(self) -> bool:
        """Whether a probe checks it. Otherwise it reports by itself, or has a fixed status."""
        return self.service.policy.stale_after_s is not None

    @property
    def fixed_status(self) -> Status | None:
        return Status(self.options["status"]) if "status" in self.options else None

    @property
    def valid_s(self) -> float:
        """How long evidence is valid: `stale_after` or `ttl`; infinity for a fixed status."""
        policy = self.service.policy
        valid_s = policy.stale_after_s if policy.ttl_s is None else policy.ttl_s
        return math.inf if valid_s is None else valid_s


class IssueDocument(NamedTuple):
    reason: str


class Written(NamedTuple):
    """When a document was composed: `elapsed_s` after its replica received a response with this revision.

    So it was composed at least `elapsed_s` after the revision, however long it took to reach etcd.
    """

    revision: int
    elapsed_s: float


class StateDocument(NamedTuple):
    """The state that a replica has for a service that it observes."""

    status: Status
    reason: str
    code: str
    age_s: float  # of the last success if Up, of the last evidence otherwise, when the document was composed
    since_age_s: float
    source: str  # of the definition by which the service was observed
    written: Written


class EvidenceDocument(NamedTuple):
    """The ages of the evidence of all states of a replica, in the order of their ids."""

    state_count: int
    digest: str  # of `states_digest`
    ages: bytes  # of `encode_age`
    written: Written


class ReportDocument(NamedTuple):
    """A report of a client without a replica. Every write is a heartbeat."""

    status: Status
    reason: str
    code: str


class SenderDocument(NamedTuple):
    """Which replica sends the notifications to a target."""

    replica: str
    lease: str  # as etcdctl shows it


class ToldDocument(NamedTuple):
    """What a notification target was told."""

    told: list[dict[str, Any]]  # the rows of svcnode.notify


class WorkDocument(NamedTuple):
    """A drain or a maintenance, and who has asked for it. Times are those of the wall clock of the writer."""

    by: str  # a person or a user; may be empty
    via: str  # the replica or the client that has written it
    reason: str
    at_s: float | None = None  # when it was asked for; None: not known
    from_s: float | None = None  # a drain has neither begin nor end
    until_s: float | None = None


RegistryDocument = (
    ReplicaDocument
    | ServiceDocument
    | IssueDocument
    | StateDocument
    | EvidenceDocument
    | ReportDocument
    | SenderDocument
    | ToldDocument
    | WorkDocument
)


class ParsedEntry(NamedTuple):
    key: RegistryKey
    document: RegistryDocument


# ---- keys


def node_root(prefix: str, node: str) -> str:
    """The beginning of all keys of a node."""
    return f"{nodes_root(prefix)}{_segment(node)}/"


def nodes_root(prefix: str) -> str:
    """The beginning of all keys of all nodes."""
    return f"{prefix.rstrip('/')}/v{FORMAT_VERSION}/"


def node_of(prefix: str, key: str) -> str | None:
    """The name of the node to which a key belongs; None if it is no key of a node."""
    root = nodes_root(prefix)
    segment, slash, _ = key.removeprefix(root).partition("/")
    return _name(segment) if key.startswith(root) and slash else None


def encode_key(root: str, kind: KeyKind, *names: str) -> str:
    assert len(names) in NAME_COUNTS[kind]
    return "/".join((f"{root}{kind}", *map(_segment, names)))


def parse_key(root: str, key: str) -> RegistryKey | None:
    if not key.startswith(root):
        return None
    first, *segments = key.removeprefix(root).split("/")
    names = [_name(segment) for segment in segments]
    valid = tuple(name for name in names if name is not None)
    if first not in NAME_COUNTS or len(valid) != len(names) or len(names) not in NAME_COUNTS[KeyKind(first)]:
        return None
    return RegistryKey(KeyKind(first), valid)


def work_key(kind: KeyKind, scope: str, service_id: str | None) -> RegistryKey:
    """Of a drain or a maintenance, of the node if there is no service."""
    return RegistryKey(kind, (scope,) if service_id is None else (scope, service_id))


def replica_owner(replica: str) -> str:
    return f"{REPLICA_OWNER}{replica}"


def replica_of(owner: str) -> str | None:
    """The replica that is this owner; None for a client."""
    return owner.removeprefix(REPLICA_OWNER) if owner.startswith(REPLICA_OWNER) else None


def lost_owner(owner: str) -> str:
    """Who has what this owner had, since the registry has lost it. It is not lost twice."""
    return owner if is_lost(owner) else f"{LOST_OWNER}{owner}"[:MAX_NAME_CHARS]


def original_owner(owner: str) -> str:
    return owner.removeprefix(LOST_OWNER)


def is_lost(owner: str) -> bool:
    return owner.startswith(LOST_OWNER)


def _segment(name: str) -> str:
    return quote(name, safe="")


def _name(segment: str) -> str | None:
    """The name in a segment. One name has one segment, so that no two keys are about the same thing."""
    if _PLAIN_SEGMENT.fullmatch(segment):  # the common case
        return segment
    try:
        name = unquote(segment, errors="strict")
        validate_text("a name", name)
    except ValueError:
        return None
    return name if len(name) <= MAX_NAME_CHARS and _segment(name) == segment else None


# ---- documents


def parse_entry(root: str, key: str, value: bytes, *, has_lease: bool) -> ParsedEntry | Ignored:
    parsed = parse_key(root, key)
    if parsed is None:
        return Ignored(IgnoredKind.UNKNOWN_KEY, "not a key of this format")
    if value == OVERSIZED:
        return Ignored(IgnoredKind.TOO_LARGE, f"larger than {MAX_VALUE_BYTES:,} bytes")
    try:
        fields = _parse_json(value, any_text=parsed.kind in _WITH_REASON)
        version = _required(fields, "version", int)
        if version > FORMAT_VERSION:
            return Ignored(IgnoredKind.NEWER_VERSION, f"version {version}; this replica reads {FORMAT_VERSION}")
        if version != FORMAT_VERSION:
            raise InvalidValueError(f"version: must be {FORMAT_VERSION}")
        if parsed.kind in _WITH_LEASE and not has_lease:
            raise InvalidValueError("a live replica has a lease, and this key has none")
        return ParsedEntry(parsed, _PARSERS[parsed.kind](parsed, fields))
    except (SvcnodeError, ValueError) as exc:
        return Ignored(IgnoredKind.INVALID_VALUE, sanitize(str(exc)))


def _parse_json(value: bytes, *, any_text: bool) -> Any:  # noqa: ANN401  any JSON value
    try:
        return parse_strict_json(value, any_text=any_text)
    except ValueError as exc:
        raise InvalidValueError(f"not valid JSON: {exc}") from exc


def encode_document(document: RegistryDocument) -> bytes:
    return compact_json({"version": FORMAT_VERSION, **_fields(document)}).encode()


def _fields(document: RegistryDocument) -> dict[str, Any]:
    match document:
        case ServiceDocument(position, options, restricted):
            return {"position": position, "options": dict(options), **({"restricted": True} if restricted else {})}
        case StateDocument(status, reason, code, age_s, since_age_s, source, written):
            observed = {"age_s": age_s, "since_age_s": since_age_s, "source": source}
            return {
                "status": status.value,
                "reason": safe_reason(reason),
                "code": code,
                **observed,
                **written._asdict(),
            }
        case EvidenceDocument(count, digest, ages, written):
            text = base64.b64encode(ages).decode()
            return {"count": count, "digest": digest, "ages": text, **written._asdict()}
        case ReportDocument(status, reason, code):
            return {"status": status.value.lower(), "reason": safe_reason(reason), "code": code}
        case ToldDocument(told):
            return {"told": told}
        case ReplicaDocument() | IssueDocument() | SenderDocument() | WorkDocument():
            values = ((name, value) for name, value in document._asdict().items() if value is not None)
            return {
                name.removesuffix("_s"): iso_time(value) if isinstance(value, float) else safe_reason(value)
                for name, value in values
            }


def _parse_replica(_: RegistryKey, fields: Mapping[str, Any]) -> ReplicaDocument:
    url = _text(fields, "url")
    if url and not url.startswith(("http://", "https://")):  # it becomes a link on a page
        raise InvalidValueError("url: must begin with http:// or https://")
    return ReplicaDocument(_text(fields, "instance"), url, _text(fields, "software"))


def _parse_service(key: RegistryKey, fields: Mapping[str, Any]) -> ServiceDocument:
    options = _required(fields, "options", dict)
    restricted = fields.get("restricted", False)
    if type(restricted) is not bool:
        raise InvalidValueError(f"restricted: must be true or false, not {type_name(restricted)}")
    if "probe" in options:
        reject_local_access(_probe(options))
    if replica_of(original_owner(key.names[1])) is None:
        _check_lengths(options)
    return _service_document(key.names[0], options, _int(fields, "position"), restricted=restricted)


def _check_lengths(options: Mapping[str, Any]) -> None:
    """Of what a client registers, as at the control socket."""
    for name, max_chars in MAX_TEXT_CHARS.items():
        if (length := len(str(options.get(name, "")))) > max_chars:
            raise InvalidValueError(f"{name}: must have at most {max_chars} characters, not {length}")


def _parse_issue(_: RegistryKey, fields: Mapping[str, Any]) -> IssueDocument:
    return IssueDocument(safe_reason(fields.get("reason")))


def _parse_state(_: RegistryKey, fields: Mapping[str, Any]) -> StateDocument:
    try:
        status = Status(_required(fields, "status", str))
    except ValueError:
        raise InvalidValueError("status: must be Up, Initializing or Down") from None
    reason, code = safe_reason(fields.get("reason")), known_code(fields.get("code"))
    age_s, since_age_s = _duration_s(fields, "age_s"), _duration_s(fields, "since_age_s")
    return StateDocument(status, reason, code, age_s, since_age_s, _text(fields, "source"), _written(fields))


def _parse_evidence(_: RegistryKey, fields: Mapping[str, Any]) -> EvidenceDocument:
    ages = base64.b64decode(_required(fields, "ages", str), validate=True)
    count = _int(fields, "count")
    if len(ages) != count:
        raise InvalidValueError(f"ages: {len(ages)} bytes, and count is {count}")
    return EvidenceDocument(count, _text(fields, "digest"), ages, _written(fields))


def _parse_report(_: RegistryKey, fields: Mapping[str, Any]) -> ReportDocument:
    status = REPORTED_STATUS.get(_required(fields, "status", str))
    if status is None:
        raise InvalidValueError(f"status: must be one of {', '.join(REPORTED_STATUS)}")
    code = fields.get("code", ReasonCode.REPORTED.value)
    return ReportDocument(status, safe_reason(fields.get("reason")), known_code(code))


def _parse_sender(_: RegistryKey, fields: Mapping[str, Any]) -> SenderDocument:
    return SenderDocument(_text(fields, "replica"), _text(fields, "lease"))


def _parse_told(_: RegistryKey, fields: Mapping[str, Any]) -> ToldDocument:
    told = _required(fields, "told", list)
    if not all(isinstance(row, dict) for row in told):
        raise InvalidValueError("told: must be a list of objects")
    return ToldDocument(told)


def _parse_drain(_: RegistryKey, fields: Mapping[str, Any]) -> WorkDocument:
    """Whatever is in it, it drains."""
    document = _work_document(fields)
    try:
        return document._replace(at_s=_time_s(fields, "at"))
    except InvalidValueError:
        return document


def _parse_maintenance(_: RegistryKey, fields: Mapping[str, Any]) -> WorkDocument:
    """It holds alerts, so it has an end, and not a late one."""
    at_s = _time_s(fields, "at") if "at" in fields else None
    from_s, until_s = _time_s(fields, "from"), _time_s(fields, "until")
    if not 0 < until_s - from_s <= MAX_MAINTENANCE_DAYS * DAY_S + ROUNDING_S:
        raise InvalidValueError(f"until: must be later than from, by at most {MAX_MAINTENANCE_DAYS} days")
    return _work_document(fields)._replace(at_s=at_s, from_s=from_s, until_s=until_s)


def _work_document(fields: Mapping[str, Any]) -> WorkDocument:
    by, via, reason = (safe_reason(fields.get(name)) for name in ("by", "via", "reason"))
    return WorkDocument(by, via, reason)


def _time_s(fields: Mapping[str, Any], name: str) -> float:
    try:
        return parse_time_s(_required(fields, name, str))
    except InvalidValueError as exc:
        raise InvalidValueError(f"{name}: {exc}") from exc


_PARSERS: dict[KeyKind, Callable[[RegistryKey, Mapping[str, Any]], RegistryDocument]] = {
    KeyKind.REPLICAS: _parse_replica,
    KeyKind.SERVICES: _parse_service,
    KeyKind.ISSUES: _parse_issue,
    KeyKind.STATES: _parse_state,
    KeyKind.EVIDENCE: _parse_evidence,
    KeyKind.REPORTS: _parse_report,
    KeyKind.SENDERS: _parse_sender,
    KeyKind.TOLD: _parse_told,
    KeyKind.DRAINS: _parse_drain,
    KeyKind.MAINTENANCE: _parse_maintenance,
    KeyKind.PLANNED_MAINTENANCE: _parse_maintenance,
}


def _required(fields: object, name: str, kind: type[T]) -> T:
    if not isinstance(fields, dict):
        raise InvalidValueError(f"must be an object, not {type_name(fields)}")
    if name not in fields:
        raise InvalidValueError(f"{name}: required")
    value = fields[name]
    if type(value) is not kind:
        raise InvalidValueError(f"{name}: must be {type_name(kind())}, not {type_name(value)}")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    text = _required(fields, name, str)
    if any("\ud800" <= char < "\ue000" for char in text):
        raise InvalidValueError(f"{name}: not Unicode text")
    return safe_reason(text)


def _int(fields: Mapping[str, Any], name: str) -> int:
    value = _required(fields, name, int)
    if not 0 <= value <= MAX_REVISION:
        raise InvalidValueError(f"{name}: must be a whole number of at least 0")
    return value


def _duration_s(fields: Mapping[str, Any], name: str) -> float:
    value: Any = fields.get(name)
    if type(value) not in (int, float) or not 0 <= value <= MAX_DURATION_S:
        raise InvalidValueError(f"{name}: must be a number of seconds of at least 0")
    return float(value)


def _written(fields: Mapping[str, Any]) -> Written:
    return Written(_int(fields, "revision"), _duration_s(fields, "elapsed_s"))


# ---- definitions


def service_document(service_id: str, options: Mapping[str, Any], position: int) -> ServiceDocument:
    """The definition to publish, from the options as written, with the defaults of the file applied.

    A probe that reads the machine or may hold a secret is left out, and the definition is restricted. Raises
    `SvcnodeError` for options that are not valid.
    """
    published = {name: value for name, value in options.items() if name in OPTIONS}
    published |= {name: encodable(published[name]) for name in TEXTS if name in published}
    restricted = "probe" in published and is_restricted(_probe(published))
    if restricted:
        del published["probe"]
    return _service_document(service_id, published, position, restricted=restricted)


def _service_document(
    service_id: str, options: Mapping[str, Any], position: int, *, restricted: bool
) -> ServiceDocument:
    validate_service_id(service_id)
    if len(options.keys() & {"probe", "ttl", "status"}) + restricted != 1:
        raise InvalidValueError("options: exactly one of probe, ttl and status is required, and none if restricted")
    others = dict(options)
    probe = _heartbeat(others.pop("probe", None))
    if probe is None and (restricted or "probe" in options):
        probe = _any_probe()
    observers, checked_by = _observers(others.pop("observers", 1)), _checked_by(others.pop("checked_by", []))
    _check_status(others.pop("status", None))
    for name in TEXTS:
        if name in others:
            _text(others, name)
    try:
        service = define(service_id, probe=probe, **others).service
    except TypeError as exc:
        raise InvalidValueError(f"options: {exc}") from exc
    source = _evidence_source(options, is_checked=service.policy.stale_after_s is not None)
    return ServiceDocument(position, options, restricted, service, observers, checked_by, source)


def _evidence_source(options: Mapping[str, Any], *, is_checked: bool) -> str:
    """Where the evidence of a service comes from. Evidence from another source says nothing about it."""
    if not is_checked:
        return "status" if "status" in options else REPORTS
    if "probe" not in options:
        return "restricted"
    return f"{zlib.crc32(json.dumps(options['probe'], sort_keys=True, separators=(',', ':')).encode()):08x}"


@lru_cache(maxsize=1)
def _any_probe() -> Probe:
    """What a definition means to a reader does not depend on its probe, whose driver the reader may not have."""
    return make_probe("tcp://localhost:1")


def _probe(options: Mapping[str, Any]) -> str | dict[str, Any]:
    probe: object = options["probe"]
    if isinstance(probe, str | dict):
        return probe
    raise InvalidValueError(f"probe: must be a URL or a table with a url, not {type_name(probe)}")


def _heartbeat(probe: object) -> Probe | None:
    """The probe of a service that reports by itself; None for any other."""
    url = probe.get("url") if isinstance(probe, dict) else probe
    is_heartbeat = isinstance(url, str) and url.lower().startswith("heartbeat:")
    return make_probe(cast("str | dict[str, Any]", probe)) if is_heartbeat else None


def _observers(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_OBSERVERS:
        raise InvalidValueError(f"observers: must be a whole number from 1 to {MAX_OBSERVERS}")
    return value


def _checked_by(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise InvalidValueError("checked_by: must be a list of replicas")
    return tuple(value)


def _check_status(value: object) -> None:
    if value is not None and value not in {status.value for status in Status}:
        raise InvalidValueError("status: must be Up, Initializing or Down")


# ---- evidence


def states_digest(states: Iterable[tuple[str, Status]]) -> str:
    """Of the ids and statuses in the order of the ids: writer and reader must mean the same states."""
    text = "\n".join(f"{service_id} {status.value}" for service_id, status in states)
    return f"{zlib.crc32(text.encode()):08x}"


def evidence_document(states: Mapping[str, tuple[Status, float]], written: Written) -> EvidenceDocument:
    """From the status and the age of the evidence of each state that the replica has put, by service id."""
    ordered = sorted(states.items())
    digest = states_digest((service_id, status) for service_id, (status, _) in ordered)
    return EvidenceDocument(len(ordered), digest, bytes(encode_age(age_s) for _, (_, age_s) in ordered), written)


def encode_age(age_s: float) -> int:
    """Rounded up, by at most 7 %: evidence never becomes younger on its way."""
    return bisect_left(AGES_S, age_s)


def decode_age_s(age: int) -> float | None:
    """None if it is too old to renew a state."""
    return AGES_S[age] if age < len(AGES_S) else None
