// The rows of the table: read once from what the server made, then painted when something changes; sifted and ordered.
//
// Rows stand in chunks. A browser spends time on everything that it watches, in every frame: with a hundred chunks it
// scrolls smoothly, with two thousand rows it does not.

import { availability, barInWords, drawBars, drawLine, meanLatency, newBars, newLine } from "./charts.js";
import { SPANS, byId, element, inSight, line, main, now, services, setText, soon, view } from "./state.js";
import { NOTHING, ago, duration, latency, percent } from "./words.js";

const NO_BARS = [];
const RANKS = { Down: 0, Initializing: 1, Up: 2 };

// For each column: what is compared, and whether the greatest comes first when it is first asked for.
export const COLUMNS = {
  name: [(s) => s.name, false],
  status: [(s) => RANKS[s.status], false],
  since: [(s) => -s.since, false],
  reason: [(s) => s.reason || null, false],
  look: [(s) => s.look && -s.look, true],
  latency: [(s) => s.latency, true],
  share: [(s) => s.share, false],
};

// ---- reading

const nearChunks = new Set();
const watcher = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) nearChunks.add(target);
    else nearChunks.delete(target);
  }
  noteSight();
});

function noteSight() {
  inSight.clear();
  for (const chunk of nearChunks) {
    for (const row of chunk.rows) if (row.dataset.id) inSight.add(services.get(row.dataset.id));
  }
  for (const service of inSight) if (service.drawn !== service.bars) paintSoon(service);
  dispatchEvent(new Event("sight"));
}

export function readRows() {
  const before = new Map(services);
  services.clear();
  inSight.clear();
  toPaint.clear();
  nearChunks.clear();
  watcher.disconnect();
  for (const row of main.querySelectorAll("tr[data-id]")) {
    const service = readRow(row);
    Object.assign(service, stillTrue(service, before.get(service.id)));
    services.set(service.id, service);
    service.link.setAttribute("role", "button");
    service.link.setAttribute("aria-expanded", "false");
  }
  for (const chunk of main.querySelectorAll(".chunk")) watcher.observe(chunk);
  byId("none").hidden = services.size > 0;
}

function readRow(row) {
  const time = (cell) => Date.parse(cell.firstElementChild?.dateTime) || null;
  const number = (cell) => (cell.firstChild.value === "" ? null : Number(cell.firstChild.value));
  const [name, , since, reason, look, took, share] = row.cells;
  return {
    id: row.dataset.id, order: Number(row.dataset.order), row, link: name.firstChild, name: name.firstChild.textContent,
    isFixed: "fixed" in row.dataset, status: row.dataset.status, since: time(since), reason: reason.textContent, look: time(look),
    latency: number(took), looks: null, share: number(share), bars: NO_BARS, barsOf: "", drawn: NO_BARS,
    panel: null, details: null, transitions: null,
  };
}

// What nobody looks at is neither available nor not, whatever the configuration says of it.
const shareOf = ({ isFixed }, bars) => (isFixed ? null : availability(bars));

// What the table does not tell: it need not be asked for again because the table was.
function stillTrue(service, before) {
  if (!before) return {};
  const { looks, bars, barsOf, length, toldAt, details, transitions } = before;
  const share = bars.length ? { share: shareOf(service, bars) } : {};
  return { looks, bars, barsOf, length, toldAt, details, transitions, ...share };
}

export function takeBars(service, bars, length) {
  Object.assign(service, { bars, length, toldAt: now(), share: shareOf(service, bars) });
  paintSoon(service);
}

// Minutes make no line before there are some of them: until then, the last looks do.
const LEAST_MINUTES = 5;
const MAX_LOOKS = 20;

export function isDrawnFromLooks({ bars }) {
  const isTold = bars.length > 0 && view.span === "minutes";
  return isTold && bars.filter((bar) => meanLatency(bar) !== null).length < LEAST_MINUTES;
}

export function takeLooks(service, { attempts, evidence, schedule }) {
  const counts = (look) => schedule && look && look.verdict !== "unknown"; // as in the minutes
  if (attempts) service.looks = attempts.filter(counts).reverse();
  else if (service.looks && counts(evidence) && evidence.at !== service.looks.at(-1)?.at) {
    service.looks = [...service.looks, evidence].slice(-MAX_LOOKS);
  }
}

// ---- painting; as often as the screen is, however many changes come

const toPaint = new Set();

export function paintSoon(service) {
  if (!toPaint.size) requestAnimationFrame(paintAll);
  toPaint.add(service);
}

function paintAll() {
  const isAnyMoved = [...toPaint].filter(paint).length > 0;
  toPaint.clear();
  if (!isAnyMoved) return;
  count();
  soon("arrange", arrange, 500);
}

// Returns whether its place in the table may be another one now.
function paint(service) {
  const { row, status } = service;
  const [, word, , reason, , took, share] = row.cells;
  const isMoved = row.dataset.status !== status || reason.textContent !== service.reason;
  if (row.dataset.status !== status) {
    row.dataset.status = status;
    row.classList.add("changed");
  }
  setText(word.firstChild, status);
  setText(reason.firstChild, service.reason);
  setText(took.firstChild, service.latency === null ? NOTHING : latency(service.latency));
  setText(share.firstChild, service.share === null ? NOTHING : percent(service.share));
  paintTimes(service);
  if (inSight.has(service) && service.bars.length) {
    if (service.drawn !== service.bars || service.drawnLooks !== service.looks) paintLine(service, took);
    if (service.drawn !== service.bars) paintBars(service, share);
  }
  return isMoved;
}

