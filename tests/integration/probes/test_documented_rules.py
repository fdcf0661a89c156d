"""The health rules that the documentation of some node software states, as configurations, replayed against its pages.

The pages have the series and documents that the programs show. They move with a virtual clock, which the conditions
read too: three hours of checks take a second. Each documented fault must be found in the documented time by the right
service and by no other one, and a replay without faults, or with events that are no faults, must find none.

What the rules of some documentation ask for, and a condition cannot say: the difference of two series, such as known
and synced checkpoints, and the rate of a counter of errors.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from string import Template
from typing import TYPE_CHECKING, NamedTuple

import pytest

from svcnode.config import load
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.probes import conditions
from svcnode.probes.conditions import Advances, ConditionalProbe
from svcnode.probes.run import run_check
from tests.support.backends import HttpBackend, ReceivedRequest, http_response
from tests.support.verdicts import UNEXPECTED_RESPONSE, failed, not_ready
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from svcnode.core.model import Verdict
    from svcnode.probes.base import Probe
    from tests.support.check_runner import CheckRunner

START_S = 1_800_000_000.0
HEALTHY_CHECKS = 130  # more than the longest time in which something must advance
CHECK_TIMEOUT_S = 30.0
STALLED, LAGGING, STARTING = failed(ReasonCode.STALLED), failed(ReasonCode.LAGGING), not_ready(ReasonCode.STARTING)
SERVER_ERROR = failed(ReasonCode.SERVER_ERROR)


# ---- values on a page


class Grows(NamedTuple):
    """A counter or a height."""

    per_s: float
    first: int = 1_000_000

    def at(self, now_s: float) -> int:
        return int(self.first + (now_s - START_S) * self.per_s)


class IsTime(NamedTuple):
    """The time of something that is always this old, in a unit that is so many-th of a second."""

    age_s: float = 1.0
    unit: int = 1

    def at(self, now_s: float) -> int:
        return int((now_s - self.age_s) * self.unit)


class Stands(NamedTuple):
    """A value that was as it is now at some time, and does not move any more."""

    value: object

    def at(self, _: float) -> object:
        return self.value


STOPS = object()  # a fault: the value stays as it is
GONE = object()  # a fault: the lines with the value are missing


@dataclass(frozen=True)
class Fault:
    """What changes on the pages, and what services find, in this time and two intervals; the others find nothing."""

    values: Mapping[str, object]
    found: Mapping[str, Verdict]
    after_s: float = 0.0


@dataclass(frozen=True)
class Program:
    config: str  # with $address
    pages: Mapping[str, str]  # by path: a status and a body, with $names of values
    values: Mapping[str, object]
    faults: Mapping[str, Fault]
    harmless: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


class Replay:
    """A program that serves its pages, and the probes of its configuration, at the times of one clock."""

    def __init__(self, program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.program = program
        self._clock = VirtualClock(START_S)
        self._values = dict(program.values)
        self._folder = folder
        monkeypatch.setattr(conditions.time, "time", self._clock)  # type: ignore[attr-defined]
        self._backend = HttpBackend(self._respond)

    def __enter__(self) -> Replay:
        self._backend.__enter__()
        file = self._folder / "svcnode.toml"
        file.write_text(Template(self.program.config).substitute(address=self._backend.address))
        services = load(file, {}).services
        self._probes: dict[str, Probe] = {}
        for service in services:
            config = service.definition.probe_config
            assert config is not None
            self.interval_s = config.schedule.interval_s
            self._probes[service.id] = self._with_clock(config.probe)
        return self

    def __exit__(self, *error: object) -> None:
        self._backend.__exit__(None, None, None)

    def _with_clock(self, probe: Probe) -> Probe:
        if isinstance(probe, ConditionalProbe):
            for condition in (*probe.require, *probe.starting):
                if isinstance(condition.test, Advances):
                    object.__setattr__(condition.test, "clock", self._clock)
        return probe

    def _respond(self, request: ReceivedRequest) -> bytes:
        status, _, body = self.program.pages[request.target].partition("\n")
        gone = [name for name, value in self._values.items() if value is GONE]
        lines = [line for line in body.splitlines() if not any(f"${name}" in line for name in gone)]
        shown = {name: self._shown(value) for name, value in self._values.items()}
        text = Template("\n".join([status, *lines, ""])).substitute(shown)
        status, _, body = text.partition("\n")
        return http_response(int(status), body)

    def _shown(self, value: object) -> object:
        return value.at(self._clock()) if isinstance(value, Grows | IsTime | Stands) else value

    def change(self, values: Mapping[str, object]) -> None:
        assert not values.keys() - self._values.keys()
        for name, value in values.items():
            self._values[name] = Stands(self._shown(self._values[name])) if value is STOPS else value

    def repair(self) -> None:
        self._values = dict(self.program.values)

    async def check(self) -> dict[str, Verdict]:
        """The services that are not ready, after the next check of all."""
        self._clock.advance(self.interval_s)
        results = await asyncio.gather(*(run_check(probe, CHECK_TIMEOUT_S) for probe in self._probes.values()))
        verdicts = zip(self._probes, results, strict=True)
        return {id_: verdict for id_, (verdict, _) in verdicts if verdict.outcome is not Outcome.READY}

    async def warm_up(self) -> None:
        """Until each value that must advance has advanced."""
        for _ in range(HEALTHY_CHECKS):
            found = await self.check()
            assert all(verdict == STARTING for verdict in found.values()), found
            if not found:
                return
        raise AssertionError(found)

    async def stays_healthy(self, checks: int = HEALTHY_CHECKS) -> None:
        for _ in range(checks):
            found = await self.check()
            assert found == {}

    async def finds(self, fault: Fault) -> None:
        started_s = self._clock()
        found: dict[str, Verdict] = {}
        while found != fault.found:
            assert found.keys() <= fault.found.keys(), found
            assert self._clock() - started_s <= fault.after_s + self.interval_s, (
                f"not found: {fault.found}, but {found}"
            )
            found = await self.check()


# ---- op-node
#
# docs.optimism.io, "Node metrics and monitoring": op_node_default_refs_number "represents the op-node's current L1/L2
# reference block number for different sync types. If it stops increasing, it means that the node is not syncing. If it
# goes backwards, it means your node is reorging." The count of peers: "Without peers, the op-node cannot sync unsafe
# blocks and your node will lag behind the sequencer". The page calls it op_node_default_peer_count; op-node/metrics of
# the Optimism repository, and its page, op_node_default_p2p_peer_count. refs_time is there too: "the different L1/L2
# reference block timestamps". up: "1 if the op node has finished starting up".

OP_NODE = Program(
    config="""
        [node]
        name = "op-node"
        [defaults]
        interval = "30s"
        [[services]]
        id = "sequencer"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = [
          'op_node_default_refs_number{layer="l2", type="l2_unsafe"} advances within 1m',
          'age of op_node_default_refs_time{layer="l2", type="l2_unsafe"} <= 1m',
        ]
        starting = ["op_node_default_up == 0"]
        [[services]]
        id = "derivation"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = [
          'op_node_default_refs_number{layer="l1", type="l1_head"} advances within 5m',
          'op_node_default_refs_number{layer="l1", type="l1_derived"} advances within 5m',
          'op_node_default_refs_number{layer="l2", type="l2_safe"} advances within 30m',
          'op_node_default_refs_number{layer="l2", type="l2_finalized"} advances within 1h',
        ]
        starting = ["op_node_default_up == 0"]
        [[services]]
        id = "peers"
        probe = { url = "metrics+http://$address/metrics", require = ["op_node_default_p2p_peer_count >= 1"] }
    """,
    pages={
        "/metrics": """200
