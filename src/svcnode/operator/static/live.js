// Keeps the page up to date:
//
//   /events    every transition, beginning after the last one in the page
//   /details   every few seconds, for the visible rows; also shows that the node still answers
//   /history   once a minute, for the visible rows
//   /          again, to replace the table, when rows alone cannot be updated: services were added or removed, events
//              were missed, the node was restarted

import { hideTooltip } from "./charts.js";
import { displayReason, duration, escapeInvisible } from "./format.js";
import { markFailed, markReceived, checkFreshness, paintNode, paintNotices } from "./health.js";
import { paintNotifications } from "./notifications.js";
import { fillPanels, openPanel } from "./panel.js";
import { paintReplicas } from "./replicas.js";
import { addChecks, isDrawnFromChecks, paintSoon, paintTimes, readRows, setBuckets, sortAndFilter } from "./rows.js";
import {
  byId, connection, getJson, isOutdated, main, node, now, queriesFor, readJson, scheduleOnce, services, setText, view, visibleServices,
} from "./state.js";

const POLL_MS = 5000;
const POLL_HIDDEN_MS = 15000; // of a hidden page, for its title and icon
const SYNC_MS = 15000; // how often the page is loaded again while there is no event stream
const MINUTE_MS = 60000;
const refreshAt = Math.random() * 20000; // into each minute, so that many pages do not request history at once

let polledAt = 0;
let syncedAt = Date.now();
let connectAttemptedAt = 0;
let behindSince = 0;

// ---- events

let source = null;
let wasInterrupted = false;
let isEnded = false; // the server has ended the stream as planned, and the browser connects again

function openEventStream() {
  source?.close();
  connectAttemptedAt = Date.now();
  source = new EventSource(`events?after=${connection.lastEventId}`);
  source.onopen = () => {
    isEnded = false;
    connection.isStreaming = true;
    paintNode();
    if (wasInterrupted) sync(); // the node may be another process, or events may be lost
    wasInterrupted = false;
  };
  source.addEventListener("end", () => (isEnded = true));
  source.onerror = () => {
    if (isEnded) return void (isEnded = false); // an error that follows is one
    Object.assign(connection, { isStreaming: false, isFailing: true });
    wasInterrupted = true;
    paintNode();
    scheduleOnce("poll", poll, 500); // finds out whether the node still answers
  };
  source.addEventListener("transition", (message) => applyEvent(readJson(message.data)));
  source.addEventListener("gap", sync);
}

function applyEvent(event) {
  if (event.id <= connection.lastEventId) return;
  connection.lastEventId = event.id;
  const service = services.get(event.service_id);
  if (event.kind === "status" && service) {
    Object.assign(service, { status: event.after, reason: event.reason, code: event.code, since: Date.parse(event.at) });
    if (service.panel) scheduleOnce("panels", fillPanels, 200);
    paintSoon(service);
  } else if (event.kind !== "node" && event.kind !== "stopped") {
    sync();
  }
  if (event.health !== node.health) {
    // Until the next poll brings the whole reason.
    const suffix = event.reason && `: ${event.reason}`;
    const change = service && event.kind === "status" ? `${service.name} is ${event.after}` : `Health changed from ${event.health_before} to ${event.health}`;
    const reason = event.kind === "status" || event.kind === "node" ? change + suffix : change;
    Object.assign(node, { health: event.health, reason });
  }
  if (isOutdated(Date.parse(event.at) + connection.skew)) paintNode();
  else markReceivedAndSync();
  scheduleOnce("poll", poll, 300);
}

function markReceivedAndSync() {
  if (markReceived()) sync(); // rows that are not visible may have changed while the connection was lost
}

// A browser opens at most six connections to a node, and every event stream takes one. A hidden page closes its stream
// when another page becomes visible.
const pages = new BroadcastChannel("svcnode stream");
pages.onmessage = () => {
  if (!document.hidden || !source) return;
  source.close();
  source = null;
  connection.isStreaming = false;
};

export function onVisibilityChange() {
  if (document.hidden) return;
  pages.postMessage("visible");
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
    if (!queries.length) queries.push("recent_checks=0&id="); // the node only
    for (const query of queries) applyDetails(await getJson(`details?${query}`));
    if (!document.hidden) await fillPanels(visibleServices);
  } catch {
    markFailed(wasStreaming);
  } finally {
    isPolling = false;
  }
}

// The line of a new node is drawn from its last checks. They are loaded once; later polls add the latest check.
const lacksChecks = (service) => isDrawnFromChecks(service) && !service.checks;

