"""A page object for the operator page."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

from svcnode.operator.static_files import static_name

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, ViewportSize

HEALTHS = {
    "healthy": ("Healthy", "●"),
    "partial": ("Partially healthy", "◐"),
    "unhealthy": ("Unhealthy", "✖"),
    "unknown": ("Unknown", "○"),
}
# Reports violations of the content security policy to the console.
REPORT_CSP_VIOLATIONS = "addEventListener('securitypolicyviolation', (e) => console.error('policy: ' + e.blockedURI))"

KEEP_STREAM = """window.EventSource = class extends EventSource {
  constructor(url) { super(url); window.stream = this; }
}"""

ROWS = ".chunk tr[data-id]:not([hidden])"

# Motion takes much time.
STANDARD_MEDIA: dict[str, Any] = {
    "color_scheme": "light",
    "reduced_motion": "reduce",
    "contrast": "no-preference",
    "forced_colors": "none",
    "media": "screen",
}


class NodePage:
    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._allows_disconnect = False
        page.add_init_script(f"{REPORT_CSP_VIOLATIONS};\n{KEEP_STREAM}")
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        page.on("request", lambda request: self.requests.append(request.url))

    def _on_console(self, message: Any) -> None:
        # The test stopped the node before it closed the page.
        if message.type not in ("error", "warning") or "net::ERR_CONNECTION_" in message.text:
            return
        is_about_connection = "ERR_" in message.text or "Failed to load resource" in message.text
        if not (self._allows_disconnect and is_about_connection):
            self.errors.append(message.text)

    def reset(self, viewport: ViewportSize) -> list[str]:
        """Make it as new for the next test; returns the errors of this one."""
        self.page.unroute_all()
        self.leave()
        self.page.set_viewport_size(viewport)
        self.page.mouse.move(0, 0)
        self.page.emulate_media(**STANDARD_MEDIA)
        errors = self.errors
        self.errors, self.requests, self._allows_disconnect = [], [], False
        return errors

    def leave(self) -> None:
        """Before its node is stopped."""
        self.page.goto("about:blank")

    def allow_disconnect(self) -> None:
        """Ignore connection errors from now on."""
        self._allows_disconnect = True

    def break_stream(self) -> None:
        self.page.evaluate("window.stream.dispatchEvent(new Event('error'))")

    def suspend_for_an_hour(self) -> None:
        """As a laptop does; afterwards the clock advances only when the test runs it."""
        self.page.clock.pause_at(self.page.evaluate("Date.now()") + 500)
        self.page.clock.fast_forward(3_600_000)

    # ---- elements

    def row(self, service_id: str) -> Locator:
        return self.page.locator(f"tr[data-id={json.dumps(service_id, ensure_ascii=False)}]")

    def cell(self, service_id: str, column: int) -> Locator:
        return self.row(service_id).locator(":scope > *").nth(column)

    def group(self, name: str) -> Locator:
        """The heading of a group."""
        return self.page.locator(f"tr.group[data-group={json.dumps(name, ensure_ascii=False)}]")

    def panel(self, service_id: str) -> Locator:
        return self.row(service_id).locator("xpath=following-sibling::tr[1]").locator(".panel")

    @property
    def service_ids(self) -> list[str]:
        found: list[str] = self.page.eval_on_selector_all(ROWS, "rows => rows.map(r => r.dataset.id)")
        return found

    @property
    def rows(self) -> list[str]:
        """The ids of the services, and the names of the groups between them."""
        read = "rows => rows.map(row => row.dataset.id ?? row.dataset.group)"
        found: list[str] = self.page.eval_on_selector_all(".chunk tr:not(.expanded, [hidden])", read)
        return found

    def bars(self, service_id: str) -> Locator:
        return self.row(service_id).locator(".bars")

    def expect_connection(self, mode: str) -> None:
        """`live`, `behind`, `polling`, `retrying` or `lost`."""
        expect(self.page.locator("#node")).to_have_attribute("data-connection", mode)

    def expect_code(self, service_id: str, code: str) -> None:
        expect(self.row(service_id)).to_have_attribute("data-code", code)

    def leave_table(self) -> None:
        """Rows move only while neither the pointer nor the focus is on one."""
        self.page.mouse.move(0, 0)
        self.page.evaluate("document.activeElement.blur()")

    @property
    def tooltip(self) -> Locator:
        return self.page.get_by_role("tooltip")

    @property
    def overflows_viewport(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth > innerWidth"))

    # ---- expectations

    def wait_for_bars(self, service_id: str) -> None:
        """Without `expect`, which is slow with many rows: it describes the whole page while it waits."""
        self.bars(service_id).wait_for()

    def run_clock_until_health(self, health: str) -> None:
        """With the fake clock, the page polls only while it runs; a response may arrive after that."""
        deadline_s = time.monotonic() + 60.0
        while self.page.locator("#node").get_attribute("data-health") != health:
            assert time.monotonic() < deadline_s, "it has another health"
            self.page.clock.run_for(1000)
            self.page.wait_for_timeout(50)
        self.expect_health(health)

    def expect_health(self, health: str, node: str = "validator-7") -> None:
        """In headline, title and icon."""
        label, symbol = HEALTHS[health]
        expect(self.page.locator("#node")).to_have_attribute("data-health", health)
        expect(self.page.get_by_role("heading", level=1)).to_have_text(re.compile(re.escape(f"{node} {label}")))
        expect(self.page).to_have_title(f"{symbol} {node}: {label.lower()}")
        expect(self.page.locator("link[rel=icon]")).to_have_attribute("href", f"static/{static_name(f'{health}.svg')}")

    def expect_status(self, service_id: str, status: str) -> None:
        expect(self.cell(service_id, 1)).to_have_text(status)
        expect(self.row(service_id)).to_have_attribute("data-status", status)

    def expect_ids(self, *ids: str) -> None:
        expect(self.page.locator(ROWS)).to_have_count(len(ids))
        for position, service_id in enumerate(ids):
            expect(self.page.locator(ROWS).nth(position)).to_have_attribute("data-id", service_id)
