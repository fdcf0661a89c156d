// Keeps the page up to date:
//
//   /page/events    says that something has changed
//   /page/changes   what has changed after the cursor of the page: rows and sections, rendered by the server; every few
//                   seconds also the visible rows as they are now, which shows that the node still answers
//   /history        once a minute, for the visible rows
//
// One request for changes is under way at a time, so changes are put in place in their order, and a slow connection gets
// the latest row of each service instead of all that were in between.

import { checkFreshness, markFailed, markReceived, paintNode } from "./connection.js";
import { duration } from "./format.js";
import { followChanges, paintCounts } from "./order.js";
import { fillPanels } from "./panel.js";
import { isDrawnFromChecks, paintTimes, putRow, removeRow, setBuckets, setChecks } from "./rows.js";
import { putSection } from "./sections.js";
import {
  byId, connection, getJson, isOutdated, main, now, queriesFor, scheduleOnce, services, setText, view, visibleServices,
} from "./state.js";

const POLL_MS = 5000;
const POLL_HIDDEN_MS = 15000; // of a hidden page, for its title and icon
const MINUTE_MS = 60000;
const STALLED_AFTER_MS = 10000; // a slow response is one that still arrives
const UPDATE_INTERVAL_MS = 250;
const SORT_AFTER_MS = 500;
const SILENT_AFTER_MS = 2000;
const refreshAt = Math.random() * 20000; // into each minute, so that many pages do not request history at once

// Longer after each failure in a row, and different for each page, so that not all of them return at once.
const backoff = (failures) => Math.min(10000, 1000 * 2 ** failures) * (0.5 + Math.random());

// ---- signals

let source = null;
let streamFailures = 0;
let isEnded = false; // the server has ended the stream as planned, and the browser connects again
let unapplied = []; // signals of changes that the page does not show yet: the cursor, and when it arrived
let signalled = ""; // the cursor of the last signal
let silentSince = 0; // when the page learned of a signal that has not arrived

function openStream() {
  source?.close();
  source = new EventSource("page/events");
  source.onopen = () => {
    [isEnded, streamFailures, silentSince] = [false, 0, 0];
    connection.isStreaming = true;
    paintNode();
  };
  source.addEventListener("change", ({ lastEventId }) => onSignal(lastEventId));
  source.addEventListener("end", () => (isEnded = true));
  source.onerror = () => {
    if (isEnded) return void (isEnded = false); // an error that follows is one
    connection.isFailing = true;
    closeStream();
    scheduleOnce("stream", reopenStream, 1000 + backoff(streamFailures));
    streamFailures += 1;
    setTimeout(poll, 500); // finds out whether the node still answers
  };
}

function closeStream() {
  source?.close();
  source = null;
  connection.isStreaming = false;
  paintNode();
}

const reopenStream = () => document.hidden || source || openStream();

const processOf = (cursor) => cursor.split("-")[0];
const versionOf = (cursor) => Number(cursor.split("-")[1]);

// Cursors of two processes cannot be compared: the node was restarted, or a program serves it by several processes.
const isAfter = (cursor, other) => processOf(cursor) !== processOf(other) || versionOf(cursor) > versionOf(other);

function onSignal(cursor) {
  [signalled, silentSince] = [cursor, 0];
  if (!isAfter(cursor, connection.cursor)) return;
  unapplied.push([cursor, Date.now()]);
  noteBehind();
  if (Date.now() >= retryAt) update();
}

function noteBehind() {
  unapplied = unapplied.filter(([cursor]) => isAfter(cursor, connection.cursor));
  connection.behindSince = unapplied[0]?.[1] ?? 0;
}

// A browser opens at most six connections to a node, and every event stream takes one. A hidden page closes its stream
// when another page becomes visible.
const pages = new BroadcastChannel("svcnode stream");
pages.onmessage = () => document.hidden && source && closeStream();

export function onVisibilityChange() {
  if (document.hidden) return;
  pages.postMessage("visible");
  if (!source) openStream();
  [polledAt, retryAt] = [0, 0];
  tick();
}

// ---- changes

let polledAt = 0;
let retryAt = 0;
let failures = 0;
let isEverythingNeeded = false;
let isUpdateNeeded = false;
let running = null;

// Returns when the page shows everything that had changed before this call.
function update() {
  isUpdateNeeded = true;
  running ??= runUpdates().finally(() => (running = null));
  return running;
}

function poll() {
  polledAt = 0;
  return update();
}

async function runUpdates() {
  while (isUpdateNeeded) {
    isUpdateNeeded = false;
    const wasStreaming = connection.isStreaming;
    try {
      for (const query of changesQueries()) applyChanges(await getDocument(`page/changes?${query}`));
      failures = 0;
    } catch {
      retryAt = Date.now() + backoff(failures);
      failures += 1;
      markFailed(wasStreaming);
      return;
    }
    if (isUpdateNeeded) await new Promise((resolve) => setTimeout(resolve, UPDATE_INTERVAL_MS));
  }
}

