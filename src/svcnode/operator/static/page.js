// Starts the page. The server has rendered the whole table; the script keeps it up to date and handles input.
//
//   live.js       signals, changes, history            rows.js      rows: putting them in place, ages, charts
//   connection.js live, behind, lost; title and icon   groups.js    the headings of groups
//   sections.js   parts that are replaced as a whole   order.js     filtering, sorting, what is in view
//   panel.js      the expanded row                     view.js      the view in the URL
//   charts.js     availability bars, latency line      format.js    durations, latencies, times
//   timeline.js   the timeline: period and moment     keyboard.js  tab stops and arrow keys
//   state.js      shared state and helpers

import { followPointer, hideTooltip, hideTooltipOnScroll, showTooltip } from "./charts.js";
import { paintNode } from "./connection.js";
import { readGroups, toggleGroup } from "./groups.js";
import { moveFocus, takeTabStop } from "./keyboard.js";
import { onVisibilityChange, loadColumn, loadHistory, loadVisibleRows, tick } from "./live.js";
import { COLUMNS, filterRows, notePointer, observeChunks, releaseOrder, sortAndFilter } from "./order.js";
import { openPanel, togglePanel } from "./panel.js";
import { paintTimes, readRows } from "./rows.js";
import { useViews, putWaitingSections } from "./sections.js";
import { RESOLUTIONS, byId, connection, groups, main, services, setText, scheduleOnce, view } from "./state.js";
import { refreshTimeline, showTimeline, startTimeline, timelineChanges } from "./timeline.js";
import { restoreView, saveView } from "./view.js";

function changeView(changes) {
  Object.assign(view, changes);
  saveView();
  if ("resolution" in changes) showResolution();
  else filterRows();
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

function changeTimeline(changes, isAsked) {
  Object.assign(view, changes);
  saveView();
  showTimeline(isAsked);
}

function filterBy(q) {
  byId("filter").value = q;
  main.querySelector("[name=status][value='']").checked = true;
  changeView({ q, status: "" });
}

// A problem leads to the rows of its services. If it is that of one service, also to all that is known of it.
async function showRows(q) {
  const service = services.get(q);
  const scroll = () => main.querySelector(".toolbar").scrollIntoView();
  filterBy(q);
  (service?.link ?? byId("services")).focus({ preventScroll: true });
  scroll();
  if (!service || service.panel) return;
  await openPanel(service);
  scroll(); // before, the page may have been too short
}

function toggleAllGroups() {
  for (const group of groups.values()) group.isToggled = false;
  changeView({ areGroupsCollapsed: !view.areGroupsCollapsed });
}

function toggleOneGroup(name) {
  toggleGroup(name);
  filterRows();
}

function onClick(event) {
  const { target } = event;
  const row = target.closest("tr[data-id]");
  const isLink = target.closest("a[role=button]") !== null;
  const isPlain = !(event.ctrlKey || event.metaKey || event.shiftKey); // otherwise a link opens elsewhere
  const link = isPlain && target.closest("#timeline a, #problems a[href^='#']");
  const changes = link && timelineChanges(link);
  const rows = link && new URLSearchParams(link.hash?.slice(1)).get("q");
  if (changes || rows) event.preventDefault();
  if (changes) changeTimeline(changes, true);
  else if (rows) showRows(rows);
  else if (target.closest("[data-sort]")) sortBy(target.closest("[data-sort]").dataset.sort);
  else if (target.id === "show-all") filterBy("");
  else if (target.id === "toggle-groups") toggleAllGroups();
  else if (target.closest(".group button:enabled")) toggleOneGroup(target.closest(".group").dataset.group);
  else if (row && isPlain && !target.closest(".chart, .tag")) {
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
    if (target.matches(".bars")) services.get(target.closest("tr").dataset.id).link.focus();
    if (isFilter) changeView({ q: (target.value = "") });
  } else if (key === " " && target.matches("a[role=button]")) {
    event.preventDefault();
    target.click();
  } else {
    moveFocus(event);
  }
}

function onFocus({ target }) {
  takeTabStop(target);
  if (target.matches(".bars")) showTooltip(target);
}

// Not by the fragment of the URL, which has the view.
function skip(event) {
  event.preventDefault();
  byId("services").focus();
}

const releaseOrderSoon = () => setTimeout(releaseOrder); // the event comes before the change

function restoreViewAndHistory() {
  restoreView();
  showResolution();
  showTimeline(location.hash.includes("service=") || location.hash.includes("t="));
}

Object.assign(connection, { skew: Date.now() - main.dataset.now, cursor: main.dataset.cursor });
readGroups();
readRows();
observeChunks();
for (const control of main.querySelectorAll("[disabled]")) control.disabled = false;
for (const control of main.querySelectorAll("#resolutions, .filter")) control.hidden = false;
main.classList.add("enhanced");
useViews(main);
startTimeline((changes) => changeTimeline(changes, false));
restoreViewAndHistory();
paintNode();
onVisibilityChange();
setInterval(tick, 1000);
setInterval(refreshTimeline, 1000);

addEventListener("visiblechange", () => scheduleOnce("visible", loadVisibleRows, 150)); // not for rows that scroll past
addEventListener("beforeprint", () => services.forEach(paintTimes)); // also of rows that are not in view
addEventListener("hashchange", restoreViewAndHistory);
addEventListener("scroll", hideTooltipOnScroll, { passive: true });
document.addEventListener("visibilitychange", onVisibilityChange);
document.addEventListener("keydown", onKey);
document.addEventListener("selectionchange", putWaitingSections);
main.addEventListener("click", onClick);
main.addEventListener("pointermove", followPointer, { passive: true });
main.addEventListener("pointerdown", followPointer, { passive: true });
main.addEventListener("focusin", onFocus);
main.addEventListener("focusout", () => {
  hideTooltip();
  releaseOrderSoon();
});
byId("services").addEventListener("pointerover", notePointer, { passive: true });
byId("services").addEventListener("pointerleave", releaseOrderSoon);
addEventListener("blur", releaseOrderSoon);
document.querySelector(".skip").addEventListener("click", skip);
main.addEventListener("animationend", ({ target }) => target.classList.remove("changed"));
byId("filter").addEventListener("input", ({ target }) => changeView({ q: target.value }));
byId("statuses").addEventListener("change", ({ target }) => changeView({ status: target.value }));
byId("resolutions").addEventListener("change", ({ target }) => changeView({ resolution: target.value }));
