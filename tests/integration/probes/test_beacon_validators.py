"""The option `validators` of beacon+http://, against scripts that follow the Beacon API.

Its documents are those of `postStateValidators` and `getLiveness` in the specification of the API. The answer 400 to
epochs before the previous one is that of Lighthouse and Lodestar.
"""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from svcnode.probes.beacon_validators import GRACE_SLOTS
from svcnode.probes.run import close_probe, run_check
from tests.support.backends import ReceivedRequest, http_response
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.probe_assertions import KeepAliveBackend
from tests.support.verdicts import READY, failed, not_ready, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Verdict
    from tests.support.check_runner import CheckRunner

SLOT_S, SLOTS_PER_EPOCH = 12, 32
GENESIS_S = 1_606_824_023
MISSED = failed(ReasonCode.DUTIES_MISSED)
NOT_SEEN_YET = not_ready(ReasonCode.DUTIES_MISSED)
FIRST_EPOCH = 300_000


def key(index: int) -> str:
    return f"0x{index:096x}"


class BeaconScript:
    """A node that is in sync, its validators, and the clock of this machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statuses: dict[int, str] = {}
        self.slashed: set[int] = set()
        self.live: dict[int, set[int]] = {}  # by epoch
        self.is_optimistic = False
        self.responses: dict[str, bytes] = {}  # by the beginning of the path
        self.posted: list[tuple[str, Any]] = []
        self.set_time(FIRST_EPOCH, GRACE_SLOTS)
        monkeypatch.setattr(time, "time", lambda: self.now_s)

    def set_time(self, epoch: int, slot: int = GRACE_SLOTS) -> None:
        self.is_syncing = False
        self.slot = epoch * SLOTS_PER_EPOCH + slot
        self.now_s = GENESIS_S + self.slot * SLOT_S + 1.5

    @property
    def epoch(self) -> int:
        return self.slot // SLOTS_PER_EPOCH

    def __call__(self, request: ReceivedRequest) -> bytes:
        path = request.target.removeprefix("/eth/v1/")
        for beginning, response in self.responses.items():
            if path.startswith(beginning):
                return response
        if request.method == "POST":
            self.posted.append((path, json.loads(request.body)))
        page, _, epoch = path.rpartition("/") if path.startswith("validator/") else (path, "", "")
        if request.method == "POST":
            body = json.loads(request.body)
            return self._liveness(body, int(epoch)) if epoch else self._validators(body["ids"])
        flags = {"is_syncing": self.is_syncing, "is_optimistic": False, "el_offline": False}
        pages = {
            "node/health": http_response(206 if self.is_syncing else 200),
            "node/syncing": data({"head_slot": str(self.slot), "sync_distance": "0", **flags}),
            "node/peer_count": data({"connected": "56"}),
            "beacon/genesis": data({"genesis_time": str(GENESIS_S)}),
            "config/spec": data({"SECONDS_PER_SLOT": str(SLOT_S), "SLOTS_PER_EPOCH": str(SLOTS_PER_EPOCH)}),
        }
        return pages[page]

    def _validators(self, ids: list[str]) -> bytes:
        wanted = {*ids}
        rows = [self._row(index) for index in self.statuses if {str(index), key(index)} & wanted]
        document = {"execution_optimistic": self.is_optimistic, "finalized": False, "data": rows[::-1]}
        return http_response(200, json.dumps(document))

    def _row(self, index: int) -> dict[str, Any]:
        validator = {"pubkey": key(index), "effective_balance": "32000000000", "slashed": index in self.slashed}
        return {"index": str(index), "balance": "1", "status": self.statuses[index], "validator": validator}

    def _liveness(self, indices: list[str], epoch: int) -> bytes:
        if not self.epoch - 1 <= epoch <= self.epoch + 1:
            return http_response(400, '{"code": 400, "message": "more than one epoch from the current epoch"}')
        live = self.live.get(epoch, set())
        return data([{"index": index, "is_live": int(index) in live} for index in indices])


def data(value: object) -> bytes:
    return http_response(200, json.dumps({"data": value}))


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> BeaconScript:
    return BeaconScript(monkeypatch)


class Checker:
    """Checks with one probe, which remembers."""

    def __init__(self, check: CheckRunner, script: BeaconScript) -> None:
        self._check = check
        self._script = script

    def run(self, validators: list[Any], *steps: Callable[[], object], **options: Any) -> list[Verdict]:
        """The verdict after each step."""
        with KeepAliveBackend(self._script) as backend:
            config = {"url": f"beacon+http://{backend.address}", "validators": validators, **options}
            return self._check.run(self._verdicts(config, steps))

    async def _verdicts(self, config: dict[str, Any], steps: tuple[Callable[[], object], ...]) -> list[Verdict]:
        probe = make_probe(config)
        verdicts = []
        for step in steps:
            step()
            verdict, error = await run_check(probe, WAIT_TIMEOUT_S)
            assert error is None
            verdicts.append(verdict)
        close_probe(probe)
        return verdicts


@pytest.fixture
def checks(check: CheckRunner, script: BeaconScript) -> Checker:
    return Checker(check, script)


def nothing() -> None:
    pass


def test_validators_that_are_active_and_seen_are_ready(checks: Checker, script: BeaconScript) -> None:
    script.statuses = {1234: "active_ongoing", 77: "active_exiting", 5: "active_ongoing"}
    script.live = {FIRST_EPOCH - 1: {1234, 77, 5}}
    assert checks.run([1234, key(77).upper().replace("0X", "0x"), key(1234), 5], nothing)[0].outcome is Outcome.READY
    assert script.posted == [
        ("beacon/states/head/validators", {"ids": ["1234", key(77), key(1234), "5"]}),
        (f"validator/liveness/{FIRST_EPOCH - 1}", ["5", "77", "1234"]),
    ]


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("pending_initialized", not_ready(ReasonCode.STARTING)),
        ("pending_queued", not_ready(ReasonCode.STARTING)),
        ("active_ongoing", READY),
        ("active_slashed", failed(ReasonCode.SLASHED)),
        ("exited_unslashed", failed(ReasonCode.WRONG_ROLE)),
        ("exited_slashed", failed(ReasonCode.SLASHED)),
        ("withdrawal_possible", failed(ReasonCode.WRONG_ROLE)),
        ("withdrawal_done", failed(ReasonCode.WRONG_ROLE)),
        ("invented", failed(ReasonCode.UNEXPECTED_RESPONSE)),
    ],
)
def test_the_status_of_a_validator_counts(
    checks: Checker, script: BeaconScript, status: str, expected: Verdict
) -> None:
    script.statuses = {1: "active_ongoing", 2: status}
    script.live = {FIRST_EPOCH - 1: {1, 2}}
    assert checks.run([1, 2], nothing) == [expected]


def test_one_bad_validator_among_many_is_named(checks: Checker, script: BeaconScript) -> None:
    """The worst counts: slashed before gone, gone before not active yet."""
    script.statuses = dict.fromkeys(range(1000), "active_ongoing") | {7: "exited_unslashed", 9: "pending_queued"}
    script.live = {FIRST_EPOCH - 1: set(range(1000))}
    (verdict,) = checks.run([*range(1000)], nothing)
    assert verdict == failed(ReasonCode.WRONG_ROLE)
    assert "validator 7 " in verdict.reason
    script.slashed = {500}
    (verdict,) = checks.run([*range(1000)], nothing)
    assert verdict == failed(ReasonCode.SLASHED)
    assert "validator 500 " in verdict.reason
    (verdict,) = checks.run([4242, key(7)], nothing)
    assert verdict == failed(ReasonCode.NOT_FOUND)
    assert "validator 4242 " in verdict.reason


def test_a_validator_that_misses_two_finished_epochs_is_failed(checks: Checker, script: BeaconScript) -> None:
    script.statuses = {1: "active_ongoing", 2: "active_ongoing"}
    script.live = {FIRST_EPOCH - 1: {1, 2}, **{FIRST_EPOCH + number: {1} for number in range(4)}}
    verdicts = checks.run(
        [1, 2],
        nothing,
        lambda: script.set_time(FIRST_EPOCH + 1, GRACE_SLOTS - 1),
        lambda: script.set_time(FIRST_EPOCH + 1),
        lambda: script.set_time(FIRST_EPOCH + 2, GRACE_SLOTS - 1),  # its last attestations may not be known yet
        lambda: script.set_time(FIRST_EPOCH + 2),
        lambda: script.set_time(FIRST_EPOCH + 3, 0),
        lambda: script.live.update({FIRST_EPOCH + 3: {1, 2}}),
    )
    outcomes = [verdict.outcome for verdict in verdicts]
    assert outcomes == [*[Outcome.READY] * 4, Outcome.FAILED, Outcome.FAILED, Outcome.READY]
    assert verdicts[4] == MISSED
    assert "validator 2 " in verdicts[4].reason


def test_a_validator_of_which_nothing_is_known_is_not_ready(checks: Checker, script: BeaconScript) -> None:
    """After the start, the node can be asked about one finished epoch only."""
    script.statuses = {1: "active_ongoing"}
    assert checks.run(
        [1],
        nothing,
        nothing,
        lambda: script.set_time(FIRST_EPOCH + 1),
    ) == [NOT_SEEN_YET, NOT_SEEN_YET, MISSED]
    script.live = {FIRST_EPOCH + 1: {1}}
    assert checks.run([1], nothing) == [READY]  # in the running epoch


def test_a_node_that_is_not_in_sync_says_nothing_about_duties(checks: Checker, script: BeaconScript) -> None:
    """What it has not seen meanwhile does not count."""
    script.statuses = {1: "exited_slashed"}
    for name in ("is_syncing", "is_optimistic"):
        assert checks.run([1], partial(setattr, script, name, True), partial(setattr, script, name, False)) == [
            not_ready(ReasonCode.SYNCING),
            failed(ReasonCode.SLASHED),
        ]
    script.responses = {"validator/": http_response(503, '{"code": 503}')}
    script.statuses = {1: "active_ongoing"}
    assert checks.run([1], nothing) == [not_ready(ReasonCode.SYNCING)]
    script.responses = {}
    assert checks.run(
        [1],
        nothing,
        partial(setattr, script, "is_syncing", True),
        partial(script.set_time, FIRST_EPOCH + 1),
        lambda: script.set_time(FIRST_EPOCH + 2),
        lambda: script.set_time(FIRST_EPOCH + 3),
        lambda: script.set_time(FIRST_EPOCH + 4),
    ) == [NOT_SEEN_YET, not_ready(ReasonCode.SYNCING), NOT_SEEN_YET, NOT_SEEN_YET, NOT_SEEN_YET, MISSED]


@pytest.mark.parametrize(
    "path", ["node/syncing", "beacon/genesis", "config/spec", "beacon/states/head/validators", "validator/liveness"]
)
@pytest.mark.parametrize("status", [404, 405, 400, 501])
def test_a_node_that_does_not_offer_what_is_needed_is_unknown(
    checks: Checker, script: BeaconScript, path: str, status: int
) -> None:
    script.statuses = {1: "active_ongoing"}
    script.responses = {path: http_response(status, "{}")}
    (verdict,) = checks.run([1], nothing)
    assert verdict.outcome is Outcome.UNKNOWN
    assert path in verdict.reason


def test_a_slashed_validator_is_told_also_without_the_liveness_of_the_others(
    checks: Checker, script: BeaconScript
) -> None:
    script.statuses, script.slashed = {1: "active_slashed", 2: "active_ongoing"}, {1}
    script.responses = {"validator/": http_response(404, "{}")}
    assert checks.run([1, 2], nothing) == [failed(ReasonCode.SLASHED)]
    assert checks.run([2], nothing) == [unknown(ReasonCode.NOT_FOUND)]


GOOD_ROW = {"index": "1", "balance": "1", "status": "active_ongoing", "validator": {"pubkey": key(1), "slashed": False}}


STATUSES: list[Any] = [
    *({}, [None], [{}], [GOOD_ROW | {"status": 3}], "x", None),
    *([GOOD_ROW | {"validator": value}] for value in ({}, None, {"pubkey": key(1)}, {"slashed": False})),
    [GOOD_ROW | {"validator": {"pubkey": key(1), "slashed": "false"}}],
]
LIVENESS: list[Any] = [{}, [], [{"index": "2", "is_live": True}], [{"index": "1"}], None]
LIVENESS += [[{"index": "1", "is_live": "true"}]]


@pytest.mark.parametrize(
    ("path", "value"),
    [*(("beacon/states", value) for value in STATUSES), *(("validator/", value) for value in LIVENESS)],
)
def test_an_answer_of_another_form_is_failed(checks: Checker, script: BeaconScript, path: str, value: object) -> None:
    script.statuses = {1: "active_ongoing"}
    script.live = {FIRST_EPOCH - 1: {1}}
    script.responses = {path: data(value)}
    assert checks.run([1], nothing) == [failed(ReasonCode.UNEXPECTED_RESPONSE)]


def test_the_first_epoch_of_a_chain_has_none_before(checks: Checker, script: BeaconScript) -> None:
    script.statuses = {1: "active_ongoing", 2: "active_ongoing"}
    script.live = {0: {1}}
    script.set_time(0, 9)
    assert checks.run([1], nothing) == [READY]
    assert checks.run([2], nothing) == [NOT_SEEN_YET]
