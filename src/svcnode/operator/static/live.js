// Keeps what is escapeInvisible true:
//
//   /events    tells every change as it happens, from the one on that stands in the page
//   /details   is asked every few seconds for the rows in sight, and shows that the node is still there
//   /history   is asked once a minute for the rows in sight
//   the page   is asked for again, and its table taken over, when something cannot be mended in place:
//              services came or went, events were missed, the node was started anew

import { requestFailed, markReceived, checkFreshness, paintNode, paintNotices } from "./health.js";
import { fillPanels, openPanel } from "./panel.js";
import { sortAndFilter, isDrawnFromChecks, paintSoon, paintTimes, readRows, setBars, addChecks } from "./rows.js";
import {
  byId, getJson, visibleServices, isOutdated, connection, main, node, now, queriesFor, readJson, services, setText, scheduleOnce, view,
} from "./state.js";
import { hideTooltip } from "./tooltip.js";
import { duration, displayReason, escapeInvisible } from "./format.js";

const POLL_MS = 5000;
const POLL_HIDDEN_MS = 15000; // for title and icon, while nobody checks at the rest
const SYNC_MS = 15000; // how often the page is asked for when events do not come
const MINUTE_MS = 60000;
const refreshAt = Math.random() * 20000; // into each minute, so that many pages do not ask at once

let polledAt = 0;
let syncedAt = Date.now();
let connectAttemptedAt = 0;
let behindSince = 0;

// ---- events

let source = null;
let isInterrupted = false;

function openEventStream() {
  source?.close();
  connectAttemptedAt = Date.now();
  source = new EventSource(`events?after=${connection.lastEventId}`);
  source.onopen = () => {
    connection.isStreaming = true;
    paintNode();
    if (isInterrupted) sync(); // what happened meanwhile may not be received event by event
    isInterrupted = false;
  };
  source.onerror = () => {
    Object.assign(connection, { isStreaming: false, isFailing: true });
    isInterrupted = true;
    paintNode();
    scheduleOnce("poll", poll, 500); // is it the stream, or the node?
  };
  source.addEventListener("transition", (message) => applyEvent(readJson(message.data)));
  source.addEventListener("gap", sync);
}

function applyEvent(event) {
  if (event.id <= connection.lastEventId) return;
  connection.lastEventId = event.id;
  const service = services.get(event.service_id);
  if (event.kind === "status" && service) {
    Object.assign(service, { status: event.after, reason: event.reason, since: Date.parse(event.at) });
    if (service.panel) scheduleOnce("panels", fillPanels, 200);
    paintSoon(service);
  } else if (event.kind !== "node" && event.kind !== "stopped") {
    sync();
  }
  if (event.health !== node.code) {
    // Until the node is asked for the whole reason, what changed it is the best that is known.
    const because = event.reason && `: ${event.reason}`;
    const reason = service ? `${service.name} is ${event.after}${because}` : "The node itself says so.";
    Object.assign(node, { code: event.health, reason });
  }
  if (isOutdated(Date.parse(event.at) + connection.skew)) paintNode();
  else markReceivedAndSync();
  scheduleOnce("poll", poll, 300);
}

function markReceivedAndSync() {
  if (markReceived()) sync(); // much may have happened meanwhile, out of sight
}

// Browsers open but six connections to a node, and every page holds one. A page that nobody sees gives its own away.
const pages = new BroadcastChannel("svcnode stream");
pages.onmessage = () => {
  if (!document.hidden || !source) return;
  source.close();
  source = null;
  connection.isStreaming = false;
};

export function onVisibilityChange() {
  if (document.hidden) return;
  pages.postMessage("mine");
  if (!source) openEventStream();
  polledAt = 0;
  tick();
}

// ---- details

let isPolling = false;
async function poll() {
  if (isPolling) return;
  isPolling = true;
  polledAt = Date.now();
  const wasStreaming = connection.isStreaming;
  try {
    const queries = document.hidden ? [] : [...detailsQueriesFor(visibleServices)];
    if (!queries.length) queries.push("attempts=0&id="); // of the node only
    for (const query of queries) applyDetails(await getJson(`details?${query}`));
    if (!document.hidden) await fillPanels(visibleServices);
  } catch {
    requestFailed(wasStreaming);
  } finally {
    isPolling = false;
  }
}

// With the last attempts where a connection is to be drawn from them and none are known: once, for then each check is added.
const lacksChecks = (service) => isDrawnFromChecks(service) && !service.checks;

function* detailsQueriesFor(some) {
  const all = [...some];
  for (const query of queriesFor(all.filter(lacksChecks))) yield `attempts=1${query}`;
  for (const query of queriesFor(all.filter((service) => !lacksChecks(service)))) yield `attempts=0${query}`;
}

