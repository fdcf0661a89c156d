// The table: reads the rows that the server has rendered, paints changes, filters and sorts.
//
// Rows are grouped in chunks. The browser observes chunks instead of rows: observing 2,000 rows makes scrolling slow,
// observing 100 chunks does not.

import { availability, drawBars, drawLine, hasMaintenance, meanLatency, newBars, newLine, setSliderValue } from "./charts.js";
import { EMPTY_CELL, SHARED, age, availabilityText, duration, latency } from "./format.js";
import { RESOLUTIONS, byId, connection, element, groups, main, now, scheduleOnce, services, setText, view, visibleServices } from "./state.js";

const NO_BUCKETS = [];
const STATUS_ORDER = SHARED.status_order;

// For each column: the value to compare, and whether the first click sorts in descending order.
export const COLUMNS = {
  name: [(service) => service.name, false],
  status: [(service) => STATUS_ORDER[service.status], false],
  since: [(service) => -service.since, false],
  reason: [(service) => service.reason || null, false],
  check: [(service) => service.checkedAt && -service.checkedAt, true],
  latency: [(service) => service.latency, true],
  availability: [(service) => service.availability, false],
};

// ---- reading

const visibleChunks = new Set();
const chunkObserver = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) visibleChunks.add(target);
    else visibleChunks.delete(target);
  }
  updateVisibleServices();
});

function updateVisibleServices() {
  visibleServices.clear();
  for (const chunk of visibleChunks) {
    for (const row of chunk.rows) if (row.dataset.id) visibleServices.add(services.get(row.dataset.id));
  }
  for (const service of visibleServices) if (service.drawnBuckets !== service.buckets) paintSoon(service);
  dispatchEvent(new Event("visiblechange"));
}

export function readRows() {
  const before = new Map(services);
  services.clear();
  visibleServices.clear();
  paintQueue.clear();
  visibleChunks.clear();
  chunkObserver.disconnect();
  for (const row of main.querySelectorAll("tr[data-id]")) {
    const service = readRow(row);
    Object.assign(service, carryOver(service, before.get(service.id)));
    services.set(service.id, service);
    service.link.setAttribute("role", "button");
    service.link.setAttribute("aria-expanded", "false");
  }
  readGroups();
  for (const chunk of main.querySelectorAll(".chunk")) chunkObserver.observe(chunk);
  byId("no-services").hidden = services.size > 0;
}

function readRow(row) {
  const time = (cell) => Date.parse(cell.firstElementChild?.dateTime) || null;
  const number = (cell) => (cell.firstChild.value === "" ? null : Number(cell.firstChild.value));
  const [nameCell, , sinceCell, reasonCell, checkCell, latencyCell, availabilityCell] = row.cells;
  const { id, order, status, code, group = "" } = row.dataset;
  const link = nameCell.firstChild;
  return {
    id, order: Number(order), row, link, group, name: link.textContent, isFixed: "fixed" in row.dataset,
    status, since: time(sinceCell), reason: reasonCell.firstChild.textContent, code,
    checkedAt: time(checkCell), latency: number(latencyCell), checks: null, drawnChecks: null,
    availability: number(availabilityCell), hasMaintenance: "maintenance" in availabilityCell.firstChild.dataset,
    buckets: NO_BUCKETS, drawnBuckets: NO_BUCKETS, historyVersion: "",
    panel: null, details: null, transitions: null,
  };
}

// A fixed status is not measured, so it has no availability.
function availabilityOf({ isFixed }, buckets) {
  if (isFixed) return { availability: null, hasMaintenance: false };
  return { availability: availability(buckets), hasMaintenance: hasMaintenance(buckets) };
}

// Data that the rendered table does not contain; it stays valid when the table is replaced.
function carryOver(service, before) {
  if (!before) return {};
  const { checks, buckets, historyVersion, length, fetchedAt, details, transitions } = before;
  const derived = buckets.length ? availabilityOf(service, buckets) : {};
  return { checks, buckets, historyVersion, length, fetchedAt, details, transitions, ...derived };
}

export function setBuckets(service, buckets, length) {
  Object.assign(service, { buckets, length, fetchedAt: now(), ...availabilityOf(service, buckets) });
  paintSoon(service);
}

// A line needs some minutes of history; before that it is drawn from the last checks.
const MIN_MINUTES = 5;
const MAX_CHECKS = 20;

export function isDrawnFromChecks({ buckets }) {
  const isLoaded = buckets.length > 0 && view.resolution === "minutes";
  return isLoaded && buckets.filter((bucket) => meanLatency(bucket) !== null).length < MIN_MINUTES;
}

export function addChecks(service, { recent_checks, evidence, schedule }) {
  const counts = (check) => schedule && check && check.outcome !== "unknown"; // as in history
  if (recent_checks) service.checks = recent_checks.filter(counts).reverse();
  else if (service.checks && counts(evidence) && evidence.at !== service.checks.at(-1)?.at) {
    service.checks = [...service.checks, evidence].slice(-MAX_CHECKS);
  }
}

