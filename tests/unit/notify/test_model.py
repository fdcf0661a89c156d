"""The rule of alerts over random histories, in virtual time.

The model knows what is true, and reads the messages as a person would. It does not know how the rule works.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import pytest

from svcnode.core.model import Health, Impact, Service
from svcnode.core.state_machine import service_health
from svcnode.notify.causes import Related, Relations
from svcnode.notify.record import from_row
from svcnode.notify.routes import AlertPolicy, NodeView, Route, RouteSettings
from svcnode.notify.rule import Kind, Seen
from svcnode.notify.subjects import NODE, Key, Severity, Subject
from tests.unit.notify.harness import FakeAlertmanager, FakeTarget, Harness, definition_with_a_new_probe

if TYPE_CHECKING:
    from svcnode.notify.routes import Entry, Report
    from svcnode.notify.targets import DeliveryError, Message
    from tests.unit.notify.harness import ImpactName

BLOCK = 1000  # histories
GROUP_WAIT_S, RESOLVE_DELAY_S, RETRY_S = 5.0, 300.0, 100.0
SLOW_S = 2.0  # an attempt of a slow target
HEALTHY, PARTIAL, UNHEALTHY = Health
WAITS_S = (0.0, 0.5, 2.0, 4.9, 5.0, 20.0, 70.0, 299.0, 310.0, 1000.0)
WEIGHTS = (2, 4, 4, 4, 4, 4, 3, 1, 1, 1)
EVENTS = ("change",) * 12 + ("hold", "lose", "start", "remove", "restart", "kill", "fail", "recover", "slow")


class Target:
    name = "chat"
    fingerprint = "0"
    resend_interval_s: ClassVar[float | None] = None

    async def deliver(self, message: Message) -> DeliveryError | None:
        raise NotImplementedError


@dataclass
class Truth:
    """One subject, as it is and as the messages have told it."""

    subject: Subject
    told: Health = HEALTHY
    well_since_s: dict[Health, float] = field(default_factory=dict)  # since when it has been at most this bad
    worse_since_s: float = math.inf  # than told
    untold: Health = HEALTHY  # the worst health that no message has told
    failing_since_s: float = math.inf  # worse than told, whether it is listed or not
    listed_with: Truth | None = None  # the cause in whose message it was listed, as long as that one is open
    # The first attempt and the last one of each message, and the health that it is about.
    told_times: list[tuple[float, float, Health]] = field(default_factory=list)

    @property
    def is_visible(self) -> bool:
        seen = self.subject.seen
        return not (seen.is_starting or seen.is_held)

    @property
    def is_listed(self) -> bool:
        """Whether the message about its cause has told of it: it is an effect, and not more severe."""
        cause = self.listed_with
        if cause is None or cause.told is HEALTHY or cause.subject.seen.is_held or cause.subject.seen.is_removed:
            return False
        severity = self.subject.severity(max(self.told, self.subject.seen.health, self.untold))
        if severity is Severity.CRITICAL is not cause.subject.severity(cause.told):
            return False
        is_cause_up = cause.is_visible and cause.subject.seen.health is HEALTHY
        return not is_cause_up or self.failing_since_s <= cause.subject.seen.since_s


class World:
    """One target, and three subjects."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.policy = AlertPolicy(
            services="all",
            group_wait_s=GROUP_WAIT_S,
            resolve_delay_s=RESOLVE_DELAY_S,
            repeat_interval_s=self.random.choice([0.0, 0.0, 600.0]),
        )
        depends_on: dict[str, tuple[str, ...]] = self.random.choice([{}, {"cache": ("db",)}, {"db": ("cache",)}])
        critical, partial = (
            Service(id=name, name="", description="", impact=impact, depends_on=depends_on.get(name, ()))
            for name, impact in (("db", Impact.CRITICAL), ("cache", Impact.PARTIAL))
        )
        subjects = [Subject(NODE, 0.0), *(Subject(Key("service", one.id), 0.0, one) for one in (critical, partial))]
        self.truths = {subject.key: Truth(subject) for subject in subjects}
        self.key = NODE  # of the subject that changes
        self.is_failing = self.is_slow = False
        self.failed_until_s = 0.0  # the target had no chance before
        self.first_try_s = math.inf  # of what has failed since
        self.retry_at_s = -math.inf
        self.attempt: tuple[float, Report] | None = None  # and when it ends
        self.saved = "[]"
        self.start()

    def start(self) -> None:
        to_wall, look = (lambda at_s: at_s + 1e9), (lambda subject: subject.seen)
        self.relations = Relations(self.services, self.find_service)
        view = NodeView(to_wall, look, self.relations)
        self.route = Route(RouteSettings(target=Target()), self.policy, self.now_s, view)
        for truth in self.truths.values():
            self.see(truth, Seen(PARTIAL, self.now_s, is_starting=True, is_known=False))
        for truth in self.truths.values():  # a new process may find that it is over
            truth.untold, truth.worse_since_s, truth.failing_since_s = HEALTHY, math.inf, math.inf
        for row in json.loads(self.saved):
            find, from_wall = self.find, (lambda at_s: at_s - 1e9)
            self.route.restore(from_row(row, find, from_wall, self.now_s), self.now_s)

    def find(self, key: Key) -> Subject | None:
        subject = self.truths[key].subject
        return None if subject.seen.is_removed else subject

    def services(self) -> list[Service]:
        subjects = [truth.subject for truth in self.truths.values() if not truth.subject.seen.is_removed]
        return [subject.service for subject in subjects if subject.service is not None]

    def find_service(self, service_id: str) -> Related | None:
        subject = self.truths[Key("service", service_id)].subject
        return None if subject.service is None else Related(subject.service, subject.seen.health)

    # ---- what happens

    def step(self) -> None:
        if self.random.random() < 0.3:
            self.key = self.random.choice(list(self.truths))
        truth = self.truths[self.key]
        event = self.random.choice(EVENTS)
        if event == "remove" and truth.subject.key == NODE:
            event = "change"
        match event:
            case "change":
                self.see(truth, Seen(self.random.choice((HEALTHY, PARTIAL, UNHEALTHY)), self.now_s, "refused"))
            case "hold":
                self.see(truth, truth.subject.seen._replace(is_held=True, is_removed=False))
            case "lose":
                self.see(truth, Seen(PARTIAL, self.now_s, "no evidence", is_known=False))
            case "start":
                self.see(truth, Seen(PARTIAL, self.now_s, is_starting=True, is_known=False))
            case "remove":
                self.see(truth, Seen(HEALTHY, self.now_s, is_removed=True))
            case "restart" | "kill":
                self.restart(is_killed=event == "kill")
            case "fail" | "recover":
                self.is_failing = event == "fail"
            case _:
                self.is_slow = not self.is_slow
        self.advance(*self.random.choices(WAITS_S, WEIGHTS))

    def see(self, truth: Truth, seen: Seen) -> None:
        before, was_visible = truth.subject.seen, truth.is_visible
        truth.subject.seen = seen
        for health in (HEALTHY, PARTIAL):
            is_break = not (truth.is_visible and was_visible and before.is_known) or before.health > health
            if is_break or seen.health > health:
                is_well = seen.health <= health and truth.is_visible and seen.is_known
                truth.well_since_s[health] = self.now_s if is_well else math.inf
        if before.is_removed is not seen.is_removed:
            self.relations.forget(None)
        for one in self.truths.values():
            self.judge(one)
        if seen.is_held or seen.is_removed:
            truth.untold, truth.worse_since_s, truth.failing_since_s = HEALTHY, math.inf, math.inf
        self.route.see(truth.subject, self.now_s)

    def judge(self, truth: Truth) -> None:
        is_failing = truth.is_visible and truth.subject.seen.health > truth.told
        truth.failing_since_s = min(truth.failing_since_s, self.now_s) if is_failing else math.inf
        is_worse = is_failing and not truth.is_listed
        truth.worse_since_s = min(truth.worse_since_s, self.now_s) if is_worse else math.inf
        if is_worse:
            truth.untold = max(truth.untold, truth.subject.seen.health)

    def restart(self, *, is_killed: bool) -> None:
        if not is_killed:
            self.finish_attempt()
            self.send(is_final=True)
            self.finish_attempt()
            self.save()
        self.attempt = None
        self.start()

    def save(self) -> None:
        self.saved = json.dumps(self.route.to_rows(self.now_s))

    # ---- messages

    def advance(self, wait_s: float) -> None:
        end_s = self.now_s + wait_s
        while True:
            attempt_s = math.inf if self.attempt is None else self.attempt[0]
            due_s = max(self.route.due_at_s, self.retry_at_s) if self.attempt is None else math.inf
            if min(attempt_s, due_s) > end_s:
                break
            self.now_s = max(self.now_s, min(attempt_s, due_s))
            if self.attempt is not None:
                self.finish_attempt()
            else:
                self.send()
        self.now_s = end_s
        if self.is_failing:
            self.failed_until_s = self.now_s + RETRY_S
        for truth in self.truths.values():
            late_s = self.now_s - max(truth.worse_since_s, self.failed_until_s)
            assert late_s <= GROUP_WAIT_S + SLOW_S, f"{truth.subject.key} is worse than told"

    def send(self, *, is_final: bool = False) -> None:
        report = self.route.report(self.now_s, is_final=is_final)
        if report is None:
            assert self.route.due_at_s > self.now_s, "due, but nothing to say"
        else:
            assert report.entries, "an empty message"
            for entry in report.entries:
                self.check(entry, report)
            self.attempt = self.now_s + (SLOW_S if self.is_slow else 0.0), report
            if not self.is_slow:
                self.finish_attempt()

    def finish_attempt(self) -> None:
        if self.attempt is None:
            return
        (_, report), self.attempt = self.attempt, None
        if self.is_failing:
            self.first_try_s = min(self.first_try_s, report.at_s)
            self.retry_at_s, self.failed_until_s = self.now_s + RETRY_S, self.now_s + RETRY_S
            self.route.failed(self.now_s)
        else:
            self.retry_at_s = -math.inf
            for entry in report.entries:
                self.read(entry, report.at_s)
            self.first_try_s = math.inf
            self.route.delivered(report, self.now_s)
            for truth in self.truths.values():
                self.judge(truth)
        self.save()

    def check(self, entry: Entry, report: Report) -> None:
        """A message says what is true, and says nothing twice."""
        truth = self.truths[entry.subject.key]
        health, told = truth.subject.seen.health, truth.told
        assert entry.health is health
        assert not truth.subject.seen.is_held
        match entry.kind:
            case Kind.WORSE:
                assert truth.is_visible
                assert health > told
            case Kind.BETTER | Kind.RECOVERED:
                assert truth.is_visible
                assert health < told
                assert self.now_s >= truth.well_since_s[health] + RESOLVE_DELAY_S
                assert (entry.kind is Kind.RECOVERED) == (health is HEALTHY)
            case Kind.TRANSIENT | Kind.RECURRED:
                assert entry.worst > told or truth.untold is HEALTHY
                assert not truth.is_visible or health < entry.worst
            case Kind.REMOVED:
                assert truth.subject.seen.is_removed
                assert told > HEALTHY
            case Kind.REMINDER:
                assert min(told, health) > HEALTHY
                ends = [one for one in report.services if one.kind in (Kind.RECOVERED, Kind.REMOVED)]
                assert self.policy.repeat_interval_s or ends, "a reminder, or what remains after its cause"

    def read(self, entry: Entry, at_s: float) -> None:
        truth = self.truths[entry.subject.key]
        before = truth.told
        if entry.kind is Kind.RECURRED:
            truth.told = entry.worst
        elif entry.kind not in (Kind.TRANSIENT, Kind.REMINDER):
            truth.told = entry.health
        if entry.kind is not Kind.REMINDER:
            about = entry.health if entry.kind is Kind.WORSE else max(before, entry.worst)
            truth.told_times.append((min(at_s, self.first_try_s), at_s, about))
            truth.untold, truth.worse_since_s, truth.failing_since_s = HEALTHY, math.inf, math.inf
        for effect in entry.effects:
            self.truths[Key("service", effect.service.id)].listed_with = truth

    def check_end(self) -> None:
        """Once nothing changes any more, everything has been told, and nothing twice as often as allowed."""
        self.is_failing = self.is_slow = False
        for truth in self.truths.values():
            if not (truth.is_visible and truth.subject.seen.is_known):
                self.see(truth, Seen(self.random.choice((HEALTHY, UNHEALTHY)), self.now_s, "refused"))
        self.advance(2 * RESOLVE_DELAY_S + 600.0)
        for truth in self.truths.values():
            assert truth.told is truth.subject.seen.health or truth.is_listed
            assert truth.untold is HEALTHY or truth.is_listed, "bad news that never arrived"