# HELP op_node_default_up 1 if the op node has finished starting up
# TYPE op_node_default_up gauge
op_node_default_up $up
# TYPE op_node_default_p2p_peer_count gauge
op_node_default_p2p_peer_count $peers
# HELP op_node_default_refs_number Gauge representing the different L1/L2 reference block numbers
# TYPE op_node_default_refs_number gauge
op_node_default_refs_number{layer="l1",type="l1_derived"} $derived
op_node_default_refs_number{layer="l1",type="l1_head"} $l1
op_node_default_refs_number{layer="l1_origin",type="l2_unsafe"} $l1
op_node_default_refs_number{layer="l2",type="l2_finalized"} $finalized
op_node_default_refs_number{layer="l2",type="l2_safe"} $safe
op_node_default_refs_number{layer="l2",type="l2_unsafe"} $unsafe
# TYPE op_node_default_refs_time gauge
op_node_default_refs_time{layer="l2",type="l2_unsafe"} $unsafe_time
"""
    },
    values={
        "up": 1,
        "peers": 17,
        "l1": Grows(1 / 12),
        "derived": Grows(1 / 12),
        "unsafe": Grows(1 / 2),
        "safe": Grows(1 / 2),
        "finalized": Grows(1 / 2),
        "unsafe_time": IsTime(),
    },
    faults={
        "it is not syncing": Fault({"unsafe": STOPS, "unsafe_time": STOPS}, {"sequencer": STALLED}, after_s=60),
        "it lags behind the sequencer, and goes on": Fault({"unsafe_time": IsTime(600)}, {"sequencer": LAGGING}),
        "it sees no new blocks of L1": Fault({"l1": STOPS}, {"derivation": STALLED}, after_s=300),
        "it derives nothing from L1": Fault({"derived": STOPS, "safe": STOPS}, {"derivation": STALLED}, after_s=300),
        "no batches are posted": Fault({"safe": STOPS}, {"derivation": STALLED}, after_s=1800),
        "L1 finalizes nothing": Fault({"finalized": STOPS}, {"derivation": STALLED}, after_s=3600),
        "it has no peers": Fault({"peers": 0}, {"peers": UNEXPECTED_RESPONSE}),
        "it has not finished starting up": Fault({"up": 0}, {"sequencer": STARTING, "derivation": STARTING}),
    },
    harmless={
        "a reorg of L2 by 3 blocks": {"unsafe": Grows(1 / 2, 999_997)},
        "a reorg of L1": {"l1": Grows(1 / 12, 999_999), "derived": Grows(1 / 12, 999_998)},
    },
)

# ---- EigenDA
#
# monitoring/alerting/eigenda-alerts.json of eigenda-operator-setup: an alert if the smallest and the largest value of
# node_eigenda_processed_batches_total{type="number", status="signed"} in 3600 s are equal, and if there is no data:
# "Number of signed batches are not increasing." A node of V2 no longer counts there (node/grpc/server_v2.go); the
# dashboard of the same repository has eigenda_node_store_chunks_stage_latency_ms_count by stage, and "sign" is the
# last one. node_reachability_status is 1 or 0 for each socket (node/node.go). node_registered_quorums_rank is set to 0
# if the operator is no longer in the quorum (node/metrics.go). An ejected operator gets no traffic.

EIGENDA_CONFIG = """
    [node]
    name = "eigenda"
    [defaults]
    interval = "1m"
    [[services]]
    id = "batches"
    [services.probe]
    url = "metrics+http://$address/metrics"
    require = ['SIGNED advances within 1h']
    [[services]]
    id = "reachable"
    probe = { url = "metrics+http://$address/metrics", require = ["min of node_reachability_status == 1"] }
    [[services]]
    id = "quorums"
    probe = { url = "metrics+http://$address/metrics", require = ["min of node_registered_quorums_rank >= 1"] }
    [[services]]
    id = "api"
    probe = "svc+http://$address/eigen/node"
