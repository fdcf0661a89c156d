"""axe-core: rules of accessibility that a program can check, among them contrast. It runs inside the page."""

from __future__ import annotations

from functools import cache

from tests.support.servers.provision import npm_package

VERSION = "4.14.0"

# The rules of WCAG 2.2 A and AA, and what axe calls best practice.
RUN = """axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations.flatMap(
  ({ id, nodes }) => nodes.map(({ target, failureSummary }) => `${id}: ${target.join(" ")}: ${failureSummary}`)))"""
# A page without JavaScript loads itself again, because it must not show an old state as if it were the current one.
RUN_WITHOUT_SCRIPT = RUN.replace("{ resultTypes:", '{ rules: { "meta-refresh": { enabled: false } }, resultTypes:')
# Texts have 7:1, of large texts 4.5:1.
RUN_ENHANCED = RUN.replace(
    "{ resultTypes:",
    '{ runOnly: ["color-contrast-enhanced"], rules: { "color-contrast-enhanced": { enabled: true } }, resultTypes:',
)


@cache
def source() -> str:
    return (npm_package("axe-core", VERSION) / "axe.min.js").read_text()
