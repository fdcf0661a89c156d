"""Whether the registry can be used, and what a replica would write. Writes nothing."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.errors import RegistryCompactedError, RegistryError, RegistryLoginError
from svcnode.core.text import excerpt, join_first
from svcnode.net.etcd_json import Compare, Put
from svcnode.sharing.client import read_nodes
from svcnode.sharing.format import (
    FORMAT_VERSION,
    MAX_REVISION,
    NAME_COUNTS,
    IgnoredKind,
    encode_key,
    node_root,
    nodes_root,
    replica_owner,
    service_document,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from svcnode.core.address import RegistryAddress
    from svcnode.net.etcd_json import MemberStatus
    from svcnode.node.definition import Definition
    from svcnode.sharing import SharingSettings
    from svcnode.sharing.client import RegistryContent
    from svcnode.sharing.etcd import EtcdClient
    from svcnode.sharing.view import RegistryView

LARGE_DATABASE_BYTES = 1_000_000_000  # the default quota of etcd is 2 GB
LONG_HISTORY = 1_000_000  # revisions; a replica writes about one per second
MAX_NAMES = 10  # in a text
# From the loss of a replica to the first checks by another one, beyond the lease and an interval: its last evidence may
# have been published a second late, etcd ends a lease some time after its end, and the first checks take their time.
TAKEOVER_S = 5.0
MAX_KEY_CHARS = 200
_IGNORED_TEXTS = {
    IgnoredKind.UNKNOWN_KEY: "not of this format",
    IgnoredKind.INVALID_VALUE: "not valid",
    IgnoredKind.TOO_LARGE: "too large",
    IgnoredKind.NEWER_VERSION: "of a newer version",
}


class FindingLevel(Enum):
    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    FAILED = "failed"


class RegistryFinding(NamedTuple):
    level: FindingLevel
    subject: str
    text: str


async def check_registry(etcd: EtcdClient, registry: RegistryAddress, node: str | None) -> list[RegistryFinding]:
    """The checks up to the first one that fails, because the others would fail with it."""
    members = await _member_statuses(etcd)
    refusal = next((status for status in members.values() if isinstance(status, RegistryLoginError)), None)
    if refusal is not None:
        return [_access_failure("login", refusal)]
    reached = [status for status in members.values() if not isinstance(status, RegistryError)]
    findings = [_member_finding(endpoint, status, is_fatal=not reached) for endpoint, status in members.items()]
    if not reached:
        return findings
    if len({status.header.cluster_id for status in reached}) > 1:
        text = "the endpoints are members of different clusters; name the members of one"
        return [*findings, RegistryFinding(FindingLevel.FAILED, "cluster", text)]
    try:
        content = await read_nodes(etcd, registry.prefix, node)
    except RegistryError as exc:
        return [*findings, _access_failure("read", exc)]
    if registry.username:
        findings.append(RegistryFinding(FindingLevel.OK, "login", f"as {registry.username}"))
    findings += [_read_finding(content, registry, node), await _write_finding(etcd, registry, node)]
    root = nodes_root(registry.prefix) if node is None else node_root(registry.prefix, node)
    return [*findings, *_format_findings(content), *await _history_findings(etcd, root, reached)]


async def _member_statuses(etcd: EtcdClient) -> dict[str, MemberStatus | RegistryError]:
    async def ask(index: int) -> MemberStatus | RegistryError:
        try:
            return await etcd.status(etcd.endpoints[index])
        except RegistryError as exc:
            return exc

    statuses = await asyncio.gather(*map(ask, range(len(etcd.endpoints))))
    return dict(zip(map(str, etcd.endpoints), statuses, strict=True))


def _member_finding(endpoint: str, status: MemberStatus | RegistryError, *, is_fatal: bool) -> RegistryFinding:
    """A cluster works without some of its members."""
    if isinstance(status, RegistryError):
        return RegistryFinding(
            FindingLevel.FAILED if is_fatal else FindingLevel.WARNING,
            endpoint,
            str(status).removeprefix(f"{endpoint}: "),
        )
    role = "leader" if status.leader_id == status.header.member_id else "follower"
    text = f"etcd {status.version}, {role if status.leader_id else 'no leader'}, database {_size(status.db_bytes)}"
    if status.errors or not status.leader_id:
        return RegistryFinding(FindingLevel.WARNING, endpoint, "; ".join([text, *status.errors]))
    return RegistryFinding(FindingLevel.OK, endpoint, text)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.0f} kB"


def _access_failure(subject: str, exc: RegistryError) -> RegistryFinding:
    return RegistryFinding(FindingLevel.FAILED, "login" if isinstance(exc, RegistryLoginError) else subject, str(exc))


def _read_finding(content: RegistryContent, registry: RegistryAddress, node: str | None) -> RegistryFinding:
    if node is not None:
        return RegistryFinding(FindingLevel.OK, "read", node_root(registry.prefix, node))
    nodes = join_first(sorted(content.nodes), MAX_NAMES) if content.nodes else "none"
    return RegistryFinding(FindingLevel.OK, "read", f"{registry.prefix}, nodes: {nodes}")


async def _write_finding(etcd: EtcdClient, registry: RegistryAddress, node: str | None) -> RegistryFinding:
    """A transaction whose condition is never true: etcd checks permissions and space, and writes nothing."""
    if node is None:
        return RegistryFinding(FindingLevel.NOTE, "write", "not checked: name the node with --node")
    root = node_root(registry.prefix, node)
    keys = [encode_key(root, kind, *["check"] * counts[0]) for kind, counts in NAME_COUNTS.items()]
    try:
        await etcd.txn([Put(key, b"{}") for key in keys], [Compare(keys[0], MAX_REVISION)])
    except RegistryError as exc:
        return _access_failure("write", exc)
    return RegistryFinding(FindingLevel.OK, "write", root)


def _format_findings(content: RegistryContent) -> Iterator[RegistryFinding]:
    views = content.nodes.values()
    yield RegistryFinding(FindingLevel.OK, "format", f"version {FORMAT_VERSION}, keys: {content.key_count}")
    for kind in IgnoredKind:
        keys = sorted(key for view in views for key, ignored in view.ignored.items() if ignored.kind is kind)
        keys += content.foreign_keys if kind is IgnoredKind.UNKNOWN_KEY else []
        if keys:
            names = join_first([excerpt(key, MAX_KEY_CHARS) for key in keys], MAX_NAMES)
            text = f"{_IGNORED_TEXTS[kind]}, keys: {len(keys)}, ignored: {names}"
            yield RegistryFinding(FindingLevel.WARNING, "format", text)


async def _history_findings(etcd: EtcdClient, root: str, members: Sequence[MemberStatus]) -> list[RegistryFinding]:
    findings = []
    largest = max(status.db_bytes for status in members)
    if largest > LARGE_DATABASE_BYTES:
        text = f"the database has {_size(largest)}; the default quota is 2 GB, and a full etcd refuses all writes"
        findings.append(RegistryFinding(FindingLevel.WARNING, "size", f"{text}; compact and defragment it"))
    if await _has_long_history(etcd, root):
        text = f"more than {LONG_HISTORY:,} revisions are not compacted; start etcd with --auto-compaction-retention=1h"
        findings.append(RegistryFinding(FindingLevel.WARNING, "history", text))
    return findings


async def _has_long_history(etcd: EtcdClient, root: str) -> bool:
    """Whether an old revision can still be read."""
    key = f"{root}check"  # that the user may read; it need not exist
    revision = (await etcd.fence(key)).revision - LONG_HISTORY
    if revision < 1:
        return False
    try:
        await etcd.range(key, at_revision=revision)
    except RegistryCompactedError:
        return False
    return True


# ---- what a replica would write


def check_configuration(
    sharing: SharingSettings, node: str, definitions: Iterable[Definition], view: RegistryView
) -> Iterator[RegistryFinding]:
    """`view` is that of the node."""
    definitions = tuple(definitions)
    replica, owner = sharing.replica, replica_owner(sharing.replica)
    documents = {
        definition.service.id: service_document(definition.service.id, definition.options, position)
        for position, definition in enumerate(definitions)
        if definition.options is not None
    }
    yield RegistryFinding(
        FindingLevel.NOTE, "writes", f"of {node}: replicas/{replica}, evidence/{replica}, states/{replica}/…"
    )
    if documents:
        ids = join_first(list(documents), MAX_NAMES)
        yield RegistryFinding(FindingLevel.NOTE, "writes", f"services/…/{owner}, services: {len(documents)}: {ids}")
    if restricted := [service_id for service_id, document in documents.items() if document.restricted]:
        text = "only replicas that have them in their own file check them, and their probes are not written"
        yield RegistryFinding(FindingLevel.NOTE, "restricted", f"{join_first(restricted, MAX_NAMES)}: {text}")
    brief = [one.service.id for one in definitions if _expires_before_takeover(one, sharing.lease_s)]
    if brief:
        text = (
            f"stale_after is shorter than the lease, an interval and {TAKEOVER_S:g} s together: if the replica that "
            "checks them is lost, they are Initializing for a moment"
        )
        yield RegistryFinding(FindingLevel.NOTE, "takeover", f"{join_first(brief, MAX_NAMES)}: {text}")
    if removed := sorted(view.definitions(owner).keys() - documents.keys()):
        text = (
            "in the registry, and not in this file: removed when this replica joins, unless its control socket has them"
        )
        yield RegistryFinding(FindingLevel.NOTE, "writes", f"{join_first(removed, MAX_NAMES)}: {text}")
    yield _replica_finding(sharing, view)
    if not sharing.url:
        text = "others do not know how to reach this replica; set url in [sharing], or an address in [server] listen"
        yield RegistryFinding(FindingLevel.WARNING, "url", text)


def _expires_before_takeover(definition: Definition, lease_s: float) -> bool:
    config, stale_after_s = definition.probe_config, definition.service.policy.stale_after_s
    if config is None or stale_after_s is None:
        return False
    return stale_after_s < lease_s + config.schedule.interval_s + TAKEOVER_S


def _replica_finding(sharing: SharingSettings, view: RegistryView) -> RegistryFinding:
    live = view.replicas.get(sharing.replica)
    if live is None:
        return RegistryFinding(FindingLevel.OK, "replica", f"{sharing.replica} is not live")
    if live.url == sharing.url:
        return RegistryFinding(
            FindingLevel.OK, "replica", f"{sharing.replica} is live, with the url of this configuration"
        )
    url = f"the url {live.url}" if live.url else "no url"
    text = (
        f"{sharing.replica} is live, with {url}: another process has this name; set another with replica in [sharing]"
    )
    return RegistryFinding(FindingLevel.WARNING, "replica", text)