// With the visible rows, if it is time to.
function* changesQueries() {
  const isAll = isEverythingNeeded;
  const isPoll = Date.now() - polledAt >= pollInterval();
  isEverythingNeeded = false;
  const queries = isPoll && !isAll && !document.hidden ? [...queriesFor(visibleServices)] : [];
  if (isPoll) polledAt = Date.now();
  if (!queries.length) yield isAll ? "" : `after=${connection.cursor}`;
  for (const query of queries) yield `after=${connection.cursor}${query}`;
  if (isPoll && !document.hidden) loadDetails();
}

const pollInterval = () => (document.hidden ? POLL_HIDDEN_MS : POLL_MS);

// The browser parses the response as a document; this script never turns a string into markup.
export function getDocument(url) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    let [arrivedAt, isTooOld, timer] = [Date.now(), false, null];
    const onData = () => {
      isTooOld ||= isOutdated(arrivedAt); // the computer slept meanwhile
      arrivedAt = Date.now();
      clearTimeout(timer);
      timer = setTimeout(() => request.abort(), STALLED_AFTER_MS);
    };
    request.open("GET", url);
    request.responseType = "document";
    request.onprogress = () => {
      onData();
      connection.receivedAt = arrivedAt;
    };
    request.onloadend = () => {
      onData();
      clearTimeout(timer);
      if (request.status === 200 && request.response && !isTooOld) resolve(request.response);
      else reject(new Error(`${url}: ${request.status}`));
    };
    onData();
    request.send();
  });
}

function applyChanges(changes) {
  const received = changes.querySelector("main");
  const { complete, cursor, ...facts } = received.dataset;
  const isSilent = connection.isStreaming && processOf(facts.signalled) === processOf(signalled) && isAfter(facts.signalled, signalled);
  silentSince = isSilent ? silentSince || Date.now() : 0;
  if (facts.svcnode !== main.dataset.svcnode) byId("new-version").hidden = false; // its scripts may be others
  Object.assign(main.dataset, { ...facts, svcnode: main.dataset.svcnode });
  for (const fact of main.querySelectorAll("[data-fact]")) setText(fact, facts[fact.dataset.fact]);
  setSkew(Date.now() - facts.now);
  applyRows([...received.querySelectorAll("tr[data-id]")], complete !== undefined);
  for (const section of received.querySelectorAll("[data-section]")) putSection(section.dataset.section, section);
  if (complete !== undefined) unapplied = []; // the signals may be of another process; a newer one follows
  connection.cursor = cursor;
  noteBehind();
  markReceived();
}

// A response that takes long makes the clocks look further apart than they are.
function setSkew(skew) {
  if (skew < connection.skew || skew > connection.skew + STALLED_AFTER_MS) connection.skew = skew;
}

function applyRows(rows, isComplete) {
  const isRemoved = (row) => "removed" in row.dataset;
  const present = rows.filter((row) => !isRemoved(row));
  const [size, hasMoved] = [services.size, present.map(putRow).some(Boolean)];
  const known = new Set(present.map((row) => row.dataset.id));
  const gone = isComplete ? [...services.keys()].filter((id) => !known.has(id)) : rows.filter(isRemoved).map((row) => row.dataset.id);
  for (const id of gone) removeRow(id);
  if (hasMoved && present.some((row) => services.get(row.dataset.id).panel)) scheduleOnce("panels", fillPanels, 200);
  const isOther = gone.length > 0 || size !== services.size;
  if (hasMoved || isOther) {
    paintCounts();
    if (isOther) followChanges(true);
    else scheduleOnce("sort", followChanges, SORT_AFTER_MS);
  }
}

// ---- what only some rows need

const lacksChecks = (service) => isDrawnFromChecks(service) && !service.isFixed;

async function loadDetails() {
  try {
    for (const query of queriesFor([...visibleServices].filter(lacksChecks))) {
      for (const details of (await getJson(`details?recent_checks=1${query}`)).services) {
        if (services.has(details.id)) setChecks(services.get(details.id), details);
      }
    }
    await fillPanels(visibleServices);
  } catch {
    // The next attempt is with the next poll.
  }
}

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
    if (outdated.some((service) => lacksChecks(service) && !service.checks)) loadDetails();
  } catch {
    // The next attempt is in a minute.
  } finally {
    for (const service of outdated) service.historyVersion = version;
    isLoading = false;
  }
}

// Sorting compares all rows, but only the visible ones are up to date in these columns.
export async function loadColumn(column) {
  if (column === "check" || column === "latency") {
    isEverythingNeeded = true;
    await update();
  }
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
  const isDue = isUpdateNeeded || unapplied.length || failures || Date.now() - polledAt >= pollInterval();
  if (isDue && Date.now() >= retryAt) update();
  if (silentSince && Date.now() - silentSince > SILENT_AFTER_MS) source?.onerror(); // changes arrive that it does not announce
  if (document.hidden) return;
  for (const service of visibleServices) paintTimes(service);
  loadHistory();
}