// ---- painting, at most once per frame

const paintQueue = new Set();

export function paintSoon(service) {
  if (!paintQueue.size) requestAnimationFrame(paintAll);
  paintQueue.add(service);
}

function paintAll() {
  const isOrderStale = [...paintQueue].filter(paint).length > 0;
  paintQueue.clear();
  if (!isOrderStale) return;
  paintCounts();
  scheduleOnce("sort", sortAndFilter, 500);
}

// Returns whether the position of the row may have changed.
function paint(service) {
  const { row, status } = service;
  const [, statusCell, , reasonCell, , latencyCell, availabilityCell] = row.cells;
  const mayMove = row.dataset.status !== status || reasonCell.firstChild.textContent !== service.reason;
  if (row.dataset.status !== status) {
    row.dataset.status = status;
    row.classList.add("changed");
  }
  row.dataset.code = service.code;
  setText(statusCell.firstChild, status);
  setText(reasonCell.firstChild, service.reason);
  setText(latencyCell.firstChild, service.latency === null ? EMPTY_CELL : latency(service.latency));
  setText(availabilityCell.firstChild, availabilityText(service));
  paintTimes(service);
  if (visibleServices.has(service) && service.buckets.length) {
    const isNew = service.drawnBuckets !== service.buckets;
    if (isNew || service.drawnChecks !== service.checks) paintLine(service, latencyCell);
    if (isNew) paintBars(service, availabilityCell);
  }
  return mayMove;
}

export function paintTimes({ row, since, checkedAt }) {
  if (connection.isLost) return; // the times would grow although the state is not known
  setText(row.cells[2].firstChild, duration((now() - since) / 1000));
  if (!checkedAt) return;
  if (!row.cells[4].firstElementChild) row.cells[4].replaceChildren(element("time"));
  setText(row.cells[4].firstChild, age((now() - checkedAt) / 1000));
}

function paintLine(service, cell) {
  const { buckets, checks } = service;
  service.drawnChecks = checks;
  const chart = cell.children[1] ?? cell.appendChild(newLine());
  const isFromChecks = isDrawnFromChecks(service);
  chart.classList.toggle("checks", isFromChecks);
  drawLine(chart, isFromChecks ? (checks ?? []).map((check) => check.duration_ms) : buckets.map(meanLatency));
}

function paintBars(service, cell) {
  const { buckets, length, fetchedAt } = service;
  service.drawnBuckets = buckets;
  const chart = cell.children[1] ?? cell.appendChild(newBars());
  const [period, unit] = RESOLUTIONS[view.resolution];
  chart.setAttribute("aria-label", `Availability of ${service.name} in the last ${period}, by ${unit}`);
  chart.setAttribute("aria-valuemax", buckets.length - 1);
  drawBars(chart, buckets, length, fetchedAt);
  setSliderValue(chart, service, buckets.length - 1);
}

// ---- groups: each has a heading, which the server has rendered

function readGroups() {
  const before = new Map(groups);
  groups.clear();
  for (const row of main.querySelectorAll("tr.group")) {
    const name = row.dataset.group;
    groups.set(name, { name, row, button: row.querySelector("button"), isToggled: before.get(name)?.isToggled ?? false });
  }
  byId("toggle-groups").hidden = groups.size === 0;
}

// A filter shows all matching services.
const isFiltering = () => view.status !== "" || view.q.trim() !== "";
const isCollapsed = ({ isToggled }) => !isFiltering() && view.areGroupsCollapsed !== isToggled;

export function toggleGroup(name) {
  const group = groups.get(name);
  group.isToggled = !group.isToggled;
  sortAndFilter();
}

function paintGroups() {
  const counts = new Map([...groups.keys()].map((name) => [name, {}]));
  for (const { group, status } of services.values()) {
    if (group) counts.get(group)[status] = (counts.get(group)[status] ?? 0) + 1;
  }
  for (const group of groups.values()) {
    group.button.disabled = isFiltering();
    group.button.setAttribute("aria-expanded", String(!isCollapsed(group)));
    for (const total of group.row.querySelectorAll("[data-status]")) {
      const number = counts.get(group.name)[total.dataset.status] ?? 0;
      total.hidden = number === 0;
      setText(total.firstChild, `${number} ${total.dataset.status}`);
    }
  }
  setText(byId("toggle-groups"), view.areGroupsCollapsed ? "Expand groups" : "Collapse groups");
}

// Services in no group come first; the groups follow in the order of their first service. Returns the rows, and the rows
// of the services in collapsed groups.
function arrangeGroups(matching) {
  const members = new Map([["", []]]);
  for (const service of matching) {
    if (!members.has(service.group)) members.set(service.group, []);
    members.get(service.group).push(service);
  }
  const [shown, collapsed] = [[], []];
  for (const [name, list] of members) {
    if (name) shown.push([groups.get(name).row]);
    (name && isCollapsed(groups.get(name)) ? collapsed : shown).push(...list.map(rowsOf));
  }
  for (const { name, row } of groups.values()) if (!members.has(name)) collapsed.push([row]);
  return [shown, collapsed.flat()];
}

