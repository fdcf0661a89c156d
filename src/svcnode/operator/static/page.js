// Starts the page. The server has rendered the whole table; the script keeps it up to date and handles input.
//
//   state.js    shared state and helpers           rows.js     the table: painting, sorting, filtering
//   live.js     events, polling, history           charts.js   availability bars, latency line, tooltip
//   health.js   headline, title, icon, notices     panel.js    the expanded row
//   format.js   durations, latencies, times        replicas.js the replicas of a node on several machines
//   notifications.js   what was tried for each notification target

import { followPointer, hideTooltip, hideTooltipOnScroll, showTooltip, moveCursor } from "./charts.js";
import { paintNode } from "./health.js";
import { onVisibilityChange, loadColumn, loadHistory, loadVisibleRows, readPage, tick } from "./live.js";
import { togglePanel } from "./panel.js";
import { COLUMNS, sortAndFilter, restoreView, saveView, toggleGroup } from "./rows.js";
import { RESOLUTIONS, byId, groups, main, services, setText, scheduleOnce, view } from "./state.js";

function changeView(changes) {
  Object.assign(view, changes);
  saveView();
  if ("resolution" in changes) showResolution();
  else sortAndFilter();
}

function showResolution() {
  setText(byId("availability-head"), `Available, ${RESOLUTIONS[view.resolution][0]}`);
  loadHistory();
}

async function sortBy(column) {
  view.isDescending = view.sort === column ? !view.isDescending : COLUMNS[column][1];
  view.sort = column;
  saveView();
  sortAndFilter();
  try {
    await loadColumn(column);
  } catch {
    return; // the loaded values are sorted already
  }
  sortAndFilter();
}

function showAll() {
  byId("filter").value = "";
  main.querySelector("[name=status][value='']").checked = true;
  changeView({ q: "", status: "" });
}

function toggleAllGroups() {
  for (const group of groups.values()) group.isToggled = false;
  changeView({ areGroupsCollapsed: !view.areGroupsCollapsed });
}

function onClick(event) {
  const { target } = event;
  const row = target.closest("tr[data-id]");
  const isLink = target.closest("a[role=button]") !== null;
  if (target.closest("[data-sort]")) sortBy(target.closest("[data-sort]").dataset.sort);
  else if (target.id === "show-all") showAll();
  else if (target.id === "toggle-groups") toggleAllGroups();
  else if (target.closest(".group button:enabled")) toggleGroup(target.closest(".group").dataset.group);
  else if (row && !target.closest(".chart") && !(event.ctrlKey || event.metaKey || event.shiftKey)) {
    if (isLink) event.preventDefault();
    if (isLink || getSelection().isCollapsed) togglePanel(services.get(row.dataset.id));
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
    if (isFilter) changeView({ q: (target.value = "") });
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

addEventListener("visiblechange", () => scheduleOnce("visible", loadVisibleRows, 150)); // not for rows that scroll past
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
byId("filter").addEventListener("input", ({ target }) => changeView({ q: target.value }));
byId("statuses").addEventListener("change", ({ target }) => changeView({ status: target.value }));
byId("resolutions").addEventListener("change", ({ target }) => changeView({ resolution: target.value }));
