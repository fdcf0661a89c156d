"""The page as people see it, in the words of the tests."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

HEALTHS = {
    "healthy": ("Healthy", "●"),
    "partial": ("Partially healthy", "◐"),
    "unhealthy": ("Unhealthy", "✖"),
    "unknown": ("Unknown", "○"),
}
# Every way in which a page could break its own rules is told to the console.
REPORT_CSP_VIOLATIONS = "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.blockedURI))"


class NodePage:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._allows_disconnect = False
        page.add_init_script(REPORT_CSP_VIOLATIONS)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))

    def _on_console(self, message: Any) -> None:
        # A node that a test ends before its page is closed is no fault of the page.
        if message.type not in ("error", "warning") or "net::ERR_CONNECTION_" in message.text:
            return
        is_about_silence = "ERR_" in message.text or "Failed to load resource" in message.text
        if not (self._allows_disconnect and is_about_silence):
            self.errors.append(message.text)

    def allow_disconnect(self) -> None:
        """From now on the node may be away, which a browser complains about."""
        self._allows_disconnect = True

    def suspend_for_an_hour(self) -> None:
        """As a computer does; from here on its clock stands still but for what a test lets pass."""
        self.page.clock.pause_at(self.page.evaluate("Date.now()") + 500)
        self.page.clock.fast_forward(3_600_000)

    # ---- what stands there

    def row(self, service_id: str) -> Locator:
        return self.page.locator(f"tr[data-id={json.dumps(service_id, ensure_ascii=False)}]")

    def cell(self, service_id: str, column: int) -> Locator:
        return self.row(service_id).locator(":scope > *").nth(column)

    def panel(self, service_id: str) -> Locator:
        return self.row(service_id).locator("xpath=following-sibling::tr[1]").locator(".panel")

    @property
    def service_ids(self) -> list[str]:
        found: list[str] = self.page.eval_on_selector_all(".chunk tr[data-id]", "rows => rows.map(r => r.dataset.id)")
        return found

    def buckets(self, service_id: str) -> Locator:
        return self.row(service_id).locator(".bars")

    @property
    def tooltip(self) -> Locator:
        return self.page.get_by_role("tooltip")

    @property
    def overflows_viewport(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    # ---- what must come to pass

    def wait_for_bars(self, service_id: str) -> None:
        """Without `expect`, which describes the whole page when something is not there yet: of many rows, for long."""
        self.buckets(service_id).wait_for()

    def expect_health(self, health: str, node: str = "validator-7") -> None:
        """Everywhere at once: in the word, the title and the icon."""
        word, sign = HEALTHS[health]
        expect(self.page.locator("#node")).to_have_attribute("data-health", health)
        expect(self.page.get_by_role("heading", level=1)).to_have_text(re.compile(re.escape(f"{node} {word}")))
        expect(self.page).to_have_title(f"{sign} {node}: {word.lower()}")
        expect(self.page.locator("link[rel=icon]")).to_have_attribute("href", f"static/{health}.svg")

    def expect_status(self, service_id: str, status: str) -> None:
        expect(self.cell(service_id, 1)).to_have_text(status)
        expect(self.row(service_id)).to_have_attribute("data-status", status)

    def expect_ids(self, *ids: str) -> None:
        expect(self.page.locator(".chunk tr[data-id]")).to_have_count(len(ids))
        for place, service_id in enumerate(ids):
            expect(self.page.locator(".chunk tr[data-id]").nth(place)).to_have_attribute("data-id", service_id)
