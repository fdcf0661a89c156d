// The rows of the table: read once from what the server made, then painted when something changes; sifted and ordered.
//
// Rows stand in chunks. A browser spends time on everything that it watches, in every frame: with a hundred chunks it
// scrolls smoothly, with two thousand rows it does not.

import { availability, describeBar, drawBars, drawLine, meanLatency, newBars, newLine } from "./charts.js";
import { RESOLUTIONS, byId, element, visibleServices, connection, main, now, services, setText, scheduleOnce, view } from "./state.js";
import { EMPTY_CELL, ago, duration, latency, percent } from "./format.js";

const NO_BARS = [];
const RANKS = { Down: 0, Initializing: 1, Up: 2 };

// For each column: what is compared, and whether the greatest comes first when it is first asked for.
export const COLUMNS = {
  name: [(s) => s.name, false],
  status: [(s) => RANKS[s.status], false],
  since: [(s) => -s.since, false],
  reason: [(s) => s.reason || null, false],
  check: [(s) => s.check && -s.check, true],
  latency: [(s) => s.latency, true],
  availability: [(s) => s.availability, false],
};

// ---- reading

const visibleChunks = new Set();
const watcher = new IntersectionObserver((entries) => {
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
  for (const service of visibleServices) if (service.drawn !== service.bars) paintSoon(service);
  dispatchEvent(new Event("visiblechange"));
}

export function readRows() {
  const before = new Map(services);
  services.clear();
  visibleServices.clear();
  toPaint.clear();
  visibleChunks.clear();
  watcher.disconnect();
  for (const row of main.querySelectorAll("tr[data-id]")) {
    const service = readRow(row);
    Object.assign(service, carryOver(service, before.get(service.id)));
    services.set(service.id, service);
    service.link.setAttribute("role", "button");
    service.link.setAttribute("aria-expanded", "false");
  }
  for (const chunk of main.querySelectorAll(".chunk")) watcher.observe(chunk);
  byId("no-services").hidden = services.size > 0;
}

function readRow(row) {
  const time = (cell) => Date.parse(cell.firstElementChild?.dateTime) || null;
  const number = (cell) => (cell.firstChild.value === "" ? null : Number(cell.firstChild.value));
  const [name, , since, reason, check, latencyCell, availability] = row.cells;
  return {
    id: row.dataset.id, order: Number(row.dataset.order), row, link: name.firstChild, name: name.firstChild.textContent,
    isFixed: "fixed" in row.dataset, status: row.dataset.status, since: time(since), reason: reason.textContent, check: time(check),
    latency: number(latencyCell), checks: null, availability: number(availability), bars: NO_BARS, barsOf: "", drawn: NO_BARS,
    panel: null, details: null, transitions: null,
  };
}

// What nobody checks at is neither available nor not, whatever the configuration says of it.
const availabilityOf = ({ isFixed }, bars) => (isFixed ? null : availability(bars));

// What the table does not tell: it need not be asked for again because the table was.
function carryOver(service, before) {
  if (!before) return {};
  const { checks, bars, barsOf, length, fetchedAt, details, transitions } = before;
  const availability = bars.length ? { availability: availabilityOf(service, bars) } : {};
  return { checks, bars, barsOf, length, fetchedAt, details, transitions, ...availability };
}

export function setBars(service, bars, length) {
  Object.assign(service, { bars, length, fetchedAt: now(), availability: availabilityOf(service, bars) });
  paintSoon(service);
}

// Minutes make no connection before there are some of them: until then, the last checks do.
const MIN_MINUTES = 5;
const MAX_CHECKS = 20;

export function isDrawnFromChecks({ bars }) {
  const isLoaded = bars.length > 0 && view.resolution === "minutes";
  return isLoaded && bars.filter((bar) => meanLatency(bar) !== null).length < MIN_MINUTES;
}

export function addChecks(service, { attempts, evidence, schedule }) {
  const counts = (check) => schedule && check && check.verdict !== "unknown"; // as in the minutes
  if (attempts) service.checks = attempts.filter(counts).reverse();
  else if (service.checks && counts(evidence) && evidence.at !== service.checks.at(-1)?.at) {
    service.checks = [...service.checks, evidence].slice(-MAX_LOOKS);
  }
}

// ---- painting; as often as the screen is, however many changes come

const toPaint = new Set();

export function paintSoon(service) {
  if (!toPaint.size) requestAnimationFrame(paintAll);
  toPaint.add(service);
}

function paintAll() {
  const isOrderStale = [...toPaint].filter(paint).length > 0;
  toPaint.clear();
  if (!isOrderStale) return;
  count();
  scheduleOnce("sortAndFilter", sortAndFilter, 500);
}

// Returns whether its next in the table may be another one now.
function paint(service) {
  const { row, status } = service;
  const [, word, , reason, , latencyCell, availability] = row.cells;
  const mayMove = row.dataset.status !== status || reason.textContent !== service.reason;
  if (row.dataset.status !== status) {
    row.dataset.status = status;
    row.classList.add("changed");
  }
  setText(word.firstChild, status);
  setText(reason.firstChild, service.reason);
  setText(latencyCell.firstChild, service.latency === null ? EMPTY_CELL : latency(service.latency));
  setText(availability.firstChild, service.availability === null ? EMPTY_CELL : percent(service.availability));
  paintTimes(service);
  if (visibleServices.has(service) && service.bars.length) {
    if (service.drawn !== service.bars || service.drawnChecks !== service.checks) paintLine(service, latencyCell);
    if (service.drawn !== service.bars) paintBars(service, availability);
  }
  return mayMove;
}

export function paintTimes({ row, since, check }) {
  if (connection.isLost) return; // for how long it goes on, nobody knows
  setText(row.cells[2].firstChild, duration((now() - since) / 1000));
  if (!check) return;
  if (!row.cells[4].firstElementChild) row.cells[4].replaceChildren(element("time"));
  setText(row.cells[4].firstChild, ago((now() - check) / 1000));
}

function paintLine(service, latencyCell) {
  const { bars, checks } = service;
  service.drawnChecks = checks;
  const chart = latencyCell.children[1] ?? latencyCell.appendChild(newLine());
  const isOfChecks = isDrawnFromChecks(service);
  chart.classList.toggle("checks", isOfChecks);
  drawLine(chart, isOfChecks ? (checks ?? []).map((check) => check.duration_ms) : bars.map(meanLatency));
}

function paintBars(service, availability) {
  const { bars, length, fetchedAt } = service;
  service.drawn = bars;
  const chart = availability.children[1] ?? availability.appendChild(newBars());
  const [long, each] = RESOLUTIONS[view.resolution];
  chart.setAttribute("aria-label", `Availability of ${service.name} in the last ${long}, by ${each}`);
  chart.setAttribute("aria-valuemax", bars.length - 1);
  drawBars(chart, bars, length, fetchedAt);
  announceBar(chart, service, bars.length - 1);
}

export function announceBar(chart, { bars, length, fetchedAt }, index) {
  const description = describeBar(bars[index], length, fetchedAt);
  chart.setAttribute("aria-valuenow", index);
  chart.setAttribute("aria-valuetext", [description.heading, ...description.lines.map(([, text]) => text)].join(", "));
  return description;
}

// ---- which rows are matching, and in which order

const ROWS_PER_CHUNK = 20;

function count() {
  const counts = { "": services.size, Down: 0, Initializing: 0, Up: 0 };
  for (const service of services.values()) counts[service.status] += 1;
  for (const [status, many] of Object.entries(counts)) {
    setText(byId("statuses").querySelector(`[value="${status}"] + span b`), String(many));
  }
}

function matchesFilter(service, terms) {
  if (view.status && service.status !== view.status) return false;
  const text = terms.length ? `${service.name} ${service.id} ${service.reason}`.toLowerCase() : "";
  return terms.every((word) => text.includes(word));
}

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

function compare(left, right) {
  const [value] = COLUMNS[view.sort];
  const [a, b] = [value(left), value(right)];
  if (a === null || b === null) return (a === null) - (b === null) || left.order - right.order; // always last
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
  fillChunks(matching.sort(compare));
  if (focused?.isConnected) focused.focus({ preventScroll: true });
  count();
  byId("no-match").hidden = matching.length > 0 || !services.size;
  setText(byId("match-count"), terms.length ? `${matching.length} of ${services.size}` : "");
  markSorted();
}

const rowsOf = ({ row, panel }) => (panel ? [row, panel] : [row]);

function fillChunks(matching) {
  const chunks = [...main.querySelectorAll(".chunk")];
  for (let first = 0; first < matching.length; first += ROWS_PER_CHUNK) {
    const rows = matching.slice(first, first + ROWS_PER_CHUNK).flatMap(rowsOf);
    placeRows(chunks.shift() ?? newChunk(), rows);
  }
  for (const chunk of chunks) {
    watcher.unobserve(chunk);
    visibleChunks.delete(chunk);
    chunk.remove();
  }
  updateVisibleServices();
}

function newChunk() {
  const chunk = element("tbody", { role: "rowgroup", class: "chunk" });
  byId("hidden-rows").before(chunk);
  watcher.observe(chunk);
  return chunk;
}

// Nothing is moved that stands in its next already; what is left over at the end belongs further down.
function placeRows(chunk, rows) {
  let next = chunk.firstElementChild;
  for (const row of rows) {
    if (row === next) next = next.nextElementSibling;
    else chunk.insertBefore(row, next);
  }
  chunk.style.setProperty("--rows", rows.length);
}

function markSorted() {
  for (const button of main.querySelectorAll("[data-sort]")) {
    const head = button.parentElement;
    if (button.dataset.sort !== view.sort) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", view.isDescending ? "descending" : "ascending");
  }
}

// ---- what somebody chose stands in the fragment of the address, to be kept and sent to others

// A node that was just started has little to show of a day.
const defaultResolution = () => (now() - Date.parse(main.dataset.started) < 90 * 60000 ? "minutes" : "hours");

export function saveView() {
  const params = new URLSearchParams();
  if (view.q) params.set("q", view.q);
  if (view.status) params.set("status", view.status);
  if (view.sort !== "status" || view.isDescending) params.set("sort", (view.isDescending ? "-" : "") + view.sort);
  if (view.resolution !== defaultResolution()) params.set("resolution", view.resolution);
  history.replaceState(null, "", `#${params}`);
}

export function restoreView() {
  const params = new URLSearchParams(location.hash.slice(1));
  const known = (value, among, fallback) => (Object.hasOwn(among, value) ? value : fallback);
  const sort = params.get("sort") ?? "";
  Object.assign(view, {
    q: params.get("q") ?? "",
    status: known(params.get("status"), RANKS, ""),
    sort: known(sort.replace(/^-/, ""), COLUMNS, "status"),
    isDescending: sort.startsWith("-"),
    resolution: known(params.get("resolution"), RESOLUTIONS, defaultResolution()),
  });
  byId("filter").value = view.q;
  for (const name of ["status", "resolution"]) main.querySelector(`[name=${name}][value="${view[name]}"]`).checked = true;
  sortAndFilter();
}
