"""One node on several machines: replicas that share their services and states through etcd, the registry.

    configuration file ─┐                                          ┌─► list and order of the services
    control socket ─────┤                                          │
                        ▼                                          │
                   ┌─────────┐  put    ┌──────┐  watch  ┌──────────┴───┐  who observes a service  ┌───────────┐
                   │ Replica ├────────►│ etcd ├────────►│ RegistryView ├─────────────────────────►│ scheduler │
                   └─▲───────┘         └──▲───┘         └──────────┬───┘                          └─────┬─────┘
                     │                    │                        │ merged states                      │
    other replicas ──┼────────────────────┤                        ▼                                    │
    etcdctl, clients ┼────────────────────┘                      Node                                   │
                     └───────────────────────── states, evidence ◄──────────────────────────────────────┘

All replicas read the same keys and derive everything else from them by pure functions, so they agree without a leader
and without locks. No wall clock is compared: evidence is dated by the revisions of etcd (docs/registry-format.md).

    etcd      the client of etcd's JSON gateway; etcd_json: its requests and responses
    login     its login, which reads a password again that was refused
    pages     how many keys it reads at once
    fences    when a revision was written, at the earliest
    format    keys and documents, in both directions
    view      the keys as last known
    rules     who observes a service, and the state that follows from what the observers publish
    lost      what the registry has lost after a restore
    cache     the last view on disk
    record    what a replica knows of one service, and what follows from it
    node_sync makes the services of the node and their states equal to that
    shared_services follows the view, the own definitions and the checks, and says what is to be published
    publisher the keys of this replica: what it has to write, and what it has written
    follow    the loop that reads the registry
    publish   the loops that write to it, and renew the lease
    work      drains and maintenance of all replicas, and of this one for the others to show
    turns     which replica sends the notifications to a target, and what the target was told
    problems  why one of them cannot
    replica   runs the loops
    client    clients that are no replicas: they register and report services, or read all nodes
    check     whether the registry can be used, and what a replica would write
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.core.address import RegistryAddress
    from svcnode.net.tls import TlsOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingSettings:
    """A replica, and the registry that it shares with the others."""

    registry: RegistryAddress
    tls: TlsOptions | None  # of the connections to the registry; None: without TLS
    replica: str
    observers: int  # of a service that does not set another number
    lease_s: float
    url: str  # where the others reach the interface of this replica; "" if they cannot
    cache_path: Path | None = None  # of the last view of the registry; None: there is no folder for it
