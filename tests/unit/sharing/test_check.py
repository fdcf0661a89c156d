"""What a replica would write, and the warnings about it."""

from __future__ import annotations

from typing import Any

from svcnode.core.address import parse_registry_url
from svcnode.node.definition import define
from svcnode.sharing import SharingSettings
from svcnode.sharing.check import FindingLevel, check_configuration
from svcnode.sharing.view import RegistryView
from tests.support.registry_keys import ROOT, RegistryKeys

URL = "http://10.0.0.5:8420"
OK, NOTE, WARNING = FindingLevel.OK, FindingLevel.NOTE, FindingLevel.WARNING


def settings(url: str = URL) -> SharingSettings:
    registry = parse_registry_url("etcd://10.0.0.1")
    return SharingSettings(registry=registry, tls=None, replica="a", observers=1, lease_s=10, url=url)


def found(
    keys: RegistryKeys, url: str = URL, stale_after: str | None = None, **probes: Any
) -> dict[str, tuple[FindingLevel, str]]:
    """By subject; of several, the last one."""
    view = RegistryView(ROOT, lambda _: None)
    view.replace_all(keys.range())
    definitions = [
        define(id_, probe=probe, stale_after=stale_after)._replace(options={"probe": probe})
        for id_, probe in probes.items()
    ]
    findings = check_configuration(settings(url), "n", definitions, view)
    return {finding.subject: (finding.level, finding.text) for finding in findings}


def levels(findings: dict[str, tuple[FindingLevel, str]]) -> dict[str, FindingLevel]:
    return {subject: level for subject, (level, _) in findings.items()}


def join(keys: RegistryKeys, url: str) -> RegistryKeys:
    keys.join("a", url)
    return keys


def test_restricted_services_are_named() -> None:
    findings = found(RegistryKeys(), db="tcp://a:1", root="disk:/", cache="redis://:hunter2hunter2@a")
    assert levels(findings) == {"writes": NOTE, "restricted": NOTE, "replica": OK}
    assert findings["restricted"][1].startswith("root, cache:")
    assert "hunter2" not in str(findings)


def test_services_that_this_replica_no_longer_has_are_named() -> None:
    keys = RegistryKeys()
    keys.define("old", "replica:a")
    keys.define("other", "replica:b")
    assert found(keys, db="tcp://a:1")["writes"][1].startswith("old:")


def test_a_live_replica_of_the_same_name_with_another_url_is_a_duplicate() -> None:
    assert levels(found(join(RegistryKeys(), URL)))["replica"] is OK
    assert levels(found(join(RegistryKeys(), "http://10.0.0.6:8420")))["replica"] is WARNING
    assert levels(found(join(RegistryKeys(), "")))["replica"] is WARNING


def test_services_whose_evidence_ends_before_a_takeover_are_named() -> None:
    assert "takeover" not in found(RegistryKeys(), db="tcp://a:1")
    assert "takeover" not in found(RegistryKeys(), stale_after="25s", db="tcp://a:1"), "lease, interval and 5 s"
    findings = found(RegistryKeys(), stale_after="24s", db="tcp://a:1")
    assert findings["takeover"][0] is NOTE
    assert "db" in findings["takeover"][1]


def test_a_replica_without_a_url_is_a_warning() -> None:
    assert levels(found(RegistryKeys(), url=""))["url"] is WARNING