"""
EIGENDA_PAGE = """200
# TYPE node_registered_quorums_rank gauge
node_registered_quorums_rank{quorum="0"} $rank
node_registered_quorums_rank{quorum="1"} 31
# TYPE node_reachability_status gauge
node_reachability_status{service="dispersalVERSION"} $dispersal
node_reachability_status{service="retrievalVERSION"} 1
"""
EIGENDA_V1_PAGE = """# TYPE node_eigenda_processed_batches_total counter
node_eigenda_processed_batches_total{status="received",type="number"} $received
node_eigenda_processed_batches_total{status="received",type="size"} 5.1224578e+07
node_eigenda_processed_batches_total{status="signed",type="number"} $signed
"""
EIGENDA_V2_PAGE = """# TYPE eigenda_node_store_chunks_stage_latency_ms summary
eigenda_node_store_chunks_stage_latency_ms{stage="sign",quantile="0.5"} 1.118204
eigenda_node_store_chunks_stage_latency_ms_sum{stage="sign"} 91833.2
eigenda_node_store_chunks_stage_latency_ms_count{stage="validate"} $received
eigenda_node_store_chunks_stage_latency_ms_count{stage="sign"} $signed
"""


def eigenda(signed: str, page: str, version: str) -> Program:
    return Program(
        config=EIGENDA_CONFIG.replace("SIGNED", signed),
        pages={
            "/metrics": EIGENDA_PAGE.replace("VERSION", version) + page,
            "/eigen/node/health": "$health\n",
            "/eigen/node/services": "200\n{}\n",
        },
        values={"rank": 42, "dispersal": 1, "received": Grows(0.1), "signed": Grows(0.1), "health": 200},
        faults={
            "the number of signed batches does not increase": Fault(
                {"signed": STOPS}, {"batches": STALLED}, after_s=3600
            ),
            "it receives no traffic": Fault({"received": STOPS, "signed": STOPS}, {"batches": STALLED}, after_s=3600),
            "there is no data": Fault({"signed": GONE}, {"batches": STALLED}, after_s=3600),
            "its dispersal socket cannot be reached": Fault({"dispersal": 0}, {"reachable": UNEXPECTED_RESPONSE}),
            "it does not know whether it can be reached": Fault(
                {"dispersal": "NaN"}, {"reachable": UNEXPECTED_RESPONSE}
            ),
            "it is no longer in a quorum": Fault({"rank": 0}, {"quorums": UNEXPECTED_RESPONSE}),
            "its node API is unhealthy": Fault({"health": 503}, {"api": failed(ReasonCode.UNHEALTHY)}),
        },
        harmless={
            "a batch every 40 minutes": {"received": Grows(1 / 2400), "signed": Grows(1 / 2400)},
            "it was restarted, and counts from 0": {"received": Grows(0.1, 0), "signed": Grows(0.1, 0)},
        },
    )


EIGENDA_V1 = eigenda(
    'node_eigenda_processed_batches_total{type="number", status="signed"}', EIGENDA_V1_PAGE, version=""
)
EIGENDA_V2 = eigenda('eigenda_node_store_chunks_stage_latency_ms_count{stage="sign"}', EIGENDA_V2_PAGE, version="-v2")

# ---- charon
#
# docs/metrics.md of charon, and app/metrics.go for the values of app_monitoring_readyz: 1 ready, 2 beacon node down,
# 3 beacon node syncing, 4 not connected to a quorum of peers, 5 validator client not connected, 7 beacon node without
# peers, 8 beacon node far behind; 0 is the alert ClusterInUnknownStatus of docs.obol.org, "Monitoring your node".
# /readyz is 500 at the same time. app_health_checks: "Application health checks by name and severity. Set to 1 for
# failing, 0 for ok." insufficient_connected_peers counts p2p_ping_success (app/health/checks.go): in a cluster of 4, a
# quorum is 3, so that 2 others must answer.

CHARON = Program(
    config="""
        [node]
        name = "charon"
        [[services]]
        id = "ready"
        probe = "http://$address/readyz"
        [[services]]
        id = "beacon-node"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = [
          "app_monitoring_readyz != 0",
          "app_monitoring_readyz != 2",
          "app_monitoring_readyz != 7",
          "app_monitoring_readyz != 8",
        ]
        starting = ["app_monitoring_readyz == 3"]
        [[services]]
        id = "validator-client"
        probe = { url = "metrics+http://$address/metrics", require = ["app_monitoring_readyz != 5"] }
        [[services]]
        id = "peers"
        probe = { url = "metrics+http://$address/metrics", require = ["sum of p2p_ping_success >= 2"] }
        [[services]]
        id = "health-checks"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = ['max of app_health_checks{severity="critical"} == 0']
        [[services]]
        id = "duties"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = [
          "core_scheduler_current_slot advances within 1m",
          'core_bcast_broadcast_total{duty="attester"} advances within 15m',
        ]
    """,
    pages={
        "/readyz": "$readyz_status\n$readyz_text\n",
        "/metrics": """200
