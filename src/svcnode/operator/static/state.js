// The state that all modules share, and small helpers.

import { escapeInvisible } from "./format.js";

export const byId = (id) => document.getElementById(id);
export const main = byId("node");

export const services = new Map(); // by id; rows.js creates the entries
export const groups = new Map(); // by name; groups.js creates the entries
export const visibleServices = new Set(); // services whose rows are in or near the viewport
export const view = { q: "", status: "", sort: "status", isDescending: false, resolution: "hours", areGroupsCollapsed: false };
// The period, service and moment of the timeline are in the view, too, as the parameters that they have in the URL.
const MOMENT = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;
export const TIMELINE_PARAMETERS = {
  period: /^(90m|24h|7d|90d)$/, from: MOMENT, to: MOMENT, service: /^.+$/su, t: /^[oehk]\d{1,18}(-[\da-f]{8})?$/,
};
for (const name in TIMELINE_PARAMETERS) view[name] = "";

export const connection = {
  skew: 0, // this clock minus the clock of the node, in milliseconds
  cursor: "", // the page includes every change up to here
  receivedAt: Date.now(),
  behindSince: 0, // when the page learned of the first change that it does not show yet; 0: it shows all it knows of
  isLost: false, // the displayed state is no longer known to be true
  isFailing: false, // the last request failed
  isStreaming: false, // the node tells of changes
};

// For each resolution: its period, as on its button, and the unit of a bar.
export const RESOLUTIONS = Object.fromEntries(
  [...document.getElementsByName("resolution")].map(({ value, nextElementSibling: label }) => [value, [label.textContent, value.slice(0, -1)]]),
);

export const now = () => Date.now() - connection.skew; // by the clock of the node

export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function element(tag, attributes = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
  created.append(...children); // strings become text nodes, never markup
  return created;
}

// Runs the action once after the delay, however often it is scheduled before that.
const timers = {};
export function scheduleOnce(name, action, delay) {
  timers[name] ??= setTimeout(() => {
    delete timers[name];
    action();
  }, delay);
}

// Timers do not run while the computer sleeps: a response to a request from before the sleep is too old to show.
const OUTDATED_AFTER_MS = 10000;
export const isOutdated = (at) => Math.abs(Date.now() - at) > OUTDATED_AFTER_MS;

export async function getJson(url, timeout = 5000) {
  const requestedAt = Date.now();
  const response = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(timeout) });
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  const text = await response.text();
  if (isOutdated(requestedAt)) throw new Error(`${url}: response is too old`);
  return readJson(text);
}

// Invisible characters are escaped here, once, in every field but those that are compared. Most documents have none.
const RAW_FIELDS = new Set(["id", "service_id", "name"]);
const MAY_HAVE_INVISIBLE = /(?! )[\p{C}\p{Z}]|\\[bfnrtu]/u;

export function readJson(text) {
  if (!MAY_HAVE_INVISIBLE.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value) => (typeof value === "string" && !RAW_FIELDS.has(key) ? escapeInvisible(value) : value));
}

// The ids of the services as query strings, each within the server's limits for one request.
export function* queriesFor(subset) {
  let [query, ids] = ["", 0];
  for (const { id } of subset) {
    const parameter = `&id=${encodeURIComponent(id)}`;
    if (ids === 100 || (ids && query.length + parameter.length > 6000)) {
      yield query;
      [query, ids] = ["", 0];
    }
    query += parameter;
    ids += 1;
  }
  if (ids) yield query;
}