def run(seed: int, steps: int = 12) -> World:
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.check_end()
    return world


@pytest.mark.parametrize("block", range(10))
def test_the_rule_holds_in_random_histories(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_or_name(seed)


@pytest.mark.wide
@pytest.mark.parametrize("block", range(10, 60))
def test_the_rule_holds_in_many_more_and_longer_histories(block: int) -> None:
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        run_or_name(seed, steps=25)


def run_or_name(seed: int, steps: int = 12) -> None:
    try:
        world = run(seed, steps)
        for truth in world.truths.values():
            at_most_two_per_resolve_delay(truth)
    except AssertionError as exc:
        exc.add_note(f"seed {seed}, {steps} steps")
        raise


def at_most_two_per_resolve_delay(truth: Truth) -> None:
    for health in (PARTIAL, UNHEALTHY):
        times_s = [(first_try_s, at_s) for first_try_s, at_s, about in truth.told_times if about is health]
        for (first_s, _), (_, third_s) in zip(times_s, times_s[2:], strict=False):
            assert third_s - first_s >= RESOLVE_DELAY_S, (truth.subject.key, times_s)


# ---- with a real node


IMPACTS: dict[str, ImpactName] = {"a": "critical", "b": "critical", "c": "partial", "d": "none"}
DEPENDS_ON = {"b": ("a",), "d": ("c",)}
ACTIONS = (
    *("up", "down", "down", "starting") * 3,
    "remove",
    "replace",
    "issue",
    "maintain",
    "drain",
    "fail",
    "restart",
)


def act(harness: Harness, chance: random.Random) -> None:
    node, service_id = harness.node, chance.choice("abcd")
    if service_id not in node:
        depends_on = chance.choice([(), DEPENDS_ON.get(service_id, ())])
        harness.add(service_id, impact=IMPACTS[service_id], up=False, depends_on=depends_on)
    match chance.choice(ACTIONS):
        case "up" | "down" | "starting" | "remove" as name:
            getattr(harness, name)(service_id)
        case "replace":
            node.replace(definition_with_a_new_probe(service_id, IMPACTS[service_id]))
        case "issue":
            issue = chance.choice(["disk full", "raid degraded"])
            (node.overrides.clear_issue if issue in node.condition.issues else node.overrides.set_issue)(issue)
        case "maintain":
            harness.maintain(chance.choice([service_id, None]), 600.0)
        case "drain":
            (node.overrides.undrain if node.condition.draining else node.overrides.drain)()
        case "fail":
            harness.targets[0].is_failing = not harness.targets[0].is_failing
        case _:
            harness.restart(*(service.id for service, _ in node), is_killed=chance.random() < 0.5)


def true_health(harness: Harness, key: Key) -> Health:
    match key.type:
        case "service":
            return service_health(harness.node.state(key.name).status)
        case "issue":
            return UNHEALTHY if key.name in harness.node.condition.issues else HEALTHY
        case _:
            return harness.node.health


def check_told(harness: Harness) -> None:
    """No target is told better than it is, except of what is starting or held, or is listed with its cause."""
    for subject in harness.alerts.subjects.all():
        seen, name = subject.seen, subject.key.name or None
        is_told = subject.service is None or harness.policy.causes_messages(subject.service)
        if is_told and not (seen.is_starting or seen.is_held):
            health = true_health(harness, subject.key)
            assert seen.health is health, name
            for target, route in zip(harness.targets, harness.alerts.routes, strict=True):
                causes = [] if subject.service is None else subject.service.depends_on
                is_listed = any(route.view(Key("service", cause)).told > HEALTHY for cause in causes)
                view = route.view(subject.key)
                is_told = view.told >= health or (is_listed and target.resend_interval_s is None)
                # A start limit or a maintenance may just have ended.
                is_due = harness.clock.now_s < view.due_at_s <= harness.clock.now_s + GROUP_WAIT_S
                assert target.is_failing or is_told or is_due, (target.name, name)


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.wide) for block in range(1, 20))])
def test_a_real_node_is_told_as_it_is(block: int) -> None:
    for seed in range(block * 50, (block + 1) * 50):
        chance = random.Random(seed)
        policy = AlertPolicy(services=chance.choice(["critical", "all"]))
        harness = Harness(policy, FakeTarget("chat"), FakeAlertmanager("alertmanager"))
        try:
            for _ in range(12):
                act(harness, chance)
                harness.wait(chance.choice(WAITS_S)).wait(61.0)  # a failed attempt is repeated after a minute
                check_told(harness)
            harness.targets[0].is_failing = False
            harness.node.overrides.undrain()
            for service, _ in harness.node:
                harness.up(service.id)
            harness.node.overrides.clear_issue()
            harness.wait(2000.0)
            assert {route.view(NODE).told for route in harness.alerts.routes} == {HEALTHY}
            assert not harness.targets[1].reports or not harness.targets[1].reports[-1].open
        except AssertionError as exc:
            exc.add_note(f"seed {seed}")
            raise
