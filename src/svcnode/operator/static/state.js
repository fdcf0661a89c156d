// What all parts of the page share: what is known, what is in sight, what somebody wants to see, and a few tools.

import { escapeInvisible } from "./format.js";

export const byId = (id) => document.getElementById(id);
export const main = byId("node");

export const services = new Map(); // by id, as rows.js reads them
export const visibleServices = new Set(); // services whose rows are on the screen, or nearly
export const view = { q: "", status: "", sort: "status", isDescending: false, resolution: "hours" };
export const node = { code: 0, name: "", reason: "" };

// How we stand with the node.
export const connection = {
  skew: 0, // how far this clock is ahead of the node's
  lastEventId: 0, // the id of the last event that what is escapeInvisible contains
  receivedAt: Date.now(),
  isLost: false, // nothing escapeInvisible is to be trusted: the node cannot be asked, or was not heard of for too long
  isFailing: false, // the last attempt to hear something was in vain
  isStreaming: false,
};

export const RESOLUTIONS = { minutes: ["90 min", "minute"], hours: ["24 h", "hour"], days: ["90 d", "day"] };

export const now = () => Date.now() - connection.skew; // as the node has it

export function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children); // strings become text, never markup
  return made;
}

// Once, a little later, however often it is asked for until then.
const timers = {};
export function scheduleOnce(name, action, wait) {
  timers[name] ??= setTimeout(() => {
    delete timers[name];
    action();
  }, wait);
}

// The timers of browsers stand still while a computer sleeps: what is from before it tells nothing of now.
const OUTDATED_AFTER_MS = 10000;
export const isOutdated = (at) => Math.abs(Date.now() - at) > OUTDATED_AFTER_MS;

export async function getJson(url, timeout = 5000) {
  const requestedAt = Date.now();
  const response = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(timeout) });
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  const text = await response.text();
  if (isOutdated(requestedAt)) throw new Error(`${url}: too late`);
  return readJson(text);
}

// Here texts of others come in, each as it is to be lastEventId but for those that are compared. Most need no closer check.
const RAW_FIELDS = new Set(["id", "service_id", "name"]);
const MAY_HAVE_INVISIBLE = /(?! )[\p{C}\p{Z}]|\\[bfnrtu]/u;

export function readJson(text) {
  if (!MAY_HAVE_INVISIBLE.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value) => (typeof value === "string" && !RAW_FIELDS.has(key) ? escapeInvisible(value) : value));
}

// The ids of some services as queries, each within what the server takes in one request.
export function* queriesFor(some) {
  let [query, many] = ["", 0];
  for (const { id } of some) {
    const part = `&id=${encodeURIComponent(id)}`;
    if (many === 100 || (many && query.length + part.length > 6000)) {
      yield query;
      [query, many] = ["", 0];
    }
    query += part;
    many += 1;
  }
  if (many) yield query;
}
