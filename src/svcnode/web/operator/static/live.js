// Keeps what is shown true:
//
//   /events    tells every change as it happens, from the one on that stands in the page
//   /details   is asked every few seconds for the rows in sight, and shows that the node is still there
//   /history   is asked once a minute for the rows in sight
//   the page   is asked for again, and its table taken over, when something cannot be mended in place:
//              services came or went, events were missed, the node was started anew

import { askedInVain, heard, judgeSilence, paintNode, paintNotices } from "./health.js";
import { fillPanels, openPanel } from "./panel.js";
import { arrange, isDrawnFromLooks, paintSoon, paintTimes, readRows, takeBars, takeLooks } from "./rows.js";
import {
  byId, getJson, inSight, isOld, line, main, node, now, queriesFor, readJson, services, setText, soon, view,
} from "./state.js";
import { hideTip } from "./tip.js";
import { duration, reasonOf, shown } from "./words.js";

const POLL_MS = 5000;
const POLL_UNSEEN_MS = 15000; // for title and icon, while nobody looks at the rest
const SYNC_MS = 15000; // how often the page is asked for when events do not come
const MINUTE_MS = 60000;
const refreshAt = Math.random() * 20000; // into each minute, so that many pages do not ask at once

let polledAt = 0;
let syncedAt = Date.now();
let triedAt = 0;
let behindSince = 0;

// ---- events

let source = null;
let isInterrupted = false;

function listen() {
  source?.close();
  triedAt = Date.now();
  source = new EventSource(`events?after=${line.seen}`);
  source.onopen = () => {
    line.isStreaming = true;
    paintNode();
    if (isInterrupted) sync(); // what happened meanwhile may not be told event by event
    isInterrupted = false;
  };
  source.onerror = () => {
    Object.assign(line, { isStreaming: false, isFailing: true });
    isInterrupted = true;
    paintNode();
    soon("poll", poll, 500); // is it the stream, or the node?
  };
  source.addEventListener("transition", (message) => takeEvent(readJson(message.data)));
  source.addEventListener("gap", sync);
}

function takeEvent(event) {
  if (event.id <= line.seen) return;
  line.seen = event.id;
  const service = services.get(event.service_id);
  if (event.kind === "status" && service) {
    Object.assign(service, { status: event.after, reason: event.reason, since: Date.parse(event.at) });
    if (service.panel) soon("panels", fillPanels, 200);
    paintSoon(service);
  } else if (event.kind !== "node" && event.kind !== "stopped") {
    sync();
  }
  if (event.health !== node.code) {
    // Until the node is asked for the whole reason, what changed it is the best that is known.
    const because = event.reason && `: ${event.reason}`;
    const why = service ? `${service.name} is ${event.after}${because}` : "The node itself says so.";
    Object.assign(node, { code: event.health, why });
  }
  if (isOld(Date.parse(event.at) + line.skew)) paintNode();
  else backAgain();
  soon("poll", poll, 300);
}

function backAgain() {
  if (heard()) sync(); // much may have happened meanwhile, out of sight
}

// Browsers open but six connections to a node, and every page holds one. A page that nobody sees gives its own away.
const pages = new BroadcastChannel("svcnode stream");
pages.onmessage = () => {
  if (!document.hidden || !source) return;
  source.close();
  source = null;
  line.isStreaming = false;
};

export function comeIntoView() {
  if (document.hidden) return;
  pages.postMessage("mine");
  if (!source) listen();
  polledAt = 0;
  tick();
}

// ---- details

let isPolling = false;
async function poll() {
  if (isPolling) return;
  isPolling = true;
  polledAt = Date.now();
  const wasStreaming = line.isStreaming;
  try {
    const questions = document.hidden ? [] : [...questionsOf(inSight)];
    if (!questions.length) questions.push("attempts=0&id="); // of the node only
    for (const question of questions) takeDetails(await getJson(`details?${question}`));
    if (!document.hidden) await fillPanels(inSight);
  } catch {
    askedInVain(wasStreaming);
  } finally {
    isPolling = false;
  }
}

// With the last attempts where a line is to be drawn from them and none are known: once, for then each look is added.
const lacksLooks = (service) => isDrawnFromLooks(service) && !service.looks;

function* questionsOf(some) {
  const all = [...some];
  for (const query of queriesFor(all.filter(lacksLooks))) yield `attempts=1${query}`;
  for (const query of queriesFor(all.filter((service) => !lacksLooks(service)))) yield `attempts=0${query}`;
}

