"""The report in a real browser: on paper, without JavaScript, and in dark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from svcnode.operator.report_views import html_page
from svcnode.operator.static_files import read_static
from tests.browser.conftest import CONTEXT_OPTIONS
from tests.unit.operator.test_report import DB, DOCUMENT

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

MAX_PAGES = 8


def many(count: int) -> str:
    """A report of services with long names and every kind of number."""
    services = [
        {**DB, "id": f"chain-{number}/validator", "name": f"Ledger database of the validator number {number}"}
        for number in range(count)
    ]
    return html_page({**DOCUMENT, "services": services}, read_static("report.css").decode())


def test_200_services_fit_on_eight_pages_of_a4(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(many(200), encoding="utf-8")
    context = browser.new_context(**CONTEXT_OPTIONS, java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(file.as_uri())
        pdf = page.pdf(prefer_css_page_size=True)
    finally:
        context.close()
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    sizes = {tuple(map(float, box.split())) for box in re.findall(rb"/MediaBox\s*\[([0-9. ]+)\]", pdf)}
    assert 2 <= pages <= MAX_PAGES
    assert all(abs(width - 842) < 2 and abs(height - 595) < 2 for _, _, width, height in sizes), "A4"


def test_nothing_is_cut_off_on_paper_and_the_text_is_black(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(many(3), encoding="utf-8")
    context = browser.new_context(**{**CONTEXT_OPTIONS, "viewport": {"width": 1046, "height": 1000}})  # 277 mm
    try:
        page = context.new_page()
        page.emulate_media(media="print", color_scheme="dark")
        page.goto(file.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        missed = page.locator('[data-objective="missed"] .objective').first
        assert missed.evaluate("(cell) => getComputedStyle(cell).color") == "rgb(0, 0, 0)"
        assert "✖" in missed.inner_text()
        page.emulate_media(media="screen", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 22)"
        page.emulate_media(media="screen", color_scheme="light")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    finally:
        context.close()