# TYPE app_monitoring_readyz gauge
app_monitoring_readyz{cluster_name="dv",cluster_peer="bold-bell"} $readyz
# TYPE app_health_checks gauge
app_health_checks{description="Beacon Node in syncing state.",name="beacon_node_syncing",severity="critical"} $critical
app_health_checks{description="Not connected.",name="insufficient_connected_peers",severity="critical"} 0
app_health_checks{description="Pending {validators}.",name="pending_validators",severity="info"} $info
# TYPE p2p_ping_success gauge
p2p_ping_success{cluster_peer="bold-bell",peer="brave-cat"} 1
p2p_ping_success{cluster_peer="bold-bell",peer="calm-dog"} $second_peer
p2p_ping_success{cluster_peer="bold-bell",peer="dear-elk"} $third_peer
# TYPE core_scheduler_current_slot gauge
core_scheduler_current_slot{cluster_peer="bold-bell"} $slot
# TYPE core_bcast_broadcast_total counter
core_bcast_broadcast_total{cluster_peer="bold-bell",duty="attester"} $attestations
core_bcast_broadcast_total{cluster_peer="bold-bell",duty="proposer"} 3
""",
    },
    values={
        "readyz": 1,
        "readyz_status": 200,
        "readyz_text": "ok",
        "critical": 0,
        "info": 0,
        "second_peer": 1,
        "third_peer": 1,
        "slot": Grows(1 / 12),
        "attestations": Grows(1 / 384),
    },
    faults={
        "the beacon node is down": Fault(
            {"readyz": 2, "readyz_status": 500, "readyz_text": "beacon node down"},
            {"ready": SERVER_ERROR, "beacon-node": UNEXPECTED_RESPONSE},
        ),
        "the beacon node is syncing": Fault(
            {"readyz": 3, "readyz_status": 500, "readyz_text": "beacon node not synced", "critical": 1},
            {"ready": SERVER_ERROR, "beacon-node": STARTING, "health-checks": UNEXPECTED_RESPONSE},
        ),
        "the beacon node has no peers": Fault(
            {"readyz": 7, "readyz_status": 500, "readyz_text": "beacon node has zero peers"},
            {"ready": SERVER_ERROR, "beacon-node": UNEXPECTED_RESPONSE},
        ),
        "the beacon node is far behind": Fault(
            {"readyz": 8, "readyz_status": 500, "readyz_text": "beacon node far behind"},
            {"ready": SERVER_ERROR, "beacon-node": UNEXPECTED_RESPONSE},
        ),
        "too few peers are connected": Fault(
            {"readyz": 4, "readyz_status": 500, "second_peer": 0, "third_peer": 0},
            {"ready": SERVER_ERROR, "peers": UNEXPECTED_RESPONSE},
        ),
        "the validator client is not connected": Fault(
            {"readyz": 5, "readyz_status": 500, "readyz_text": "vc not connected"},
            {"ready": SERVER_ERROR, "validator-client": UNEXPECTED_RESPONSE},
        ),
        "its status is not known": Fault(
            {"readyz": 0, "readyz_status": 500}, {"ready": SERVER_ERROR, "beacon-node": UNEXPECTED_RESPONSE}
        ),
        "a critical health check fails": Fault({"critical": 1}, {"health-checks": UNEXPECTED_RESPONSE}),
        "the scheduler hangs": Fault({"slot": STOPS}, {"duties": STALLED}, after_s=60),
        "no attestation is sent": Fault({"attestations": STOPS}, {"duties": STALLED}, after_s=900),
    },
    harmless={"one of four peers is away": {"third_peer": 0}, "a validator is pending": {"info": 1}},
)

# ---- Sui
#
# docs.sui.io, "Sui validator alert reference": a low rate of last_executed_checkpoint; is_safe_mode > 0.5, or absent;
# no increase of consensus_proposed_blocks; uptime below 60 s again and again. "Key metrics for fullnode" of the Sui
# forum: sui_network_peers > 0, and highest_synced_checkpoint. last_executed_checkpoint_timestamp_ms is in
# crates/sui-core/src/checkpoints/checkpoint_executor/metrics.rs, and shows a node that follows too slowly.

SUI = Program(
    config="""
        [node]
        name = "sui"
        [[services]]
        id = "sync"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = ["highest_synced_checkpoint advances within 1m", "sui_network_peers > 0"]
        starting = ["max of uptime < 60"]
        [[services]]
        id = "execution"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = [
          "last_executed_checkpoint advances within 1m",
          "age of last_executed_checkpoint_timestamp_ms <= 5m",
          "is_safe_mode == 0",
        ]
        starting = ["max of uptime < 60"]
        [[services]]
        id = "consensus"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = ["sum of consensus_proposed_blocks advances within 5m"]
        starting = ["max of uptime < 60"]
    """,
    pages={
        "/metrics": """200
