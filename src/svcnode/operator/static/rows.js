// The rows of the table. The server renders them; this module puts them in place, reads them, and adds what only a script
// can: ages that count on, and charts. Cells are found by their name.

import { availability, drawBars, drawLine, hasMaintenance, hideTooltipOf, meanLatency, newBars, newLine, setSliderValue } from "./charts.js";
import { age, availabilityText, duration } from "./format.js";
import { RESOLUTIONS, connection, main, now, services, setText, view, visibleServices } from "./state.js";

const NO_BUCKETS = [];
const MAX_HIGHLIGHTED = 10; // if everything changes, nothing stands out, and animations keep the browser busy
const highlighted = document.getElementsByClassName("changed");

// ---- rows of the server

export function readRows() {
  for (const row of main.querySelectorAll("tr[data-id]")) addRow(row);
}

// Returns whether the row may have to move.
export function putRow(fresh) {
  const service = services.get(fresh.dataset.id);
  if (!service) {
    addRow(fresh);
    return true;
  }
  const before = { ...service };
  copyAttributes(fresh, service.row);
  for (const cell of fresh.cells) putCell(service.cells[cell.dataset.cell], cell);
  Object.assign(service, readFields(service));
  if (service.status !== before.status && highlighted.length < MAX_HIGHLIGHTED) service.row.classList.add("changed");
  paintTimes(service);
  return ["status", "reason", "name", "group", "order"].some((field) => service[field] !== before[field]);
}

export function removeRow(id) {
  const service = services.get(id);
  if (!service) return;
  hideTooltipOf(service.row);
  service.row.remove();
  service.panel?.remove();
  services.delete(id);
  visibleServices.delete(service);
}

function addRow(row) {
  const cells = Object.fromEntries([...row.cells].map((cell) => [cell.dataset.cell, cell]));
  const link = cells.name.querySelector("a");
  const service = {
    id: row.dataset.id, row, cells, link,
    checks: null, drawnChecks: null, buckets: NO_BUCKETS, drawnBuckets: NO_BUCKETS, historyVersion: "",
    panel: null, details: null, transitions: null,
  };
  link.setAttribute("role", "button");
  link.setAttribute("aria-expanded", "false");
  for (const tag of cells.name.querySelectorAll(".tag")) tag.tabIndex = -1;
  Object.assign(service, readFields(service), readAvailability(cells.availability));
  services.set(service.id, service);
}

function readFields({ row, cells, link }) {
  const time = (cell) => Date.parse(cell.querySelector("time")?.dateTime) || null;
  const { id, order, status, code, group = "" } = row.dataset;
  const name = link.textContent;
  const tags = [...cells.name.querySelectorAll(".tag")].map((tag) => tag.textContent);
  const reason = cells.reason.querySelector(".reason").textContent;
  return {
    order: Number(order), group, name, isFixed: "fixed" in row.dataset, status, code, reason,
    text: [name, id, group, ...tags, reason, code].join(" ").toLowerCase(), // that a filter is compared with
    since: time(cells.since), checkedAt: time(cells.check), latency: readNumber(cells.latency),
  };
}

function readAvailability(cell) {
  const percent = readNumber(cell);
  return { availability: percent === null ? null : percent / 100, hasMaintenance: "maintenance" in cell.querySelector("data").dataset };
}

// As it is shown, a latency in milliseconds.
function readNumber(cell) {
  const { textContent: text } = cell.querySelector("data");
  const number = parseFloat(text) * (text.endsWith(" s") ? 1000 : 1);
  return Number.isNaN(number) ? null : number;
}

const SERVER_ATTRIBUTES = ["data-order", "data-status", "data-code", "data-fixed", "data-group"];

function copyAttributes(from, to) {
  for (const name of SERVER_ATTRIBUTES) {
    if (from.hasAttribute(name)) to.setAttribute(name, from.getAttribute(name));
    else to.removeAttribute(name);
  }
}