function applyDetails({ node: received, services: list }) {
  if (["started", "name", "version"].some((key) => received[key] !== main.dataset[key])) return sync();
  if (received.last_event_id < connection.lastEventId) return scheduleOnce("poll", poll, 1000); // it was made before the last change we know of
  behindSince = connection.isStreaming && received.last_event_id > connection.lastEventId ? behindSince || Date.now() : 0;
  if (behindSince && Date.now() - behindSince > POLL_MS) sync(); // events are received, and do not arrive
  Object.assign(node, { code: received.health, reason: received.health_reason });
  paintNotices(received);
  for (const data of list) {
    const service = services.get(data.id);
    if (!service) continue;
    Object.assign(service, {
      status: data.status, reason: displayReason(data), since: Date.parse(data.since),
      check: data.evidence && Date.parse(data.evidence.at),
      latency: data.schedule && data.evidence ? data.evidence.duration_ms : null,
    });
    addChecks(service, data);
    paintSoon(service);
  }
  markReceivedAndSync();
}

// ---- the page

let isSyncing = false;
let isSyncNeeded = false;
async function sync() {
  isSyncNeeded = true;
  if (isSyncing) return;
  isSyncing = true;
  while (isSyncNeeded) {
    isSyncNeeded = false;
    syncedAt = Date.now();
    const wasStreaming = connection.isStreaming;
    try {
      applyPage(await getPage());
    } catch {
      requestFailed(wasStreaming);
      scheduleOnce("sync", sync, POLL_MS);
    }
    // The server makes the page at most once a second, and many services may come at once.
    if (isSyncNeeded) await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  isSyncing = false;
}

// A document and not a string: no string in this page ever becomes markup.
function getPage() {
  const requestedAt = Date.now();
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", "./");
    request.responseType = "document";
    request.timeout = 2 * POLL_MS;
    request.onloadend = () => {
      if (request.status === 200 && request.response && !isOutdated(requestedAt)) resolve(request.response);
      else reject(new Error(`no page: ${request.status}`));
    };
    request.send();
  });
}

function applyPage(fresh) {
  const made = fresh.getElementById("node");
  if (made.dataset.svcnode !== main.dataset.svcnode) return location.reload(); // another version brings its own script
  if (made.dataset.started === main.dataset.started && Number(made.dataset.event) < connection.lastEventId) {
    isSyncNeeded = true; // it was made before the last change that we know of
    return;
  }
  const open = [...services.values()].filter((service) => service.panel);
  const focused = document.activeElement?.closest("tr[data-id]")?.dataset.id;
  hideTooltip();
  for (const id of ["hero", "notices"]) byId(id).replaceWith(document.adoptNode(fresh.getElementById(id)));
  for (const chunk of main.querySelectorAll(".chunk")) chunk.remove();
  byId("hidden-rows").replaceChildren();
  byId("hidden-rows").before(...made.querySelectorAll(".chunk"));
  Object.assign(main.dataset, made.dataset);
  readPage();
  for (const { id } of open) if (services.has(id)) openPanel(services.get(id));
  sortAndFilter();
  services.get(focused)?.link.focus({ preventScroll: true });
  markReceived();
}

export function readPage() {
  Object.assign(connection, { skew: Date.now() - main.dataset.now, lastEventId: Number(main.dataset.event) });
  const { code, name } = main.dataset;
  Object.assign(node, { code: Number(code), name: escapeInvisible(name), reason: byId("reason").textContent });
  readRows();
}

// ---- history

let isLoading = false;
export async function loadBars(some = visibleServices) {
  const stamp = `${view.resolution} ${Math.floor((now() - refreshAt) / MINUTE_MS)}`;
  const wanted = [...some].filter((service) => service.barsOf !== stamp);
  if (!wanted.length || isLoading) return;
  isLoading = true;
  try {
    for (const query of queriesFor(wanted)) {
      const data = await getJson(`history?resolution=${view.resolution}${query}`);
      if (data.resolution !== view.resolution) break; // another one has been chosen meanwhile
      for (const [id, bars] of Object.entries(data.services)) {
        if (services.has(id)) setBars(services.get(id), bars, data.length_s);
      }
    }
    for (const service of wanted) service.barsOf = stamp;
    if (wanted.some(lacksChecks)) scheduleOnce("poll", poll, 0);
  } catch {
    for (const service of wanted) service.barsOf = stamp; // not again before the next minute
  } finally {
    isLoading = false;
  }
}

// What sorting compares must be known of all rows, not only of those that were in sight.
export async function loadColumn(column) {
  if (column === "check" || column === "latency") applyDetails(await getJson("details"));
  if (column === "availability") await loadBars(services.values());
}

export function loadVisibleRows() {
  if (document.hidden) return;
  loadBars();
  if ([...visibleServices].some((service) => !service.isRequested)) {
    for (const service of visibleServices) service.isRequested = true;
    poll();
  }
}

export function tick() {
  checkFreshness();
  if (!connection.isLost) setText(byId("uptime"), duration((now() - Date.parse(main.dataset.started)) / 1000));
  if (Date.now() - polledAt > (document.hidden ? POLL_HIDDEN_MS : POLL_MS)) poll();
  if (source?.readyState === EventSource.CLOSED && Date.now() - connectAttemptedAt > POLL_MS) openEventStream();
  if (document.hidden) return;
  if (!connection.isStreaming && Date.now() - syncedAt > SYNC_MS) sync();
  for (const service of visibleServices) paintTimes(service);
  loadBars();
}
