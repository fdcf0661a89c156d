// Which rows are shown, in which order, and which of them are in view.
//
// Rows are grouped in chunks. The browser observes chunks instead of rows: observing 2,000 rows makes scrolling slow,
// observing 100 chunks does not. It lays out a chunk only when it is in view. A filter hides rows where they are: moving
// thousands of them takes long.

import { SHARED } from "./format.js";
import { arrangeGroups, paintGroups, showMatching } from "./groups.js";
import { paintSoon } from "./rows.js";
import { byId, element, main, services, setText, view, visibleServices } from "./state.js";

const STATUS_ORDER = SHARED.status_order;
const ROWS_PER_CHUNK = SHARED.rows_per_chunk;

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

// ---- filtering and sorting

const filterTerms = () => view.q.trim().toLowerCase().split(/\s+/).filter(Boolean);

function matchesFilter(service, terms) {
  if (view.status && service.status !== view.status) return false;
  return terms.every((term) => service.text.includes(term));
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
  arrange(compare);
  filterRows();
  byId("order-note").hidden = true;
}

// Puts all rows in this order.
function arrange(order) {
  const focused = document.activeElement;
  const sorted = [...services.values()].sort(order);
  fillChunks(arrangeGroups(sorted).map(rowsOf));
  sorted.forEach((service, position) => (service.position = position));
  if (focused?.isConnected && focused !== document.activeElement) focused.focus({ preventScroll: true });
  paintSortMarks();
}

// Shows those that match. `isKept`: what is shown stays, although it may have changed.
export function filterRows(isKept = false) {
  const terms = filterTerms();
  let matching = 0;
  for (const service of services.values()) {
    service.isMatching = (isKept && service.isMatching) || matchesFilter(service, terms);
    matching += service.isMatching;
  }
  showMatching();
  main.querySelectorAll(".chunk").forEach(countRows);
  updateVisibleServices();
  paintCounts();
  byId("no-services").hidden = services.size > 0;
  byId("no-match").hidden = matching > 0 || !services.size;
  setText(byId("match-count"), terms.length ? `${matching} of ${services.size}` : "");
}

// ---- while someone uses the rows, they stay where they are: what moves cannot be read, and the click hits another row

let pointer = "";
export const notePointer = ({ pointerType }) => (pointer = pointerType);
const isPointedAt = () => pointer !== "touch" && main.querySelector(".chunk:hover") !== null; // a finger that is gone still hovers
const hasFocus = () => document.hasFocus() && document.activeElement.closest(".chunk") !== null;
const byPosition = (left, right) => left.position - right.position || left.order - right.order;

// Rows have changed. `isOther`: some are new or gone. New ones come last, or last in their group.
export function followChanges(isOther) {
  if (!isPointedAt() && !hasFocus()) return sortAndFilter();
  byId("order-note").hidden = false;
  if (!isOther) return;
  for (const service of services.values()) service.position ??= services.size;
  arrange(byPosition);
  filterRows(true);
}

export function releaseOrder() {
  if (!byId("order-note").hidden && !isPointedAt() && !hasFocus()) sortAndFilter();
}

// A service has a row, and another one while it is expanded; a heading has one.
const rowsOf = ({ row, panel }) => (panel ? [row, panel] : [row]);

export function paintCounts() {
  const counts = { "": services.size, ...Object.fromEntries(Object.keys(STATUS_ORDER).map((status) => [status, 0])) };
  for (const service of services.values()) counts[service.status] += 1;
  for (const [status, number] of Object.entries(counts)) {
    setText(byId("statuses").querySelector(`[value="${status}"] + span b`), String(number));
  }
  paintGroups();
}

function paintSortMarks() {
  for (const button of main.querySelectorAll("[data-sort]")) {
    const head = button.parentElement;
    if (button.dataset.sort !== view.sort) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", view.isDescending ? "descending" : "ascending");
  }
}

// ---- chunks

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
    for (const { dataset, hidden } of chunk.rows) if (!hidden && services.has(dataset.id)) visibleServices.add(services.get(dataset.id));
  }
  for (const service of visibleServices) if (service.drawnBuckets !== service.buckets) paintSoon(service);
  dispatchEvent(new Event("visiblechange"));
}

export function observeChunks() {
  for (const chunk of main.querySelectorAll(".chunk")) chunkObserver.observe(chunk);
}

// `all`: for each service or heading, its rows.
function fillChunks(all) {
  const chunks = [...main.querySelectorAll(".chunk")];
  for (let first = 0; first < all.length; first += ROWS_PER_CHUNK) {
    const rows = all.slice(first, first + ROWS_PER_CHUNK).flat();
    arrangeRows(chunks.shift() ?? newChunk(), rows);
  }
  for (const chunk of chunks) {
    chunkObserver.unobserve(chunk);
    visibleChunks.delete(chunk);
    chunk.remove();
  }
}

function newChunk() {
  const chunk = element("tbody", { role: "rowgroup", class: "chunk" });
  byId("services").append(chunk);
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
}

// The browser takes this for the height of a chunk that it has not laid out.
function countRows(chunk) {
  const shown = [...chunk.rows].filter(({ hidden }) => !hidden).length;
  chunk.hidden = shown === 0;
  if (shown !== chunk.shown) chunk.style.setProperty("--rows", (chunk.shown = shown));
}