export function paintTimes({ row, since, look }) {
  if (line.isLost) return; // for how long it goes on, nobody knows
  setText(row.cells[2].firstChild, duration((now() - since) / 1000));
  if (!look) return;
  if (!row.cells[4].firstElementChild) row.cells[4].replaceChildren(element("time"));
  setText(row.cells[4].firstChild, ago((now() - look) / 1000));
}

function paintLine(service, took) {
  const { bars, looks } = service;
  service.drawnLooks = looks;
  const chart = took.children[1] ?? took.appendChild(newLine());
  const isOfLooks = isDrawnFromLooks(service);
  chart.classList.toggle("looks", isOfLooks);
  drawLine(chart, isOfLooks ? (looks ?? []).map((look) => look.duration_ms) : bars.map(meanLatency));
}

function paintBars(service, share) {
  const { bars, length, toldAt } = service;
  service.drawn = bars;
  const chart = share.children[1] ?? share.appendChild(newBars());
  const [long, each] = SPANS[view.span];
  chart.setAttribute("aria-label", `Availability of ${service.name} in the last ${long}, by ${each}`);
  chart.setAttribute("aria-valuemax", bars.length - 1);
  drawBars(chart, bars, length, toldAt);
  sayBar(chart, service, bars.length - 1);
}

export function sayBar(chart, { bars, length, toldAt }, index) {
  const said = barInWords(bars[index], length, toldAt);
  chart.setAttribute("aria-valuenow", index);
  chart.setAttribute("aria-valuetext", [said.heading, ...said.lines.map(([, words]) => words)].join(", "));
  return said;
}

// ---- which rows are shown, and in which order

const ROWS_PER_CHUNK = 20;

function count() {
  const counts = { "": services.size, Down: 0, Initializing: 0, Up: 0 };
  for (const service of services.values()) counts[service.status] += 1;
  for (const [status, many] of Object.entries(counts)) {
    setText(byId("statuses").querySelector(`[value="${status}"] + span b`), String(many));
  }
}

function isWanted(service, words) {
  if (view.status && service.status !== view.status) return false;
  const text = words.length ? `${service.name} ${service.id} ${service.reason}`.toLowerCase() : "";
  return words.every((word) => text.includes(word));
}

const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });

function compare(left, right) {
  const [value] = COLUMNS[view.sort];
  const [a, b] = [value(left), value(right)];
  if (a === null || b === null) return (a === null) - (b === null) || left.order - right.order; // always last
  const difference = typeof a === "string" ? collator.compare(a, b) : a - b;
  return (view.isDescending ? -difference : difference) || left.order - right.order;
}

export function arrange() {
  const words = view.q.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const focused = document.activeElement;
  const shown = [];
  for (const service of services.values()) {
    if (isWanted(service, words)) shown.push(service);
    else if (service.row.parentElement !== byId("out")) byId("out").append(...rowsOf(service));
  }
  fillChunks(shown.sort(compare));
  if (focused?.isConnected) focused.focus({ preventScroll: true });
  count();
  byId("no-match").hidden = shown.length > 0 || !services.size;
  setText(byId("shown"), words.length ? `${shown.length} of ${services.size}` : "");
  markSorted();
}

const rowsOf = ({ row, panel }) => (panel ? [row, panel] : [row]);

function fillChunks(shown) {
  const chunks = [...main.querySelectorAll(".chunk")];
  for (let first = 0; first < shown.length; first += ROWS_PER_CHUNK) {
    const rows = shown.slice(first, first + ROWS_PER_CHUNK).flatMap(rowsOf);
    putInto(chunks.shift() ?? newChunk(), rows);
  }
  for (const chunk of chunks) {
    watcher.unobserve(chunk);
    nearChunks.delete(chunk);
    chunk.remove();
  }
  noteSight();
}

function newChunk() {
  const chunk = element("tbody", { role: "rowgroup", class: "chunk" });
  byId("out").before(chunk);
  watcher.observe(chunk);
  return chunk;
}

// Nothing is moved that stands in its place already; what is left over at the end belongs further down.
function putInto(chunk, rows) {
  let place = chunk.firstElementChild;
  for (const row of rows) {
    if (row === place) place = place.nextElementSibling;
    else chunk.insertBefore(row, place);
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
const usualSpan = () => (now() - Date.parse(main.dataset.started) < 90 * 60000 ? "minutes" : "hours");

export function remember() {
  const said = new URLSearchParams();
  if (view.q) said.set("q", view.q);
  if (view.status) said.set("status", view.status);
  if (view.sort !== "status" || view.isDescending) said.set("sort", (view.isDescending ? "-" : "") + view.sort);
  if (view.span !== usualSpan()) said.set("span", view.span);
  history.replaceState(null, "", `#${said}`);
}

export function recall() {
  const said = new URLSearchParams(location.hash.slice(1));
  const known = (value, among, usual) => (Object.hasOwn(among, value) ? value : usual);
  const sort = said.get("sort") ?? "";
  Object.assign(view, {
    q: said.get("q") ?? "",
    status: known(said.get("status"), RANKS, ""),
    sort: known(sort.replace(/^-/, ""), COLUMNS, "status"),
    isDescending: sort.startsWith("-"),
    span: known(said.get("span"), SPANS, usualSpan()),
  });
  byId("filter").value = view.q;
  for (const name of ["status", "span"]) main.querySelector(`[name=${name}][value="${view[name]}"]`).checked = true;
  arrange();
}