# HELP consensus_proposed_blocks Total number of proposed blocks.
# TYPE consensus_proposed_blocks counter
consensus_proposed_blocks{force="false"} $proposed
consensus_proposed_blocks{force="true"} 1
# TYPE highest_known_checkpoint gauge
highest_known_checkpoint $known
# TYPE highest_synced_checkpoint gauge
highest_synced_checkpoint $synced
# TYPE is_safe_mode gauge
is_safe_mode $safe_mode
# TYPE last_executed_checkpoint gauge
last_executed_checkpoint $executed
last_executed_checkpoint_timestamp_ms $executed_time
# TYPE sui_network_peers gauge
sui_network_peers $peers
# TYPE uptime counter
uptime{chain_identifier="35834a8a",process="validator",version="1.52.0"} $uptime
"""
    },
    values={
        "proposed": Grows(12),
        "known": Grows(4),
        "synced": Grows(4),
        "executed": Grows(4),
        "executed_time": IsTime(unit=1000),
        "safe_mode": 0,
        "peers": 120,
        "uptime": Grows(1, 3600),
    },
    faults={
        "it is not syncing": Fault({"synced": STOPS}, {"sync": STALLED}, after_s=60),
        "it has no peers": Fault({"peers": 0}, {"sync": UNEXPECTED_RESPONSE}),
        "it does not execute what it has synced": Fault(
            {"executed": STOPS, "executed_time": STOPS}, {"execution": STALLED}, after_s=60
        ),
        "it executes too slowly": Fault(
            {"executed": Grows(0.5), "executed_time": IsTime(900, 1000)}, {"execution": LAGGING}
        ),
        "it is in safe mode": Fault({"safe_mode": 1}, {"execution": UNEXPECTED_RESPONSE}),
        "the metric of the safe mode is absent": Fault({"safe_mode": GONE}, {"execution": UNEXPECTED_RESPONSE}),
        "it proposes no blocks": Fault({"proposed": STOPS}, {"consensus": STALLED}, after_s=300),
        "it is crash looping": Fault(
            {"uptime": 12}, dict.fromkeys(("sync", "execution", "consensus"), not_ready(ReasonCode.STARTING))
        ),
    },
    harmless={"it catches up, and is not yet at the head": {"executed": Grows(9), "executed_time": IsTime(200, 1000)}},
)

# ---- Aptos
#
# aptos.dev, "Important node metrics": if aptos_state_sync_version{type="synced"} "stops increasing, it means the node
# is not syncing"; it is 0 during a fast sync; for a fullnode, "the number of outbound connections should be > 0";
# aptos_consensus_proposals_count increases "at least once per hour", and aptos_consensus_last_committed_round "multiple
# times per second". terraform/helm/monitoring/files/rules/alerts.yml of aptos-core: no sync in 5 minutes; a mempool
# above 800,000. The REST API has /v1/-/healthy: with duration_secs, 503 if the ledger is older; and /v1, with the time
# of the ledger in microseconds.

APTOS = Program(
    config="""
        [node]
        name = "aptos"
        [defaults]
        interval = "30s"
        [[services]]
        id = "sync"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = [
          'aptos_state_sync_version{type="synced"} advances within 5m',
          'sum of aptos_connections{direction="outbound"} > 0',
        ]
        starting = ['aptos_state_sync_version{type="synced"} == 0']
        [[services]]
        id = "consensus"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = [
          "aptos_consensus_last_committed_round advances within 1m",
          "aptos_consensus_proposals_count advances within 1h",
        ]
        [[services]]
        id = "mempool"
        [services.probe]
        url = "metrics+http://$address/metrics"
        require = ['core_mempool_index_size{index="system_ttl"} <= 800000']
        [[services]]
        id = "healthy"
        probe = { url = "http://$address/v1/-/healthy?duration_secs=30", starting_status = 503 }
        [[services]]
        id = "ledger"
        [services.probe]
        url = "http://$address/v1"
        require = ["/chain_id == 1", "age of /ledger_timestamp <= 30s", "/block_height advances within 1m"]
    """,
    pages={
        "/metrics": """200