// Replaces only what differs, so that focus and selection stay. The availability is not in a changed row.
function putCell(cell, fresh) {
  const { cell: name } = fresh.dataset;
  if (name === "availability") return;
  if (name === "name") return putName(cell, fresh);
  const shown = [...cell.children].filter((child) => !child.matches(".chart"));
  const isSame = shown.length === fresh.children.length && shown.every((child, index) => isSameElement(child, fresh.children[index]));
  if (isSame && shown.length) return;
  cell.replaceChildren(...fresh.childNodes, ...cell.querySelectorAll(".chart"));
}

function putName(cell, fresh) {
  for (const part of ["a", "code"]) setText(cell.querySelector(part), fresh.querySelector(part).textContent);
  const [shown, tags] = [cell, fresh].map((one) => one.querySelector(".tags"));
  if (shown?.textContent === tags?.textContent) return;
  shown?.remove();
  if (tags) cell.append(tags);
  for (const tag of cell.querySelectorAll(".tag")) tag.tabIndex = -1;
}

// The text of a time counts on.
const isSameElement = (one, other) => (one.dateTime && one.dateTime === other.dateTime) || one.isEqualNode(other);

// ---- history

// A fixed status is not measured, so it has no availability.
function availabilityOf({ isFixed }, buckets) {
  if (isFixed) return { availability: null, hasMaintenance: false };
  return { availability: availability(buckets), hasMaintenance: hasMaintenance(buckets) };
}

export function setBuckets(service, buckets, length) {
  Object.assign(service, { buckets, length, fetchedAt: now(), ...availabilityOf(service, buckets) });
  paintSoon(service);
}

// A line needs some minutes of history; before that it is drawn from the last checks.
const MIN_MINUTES = 5;

export function isDrawnFromChecks({ buckets }) {
  const isLoaded = buckets.length > 0 && view.resolution === "minutes";
  return isLoaded && buckets.filter((bucket) => meanLatency(bucket) !== null).length < MIN_MINUTES;
}

export function setChecks(service, { recent_checks: checks, schedule }) {
  service.checks = checks.filter((check) => schedule && check.outcome !== "unknown").reverse(); // as in history
  paintSoon(service);
}

// ---- painting, at most once per frame

const paintQueue = new Set();

export function paintSoon(service) {
  if (!paintQueue.size) requestAnimationFrame(paintAll);
  paintQueue.add(service);
}

function paintAll() {
  for (const service of paintQueue) paint(service);
  paintQueue.clear();
}

function paint(service) {
  const { cells } = service;
  setText(cells.availability.querySelector("data"), availabilityText(service));
  if (!visibleServices.has(service) || !service.buckets.length) return;
  const isNew = service.drawnBuckets !== service.buckets;
  if (isNew || service.drawnChecks !== service.checks) paintLine(service, cells.latency);
  if (isNew) paintBars(service, cells.availability);
}

export function paintTimes({ cells, since, checkedAt }) {
  if (connection.isLost) return; // the times would grow although the state is not known
  setText(cells.since.querySelector("time"), duration((now() - since) / 1000));
  if (checkedAt) setText(cells.check.querySelector("time"), age((now() - checkedAt) / 1000));
}

function paintLine(service, cell) {
  const { buckets, checks } = service;
  service.drawnChecks = checks;
  const chart = cell.querySelector(".line") ?? cell.appendChild(newLine());
  const isFromChecks = isDrawnFromChecks(service);
  chart.classList.toggle("checks", isFromChecks);
  drawLine(chart, isFromChecks ? (checks ?? []).map((check) => check.duration_ms) : buckets.map(meanLatency));
}

function paintBars(service, cell) {
  const { buckets, length, fetchedAt } = service;
  service.drawnBuckets = buckets;
  const chart = cell.querySelector(".bars") ?? cell.appendChild(newBars());
  const [period, unit] = RESOLUTIONS[view.resolution];
  chart.setAttribute("aria-label", `Availability of ${service.name} in the last ${period}, by ${unit}`);
  chart.setAttribute("aria-valuemax", buckets.length - 1);
  drawBars(chart, buckets, length, fetchedAt);
  setSliderValue(chart, service, buckets.length - 1);
}