function* detailsQueriesFor(subset) {
  const all = [...subset];
  for (const query of queriesFor(all.filter(lacksChecks))) yield `recent_checks=1${query}`;
  for (const query of queriesFor(all.filter((service) => !lacksChecks(service)))) yield `recent_checks=0${query}`;
}

function applyDetails({ node: received, services: list }) {
  if (["started", "name", "version"].some((key) => received[key] !== main.dataset[key])) return sync();
  if (received.last_event_id < connection.lastEventId) return scheduleOnce("poll", poll, 1000); // older than the last event
  behindSince = connection.isStreaming && received.last_event_id > connection.lastEventId ? behindSince || Date.now() : 0;
  if (behindSince && Date.now() - behindSince > POLL_MS) sync(); // the node has published events that do not arrive
  Object.assign(node, { health: received.health, reason: received.health_reason });
  paintNotices(received);
  paintReplicas(received.sharing);
  paintNotifications(received.notifications);
  for (const details of list) {
    const service = services.get(details.id);
    if (!service) continue;
    Object.assign(service, {
      status: details.status, ...displayReason(details), since: Date.parse(details.since),
      checkedAt: details.evidence && Date.parse(details.evidence.at),
      latency: details.schedule && details.evidence ? details.evidence.duration_ms : null,
    });
    addChecks(service, details);
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
      markFailed(wasStreaming);
      scheduleOnce("sync", sync, POLL_MS);
    }
    // The server renders the page at most once a second.
    if (isSyncNeeded) await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  isSyncing = false;
}

// The response is parsed as a document by the browser; this script never turns a string into markup.
function getPage() {
  const requestedAt = Date.now();
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", "./");
    request.responseType = "document";
    request.timeout = 2 * POLL_MS;
    request.onloadend = () => {
      if (request.status === 200 && request.response && !isOutdated(requestedAt)) resolve(request.response);
      else reject(new Error(`loading the page failed: ${request.status}`));
    };
    request.send();
  });
}

function applyPage(newDocument) {
  const newMain = newDocument.getElementById("node");
  if (newMain.dataset.svcnode !== main.dataset.svcnode) return location.reload(); // another version has other scripts
  if (newMain.dataset.started === main.dataset.started && Number(newMain.dataset.event) < connection.lastEventId) {
    isSyncNeeded = true; // rendered before the last event
    return;
  }
  const openServices = [...services.values()].filter((service) => service.panel);
  const focused = document.activeElement?.closest("tr[data-id]")?.dataset.id;
  hideTooltip();
  for (const id of ["hero", "notices", "replicas", "notifications"]) byId(id).replaceWith(document.adoptNode(newDocument.getElementById(id)));
  for (const chunk of main.querySelectorAll(".chunk")) chunk.remove();
  byId("hidden-rows").replaceChildren();
  byId("hidden-rows").before(...newMain.querySelectorAll(".chunk"));
  Object.assign(main.dataset, newMain.dataset);
  readPage();
  for (const { id } of openServices) if (services.has(id)) openPanel(services.get(id));
  sortAndFilter();
  services.get(focused)?.link.focus({ preventScroll: true });
  markReceived();
}

export function readPage() {
  Object.assign(connection, { skew: Date.now() - main.dataset.now, lastEventId: Number(main.dataset.event) });
  const { healthCode, name } = main.dataset;
  Object.assign(node, { health: Number(healthCode), name: escapeInvisible(name), reason: byId("health-reason").textContent });
  readRows();
}

// ---- history

let isLoading = false;
export async function loadHistory(subset = visibleServices) {
  const version = `${view.resolution} ${Math.floor((now() - refreshAt) / MINUTE_MS)}`;
  const outdated = [...subset].filter((service) => service.historyVersion !== version);
  if (!outdated.length || isLoading) return;
  isLoading = true;
  try {
    for (const query of queriesFor(outdated)) {
      const data = await getJson(`history?resolution=${view.resolution}${query}`);
      if (data.resolution !== view.resolution) break; // the user has selected another resolution
      for (const [id, buckets] of Object.entries(data.services)) {
        if (services.has(id)) setBuckets(services.get(id), buckets, data.length_s);
      }
    }
    if (outdated.some(lacksChecks)) scheduleOnce("poll", poll, 0);
  } catch {
    // The next attempt is in a minute.
  } finally {
    for (const service of outdated) service.historyVersion = version;
    isLoading = false;
  }
}

// Sorting compares all rows, but polling loads the visible ones only.
export async function loadColumn(column) {
  if (column === "check" || column === "latency") applyDetails(await getJson("details"));
  if (column === "availability") await loadHistory(services.values());
}

export function loadVisibleRows() {
  if (document.hidden) return;
  loadHistory();
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
  loadHistory();
}