# TYPE aptos_connections gauge
aptos_connections{direction="inbound",network_id="Vfn",peer_id="f326fd30",role_type="validator"} 1
aptos_connections{direction="outbound",network_id="Validator",peer_id="f326fd30",role_type="validator"} $outbound
# TYPE aptos_consensus_last_committed_round gauge
aptos_consensus_last_committed_round $round
# TYPE aptos_consensus_proposals_count counter
aptos_consensus_proposals_count $proposals
# TYPE aptos_state_sync_version gauge
aptos_state_sync_version{type="synced"} $synced
aptos_state_sync_version{type="synced_states"} $states
# TYPE core_mempool_index_size gauge
core_mempool_index_size{index="system_ttl"} $mempool
""",
        "/v1/-/healthy?duration_secs=30": '$healthy\n{"message":"aptos-node:ok"}\n',
        "/v1": "200\n"
        + json.dumps(
            {
                "chain_id": 1,
                "epoch": "9421",
                "ledger_version": "$height",
                "oldest_ledger_version": "0",
                "ledger_timestamp": "$ledger_time",
                "node_role": "full_node",
                "oldest_block_height": "0",
                "block_height": "$height",
                "git_hash": "d5a8dd8cf0e4a4ed9b5bd8ce9aa4bd3e6d5ad5d1",
            }
        ),
    },
    values={
        "outbound": 5,
        "round": Grows(5),
        "proposals": Grows(1 / 600, 100),
        "synced": Grows(900),
        "states": 0,
        "mempool": 12_000,
        "healthy": 200,
        "ledger_time": IsTime(unit=1_000_000),
        "height": Grows(8),
    },
    faults={
        "it is not syncing": Fault({"synced": STOPS}, {"sync": STALLED}, after_s=300),
        "the metric of the sync is absent": Fault({"synced": GONE}, {"sync": STALLED}, after_s=300),
        "a fast sync": Fault({"synced": 0, "states": Grows(5000)}, {"sync": STARTING}),
        "it has no outbound connections": Fault({"outbound": 0}, {"sync": UNEXPECTED_RESPONSE}),
        "it does not participate in consensus": Fault({"round": STOPS}, {"consensus": STALLED}, after_s=60),
        "it makes no proposals": Fault({"proposals": STOPS}, {"consensus": STALLED}, after_s=3600),
        "its mempool is nearly full": Fault({"mempool": 850_000}, {"mempool": UNEXPECTED_RESPONSE}),
        "its ledger is behind": Fault(
            {"ledger_time": IsTime(300, 1_000_000), "healthy": 503},
            {"healthy": not_ready(ReasonCode.STARTING), "ledger": LAGGING},
        ),
        "its ledger stands still": Fault(
            {"ledger_time": STOPS, "height": STOPS},
            {"ledger": LAGGING},
            after_s=30,
        ),
    },
    harmless={"a proposal every 50 minutes": {"proposals": Grows(1 / 3000, 100)}},
)

PROGRAMS = {
    "op-node": OP_NODE,
    "EigenDA V1": EIGENDA_V1,
    "EigenDA V2": EIGENDA_V2,
    "charon": CHARON,
    "Sui": SUI,
    "Aptos": APTOS,
}


@pytest.fixture
def loop_name() -> str:
    """The conditions are the same on every loop."""
    return "uvloop"


@pytest.fixture(params=PROGRAMS)
def replay(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replay]:
    with Replay(PROGRAMS[request.param], tmp_path, monkeypatch) as replay:
        yield replay


def test_a_replay_without_faults_finds_none(replay: Replay, check: CheckRunner) -> None:
    async def main() -> None:
        await replay.warm_up()
        await replay.stays_healthy()
        for values in replay.program.harmless.values():
            replay.change(values)
            await replay.stays_healthy(HEALTHY_CHECKS // 2)
            replay.repair()
            await replay.stays_healthy(3)

    check.run(main())


def test_each_documented_fault_is_found_by_its_service_in_time(replay: Replay, check: CheckRunner) -> None:
    async def main() -> None:
        await replay.warm_up()
        for fault in replay.program.faults.values():
            replay.change(fault.values)
            await replay.finds(fault)
            replay.repair()
            await replay.warm_up()

    check.run(main())