// ---- filtering and sorting

const ROWS_PER_CHUNK = SHARED.rows_per_chunk;

function paintCounts() {
  const counts = { "": services.size, ...Object.fromEntries(Object.keys(STATUS_ORDER).map((status) => [status, 0])) };
  for (const service of services.values()) counts[service.status] += 1;
  for (const [status, number] of Object.entries(counts)) {
    setText(byId("statuses").querySelector(`[value="${status}"] + span b`), String(number));
  }
  paintGroups();
}

function matchesFilter(service, terms) {
  if (view.status && service.status !== view.status) return false;
  const text = terms.length ? `${service.name} ${service.id} ${service.group} ${service.reason} ${service.code}`.toLowerCase() : "";
  return terms.every((term) => text.includes(term));
}

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

function compare(left, right) {
  const [value] = COLUMNS[view.sort];
  const [a, b] = [value(left), value(right)];
  if (a === null || b === null) return (a === null) - (b === null) || left.order - right.order; // rows without a value come last
  const difference = typeof a === "string" ? collator.compare(a, b) : a - b;
  return (view.isDescending ? -difference : difference) || left.order - right.order;
}

export function sortAndFilter() {
  const terms = view.q.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const focused = document.activeElement;
  const matching = [];
  for (const service of services.values()) {
    if (matchesFilter(service, terms)) matching.push(service);
    else if (service.row.parentElement !== byId("hidden-rows")) byId("hidden-rows").append(...rowsOf(service));
  }
  const [shown, collapsed] = arrangeGroups(matching.sort(compare));
  for (const row of collapsed) if (row.parentElement !== byId("hidden-rows")) byId("hidden-rows").append(row);
  fillChunks(shown);
  if (focused?.isConnected) focused.focus({ preventScroll: true });
  paintCounts();
  byId("no-match").hidden = matching.length > 0 || !services.size;
  setText(byId("match-count"), terms.length ? `${matching.length} of ${services.size}` : "");
  paintSortMarks();
}

const rowsOf = ({ row, panel }) => (panel ? [row, panel] : [row]);

// `shown`: for each service or heading, its rows.
function fillChunks(shown) {
  const chunks = [...main.querySelectorAll(".chunk")];
  for (let first = 0; first < shown.length; first += ROWS_PER_CHUNK) {
    const rows = shown.slice(first, first + ROWS_PER_CHUNK).flat();
    arrangeRows(chunks.shift() ?? newChunk(), rows);
  }
  for (const chunk of chunks) {
    chunkObserver.unobserve(chunk);
    visibleChunks.delete(chunk);
    chunk.remove();
  }
  updateVisibleServices();
}

function newChunk() {
  const chunk = element("tbody", { role: "rowgroup", class: "chunk" });
  byId("hidden-rows").before(chunk);
  chunkObserver.observe(chunk);
  return chunk;
}

// Moves only the rows that are out of order; rows left over at the end belong to a later chunk.
function arrangeRows(chunk, rows) {
  let next = chunk.firstElementChild;
  for (const row of rows) {
    if (row === next) next = next.nextElementSibling;
    else chunk.insertBefore(row, next);
  }
  chunk.style.setProperty("--rows", rows.length);
}

function paintSortMarks() {
  for (const button of main.querySelectorAll("[data-sort]")) {
    const head = button.parentElement;
    if (button.dataset.sort !== view.sort) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", view.isDescending ? "descending" : "ascending");
  }
}

// ---- the view, saved in the fragment of the URL for bookmarks and links

// A node that started less than 90 minutes ago has little history.
const defaultResolution = () => (now() - Date.parse(main.dataset.started) < 90 * 60000 ? "minutes" : "hours");

export function saveView() {
  const params = new URLSearchParams();
  if (view.q) params.set("q", view.q);
  if (view.status) params.set("status", view.status);
  if (view.sort !== "status" || view.isDescending) params.set("sort", (view.isDescending ? "-" : "") + view.sort);
  if (view.areGroupsCollapsed) params.set("groups", "collapsed");
  if (view.resolution !== defaultResolution()) params.set("resolution", view.resolution);
  history.replaceState(null, "", `#${params}`);
}

export function restoreView() {
  const params = new URLSearchParams(location.hash.slice(1));
  const known = (value, allowed, fallback) => (Object.hasOwn(allowed, value) ? value : fallback);
  const sort = params.get("sort") ?? "";
  Object.assign(view, {
    q: params.get("q") ?? "",
    status: known(params.get("status"), STATUS_ORDER, ""),
    sort: known(sort.replace(/^-/, ""), COLUMNS, "status"),
    isDescending: sort.startsWith("-"),
    areGroupsCollapsed: params.get("groups") === "collapsed",
    resolution: known(params.get("resolution"), RESOLUTIONS, defaultResolution()),
  });
  byId("filter").value = view.q;
  for (const name of ["status", "resolution"]) main.querySelector(`[name=${name}][value="${view[name]}"]`).checked = true;
  sortAndFilter();
}
