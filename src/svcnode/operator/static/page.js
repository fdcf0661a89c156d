// Brings the page to life. The server has made the whole table; here begins what keeps it true, and what people do with
// it. Parts: state.js what all share, live.js how it is kept true, health.js the node, rows.js the table, charts.js and
// tooltip.js the past, panel.js one service in detail, format.js how numbers are said.

import { paintNode } from "./health.js";
import { onVisibilityChange, loadColumn, loadBars, loadVisibleRows, readPage, tick } from "./live.js";
import { toggle } from "./panel.js";
import { COLUMNS, sortAndFilter, restoreView, saveView } from "./rows.js";
import { RESOLUTIONS, byId, main, services, setText, scheduleOnce, view } from "./state.js";
import { followPointer, hideTooltip, hideTooltipOnScroll, showTooltip, moveCursor } from "./tooltip.js";

function choose(changes) {
  Object.assign(view, changes);
  saveView();
  if ("resolution" in changes) showResolution();
  else sortAndFilter();
}

function showResolution() {
  setText(byId("availability-head"), `Available, ${RESOLUTIONS[view.resolution][0]}`);
  loadBars();
}

async function sortBy(column) {
  view.isDescending = view.sort === column ? !view.isDescending : COLUMNS[column][1];
  view.sort = column;
  saveView();
  sortAndFilter();
  try {
    await loadColumn(column);
  } catch {
    return; // what is known is in order already
  }
  sortAndFilter();
}

function showAll() {
  byId("filter").value = "";
  main.querySelector("[name=status][value='']").checked = true;
  choose({ q: "", status: "" });
}

function onClick(event) {
  const { target } = event;
  const row = target.closest("tr[data-id]");
  const isLink = target.closest("a[role=button]") !== null;
  if (target.closest("[data-sort]")) sortBy(target.closest("[data-sort]").dataset.sort);
  else if (target.id === "show-all") showAll();
  else if (row && !target.closest(".chart") && !(event.ctrlKey || event.metaKey || event.shiftKey)) {
    if (isLink) event.preventDefault();
    if (isLink || getSelection().isCollapsed) toggle(services.get(row.dataset.id));
  }
}

function onKey(event) {
  const { key, target } = event;
  const isFilter = target === byId("filter");
  if (key === "/" && !isFilter && !(event.ctrlKey || event.metaKey || event.altKey)) {
    event.preventDefault();
    byId("filter").focus();
  } else if (key === "Escape") {
    hideTooltip();
    if (isFilter) choose({ q: (target.value = "") });
  } else if (key === " " && target.matches("a[role=button]")) {
    event.preventDefault();
    target.click();
  } else if (target.matches(".bars")) {
    moveCursor(event);
  }
}

function restoreViewAndHistory() {
  restoreView();
  showResolution();
}

readPage();
for (const control of main.querySelectorAll("[disabled]")) control.disabled = false;
for (const control of main.querySelectorAll("#resolutions, .filter")) control.hidden = false;
main.classList.add("enhanced");
restoreViewAndHistory();
paintNode();
onVisibilityChange();
setInterval(tick, 1000);

addEventListener("visiblechange", () => scheduleOnce("check", loadVisibleRows, 150)); // not at every row that flies by
addEventListener("hashchange", restoreViewAndHistory);
addEventListener("scroll", hideTooltipOnScroll, { passive: true });
document.addEventListener("visibilitychange", onVisibilityChange);
document.addEventListener("keydown", onKey);
main.addEventListener("click", onClick);
main.addEventListener("pointermove", followPointer, { passive: true });
main.addEventListener("pointerdown", followPointer, { passive: true });
main.addEventListener("focusin", ({ target }) => target.matches(".bars") && showTooltip(target));
main.addEventListener("focusout", hideTooltip);
main.addEventListener("animationend", ({ target }) => target.classList.remove("changed"));
byId("filter").addEventListener("input", ({ target }) => choose({ q: target.value }));
byId("statuses").addEventListener("change", ({ target }) => choose({ status: target.value }));
byId("resolutions").addEventListener("change", ({ target }) => choose({ resolution: target.value }));