function takeDetails({ node: told, services: list }) {
  if (["started", "name", "version"].some((key) => told[key] !== main.dataset[key])) return sync();
  if (told.last_event_id < line.seen) return soon("poll", poll, 1000); // it was made before the last change we know of
  behindSince = line.isStreaming && told.last_event_id > line.seen ? behindSince || Date.now() : 0;
  if (behindSince && Date.now() - behindSince > POLL_MS) sync(); // events are told, and do not arrive
  Object.assign(node, { code: told.health, why: told.health_reason });
  paintNotices(told);
  for (const said of list) {
    const service = services.get(said.id);
    if (!service) continue;
    Object.assign(service, {
      status: said.status, reason: reasonOf(said), since: Date.parse(said.since),
      look: said.evidence && Date.parse(said.evidence.at),
      latency: said.schedule && said.evidence ? said.evidence.duration_ms : null,
    });
    takeLooks(service, said);
    paintSoon(service);
  }
  backAgain();
}

// ---- the page

let isSyncing = false;
let isSyncDue = false;
async function sync() {
  isSyncDue = true;
  if (isSyncing) return;
  isSyncing = true;
  while (isSyncDue) {
    isSyncDue = false;
    syncedAt = Date.now();
    const wasStreaming = line.isStreaming;
    try {
      adopt(await getPage());
    } catch {
      askedInVain(wasStreaming);
      soon("sync", sync, POLL_MS);
    }
    // The server makes the page at most once a second, and many services may come at once.
    if (isSyncDue) await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  isSyncing = false;
}

// A document and not a string: no string in this page ever becomes markup.
function getPage() {
  const askedAt = Date.now();
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", "./");
    request.responseType = "document";
    request.timeout = 2 * POLL_MS;
    request.onloadend = () => {
      if (request.status === 200 && request.response && !isOld(askedAt)) resolve(request.response);
      else reject(new Error(`no page: ${request.status}`));
    };
    request.send();
  });
}

function adopt(fresh) {
  const made = fresh.getElementById("node");
  if (made.dataset.svcnode !== main.dataset.svcnode) return location.reload(); // another version brings its own script
  if (made.dataset.started === main.dataset.started && Number(made.dataset.event) < line.seen) {
    isSyncDue = true; // it was made before the last change that we know of
    return;
  }
  const open = [...services.values()].filter((service) => service.panel);
  const focused = document.activeElement?.closest("tr[data-id]")?.dataset.id;
  hideTip();
  for (const id of ["hero", "notices"]) byId(id).replaceWith(document.adoptNode(fresh.getElementById(id)));
  for (const chunk of main.querySelectorAll(".chunk")) chunk.remove();
  byId("out").replaceChildren();
  byId("out").before(...made.querySelectorAll(".chunk"));
  Object.assign(main.dataset, made.dataset);
  readPage();
  for (const { id } of open) if (services.has(id)) openPanel(services.get(id));
  arrange();
  services.get(focused)?.link.focus({ preventScroll: true });
  heard();
}

export function readPage() {
  Object.assign(line, { skew: Date.now() - main.dataset.now, seen: Number(main.dataset.event) });
  const { code, name } = main.dataset;
  Object.assign(node, { code: Number(code), name: shown(name), why: byId("why").textContent });
  readRows();
}

// ---- history

let isLoading = false;
export async function loadBars(some = inSight) {
  const stamp = `${view.span} ${Math.floor((now() - refreshAt) / MINUTE_MS)}`;
  const wanted = [...some].filter((service) => service.barsOf !== stamp);
  if (!wanted.length || isLoading) return;
  isLoading = true;
  try {
    for (const query of queriesFor(wanted)) {
      const said = await getJson(`history?span=${view.span}${query}`);
      if (said.span !== view.span) break; // another one has been chosen meanwhile
      for (const [id, bars] of Object.entries(said.services)) {
        if (services.has(id)) takeBars(services.get(id), bars, said.length_s);
      }
    }
    for (const service of wanted) service.barsOf = stamp;
    if (wanted.some(lacksLooks)) soon("poll", poll, 0);
  } catch {
    for (const service of wanted) service.barsOf = stamp; // not again before the next minute
  } finally {
    isLoading = false;
  }
}

// What sorting compares must be known of all rows, not only of those that were in sight.
export async function learnAll(column) {
  if (column === "look" || column === "latency") takeDetails(await getJson("details"));
  if (column === "share") await loadBars(services.values());
}

export function lookCloser() {
  if (document.hidden) return;
  loadBars();
  if ([...inSight].some((service) => !service.isAsked)) {
    for (const service of inSight) service.isAsked = true;
    poll();
  }
}

export function tick() {
  judgeSilence();
  if (!line.isLost) setText(byId("uptime"), duration((now() - Date.parse(main.dataset.started)) / 1000));
  if (Date.now() - polledAt > (document.hidden ? POLL_UNSEEN_MS : POLL_MS)) poll();
  if (source?.readyState === EventSource.CLOSED && Date.now() - triedAt > POLL_MS) listen();
  if (document.hidden) return;
  if (!line.isStreaming && Date.now() - syncedAt > SYNC_MS) sync();
  for (const service of inSight) paintTimes(service);
  loadBars();
}
