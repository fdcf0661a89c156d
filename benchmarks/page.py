"""The page: how many bytes it takes on the wire, what a change costs the server, how soon a change is on the screen."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from benchmarks import peers
from benchmarks.comparison import Benchmark, Candidate, Comparison, Threshold
from benchmarks.processes import run_figure, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from playwright.sync_api import Page

    from benchmarks.provision import Python

SCRIPT = "benchmarks.page_figures"
MAX_WIRE_KB = {12: 10, 1000: 60, 5000: 250, 20_000: 800}
MANY_SERVICES, FEW_SERVICES = 10_000, 10
SHOWN_SERVICES, CHANGES_PER_S, SAMPLE_INTERVAL_S = 1000, 50, 0.1
MAX_SCREEN_LAG_S = 2.0
MANY_ROWS, FEW_ROWS, FRAMES = 2000, 50, 250
SHOWN_STATUSES = """() => Object.fromEntries(
  [...document.querySelectorAll("tr[data-id]")].map(row => [row.dataset.id, row.dataset.status])
)"""


SCROLL = """async ([step, count]) => {
  const frames = [];
  let last = performance.now();
  for (let left = count; left; left -= 1) {
    scrollBy(0, step);
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return frames.sort((a, b) => a - b)[Math.floor(count * 0.9)];
}"""
TYPE = """async keys => {
  const filter = document.querySelector("#filter");
  const times = [];
  for (const key of keys) {
    const start = performance.now();
    filter.value += key;
    filter.dispatchEvent(new Event("input", {bubbles: true}));
    await new Promise(requestAnimationFrame);
    await new Promise(resolve => setTimeout(resolve));  // after the frame is drawn
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
}"""


def _wire(python: Python, seconds: int) -> Benchmark:
    def comparison(services: int, limit_kb: float) -> Comparison:
        candidate = Candidate(f"{services:,} services", lambda: run_figure(python.path, SCRIPT, "wire", services))
        return Comparison(candidate, threshold=Threshold(limit_kb, is_floor=False))

    return Benchmark(
        title="page: size on the wire, kB",
        comparisons=tuple(comparison(services, limit_kb) for services, limit_kb in MAX_WIRE_KB.items()),
    )


def _change(python: Python, seconds: int) -> Benchmark:
    def candidate(services: int) -> Candidate:
        return Candidate(f"{services:,} services", lambda: run_figure(python.path, SCRIPT, "change", services))

    return Benchmark(
        title="page: processor time per change, µs",
        comparisons=(Comparison(candidate(MANY_SERVICES), candidate(FEW_SERVICES), Threshold(1.5, is_floor=False)),),
    )


def _screen_lag(python: Python, seconds: int) -> Benchmark:
    svcnode = Candidate(f"{SHOWN_SERVICES:,} services", lambda: _screen_lag_s(max(5, seconds)))
    return Benchmark(
        title=f"page: longest time that any row is behind under {CHANGES_PER_S} changes per second, s",
        comparisons=(Comparison(svcnode, threshold=Threshold(MAX_SCREEN_LAG_S, is_floor=False)),),
    )


def _scrolling(python: Python, seconds: int) -> Benchmark:
    return _in_browser("90th percentile of frame times while scrolling", python, SCROLL, [200, FRAMES])


def _typing(python: Python, seconds: int) -> Benchmark:
    return _in_browser("time from a key in the filter to the next frame", python, TYPE, list("svc-1234"))


def _in_browser(figure: str, python: Python, script: str, argument: list[Any]) -> Benchmark:
    def candidate(rows: int) -> Candidate:
        return Candidate(f"{rows:,} rows", lambda: _evaluate(python.path, rows, script, argument))

    return Benchmark(
        title=f"page: {figure}, ms",
        comparisons=(Comparison(candidate(MANY_ROWS), candidate(FEW_ROWS), Threshold(3, is_floor=False)),),
    )


BENCHMARKS: dict[str, Callable[[Python, int], Benchmark]] = {
    "page-wire": _wire,
    "page-change": _change,
    "page-lag": _screen_lag,
    "page-scrolling": _scrolling,
    "page-typing": _typing,
}


# ---- one measurement each


@contextmanager
def _page(url: str) -> Iterator[Page]:
    from playwright.sync_api import sync_playwright
    from tests.browser.conftest import CHROMIUM_ARGS
    from tests.support.servers.provision import program

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium", "chromium"), args=CHROMIUM_ARGS)
        try:
            page = browser.new_page()
            page.goto(url)
            page.wait_for_selector("[data-connection=live]")
            yield page
        finally:
            browser.close()


def _evaluate(python: Path, rows: int, script: str, argument: list[Any]) -> float:
    with running(peers.svcnode(python, rows)) as server, _page(f"http://127.0.0.1:{server.port}/") as page:
        return float(page.evaluate(script, argument))


def _screen_lag_s(seconds: float) -> float:
    """The node runs in this process: the server, the browser and the changes share the cores of the machine."""
    from tests.support.page_node import Changes, page_node

    with page_node(SHOWN_SERVICES) as node, _page(node.url) as page:
        longest_s, end_s = 0.0, time.monotonic() + seconds
        with Changes(node.handles, CHANGES_PER_S) as changes:
            while time.monotonic() < end_s:
                shown = page.evaluate(SHOWN_STATUSES)
                longest_s = max(longest_s, changes.longest_lag_s(shown, time.monotonic()))
                page.wait_for_timeout(SAMPLE_INTERVAL_S * 1000)
        return longest_s
