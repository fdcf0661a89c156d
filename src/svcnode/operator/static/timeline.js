// The timeline: the server renders it for a period, a service and a moment; the script chooses them, shows the details of
// the moment, and loads it again when something has changed.
//
// All pages ask in the same seconds, so that the node renders once for many of them. An answer may be a second old, and a
// change may reach the history a moment later, so the last answer must be from a while after the last change.

import { getDocument } from "./live.js";
import { putSection } from "./sections.js";
import { byId, main, now, setText, view } from "./state.js";

const SLOT_MS = 5000;
const SETTLED_AFTER_MS = 2000;
const MINUTE_MS = 60000;
const MAX_SHARE = 20; // of the time, 1/20 is spent on loading
const DEFAULT_PERIOD = "24h";

const form = byId("timeline-period"); // not a form: the policy of the page forbids them
const [begin, end] = form.querySelectorAll("[type=datetime-local]");
let known = ""; // the changes that the page was told of
let changedAt = 0;
let loaded = { at: 0, query: "", slot: 0, lasted: 0 };
let isLoading = false;
let shownScope = ",,,"; // the service and the period that are shown

function currentQuery() {
  const params = new URLSearchParams();
  if (view.from) params.set("from", view.from);
  else if (view.period || !view.t) params.set("from", view.period || DEFAULT_PERIOD);
  if (view.from && view.to) params.set("to", view.to);
  if (view.service) params.set("id", view.service);
  if (view.t) params.set("t", view.t);
  return params.toString();
}

// Call it every second.
export function refreshTimeline() {
  if (main.dataset.signalled !== known) [known, changedAt] = [main.dataset.signalled, Date.now()];
  if (!document.hidden && !isLoading && isDue()) load();
}

function isDue() {
  if (currentQuery() !== loaded.query) return true;
  const since = Date.now() - loaded.at;
  if (slotAt() === loaded.slot || since < MAX_SHARE * loaded.lasted) return false;
  return loaded.at < changedAt + SETTLED_AFTER_MS || since > MINUTE_MS;
}

const slotAt = () => Math.floor(now() / SLOT_MS);

async function load() {
  const query = currentQuery();
  const begun = Date.now();
  let at = begun;
  isLoading = true;
  try {
    const received = (await getDocument(`page/timeline?${query}`)).getElementById("timeline");
    putSection("timeline-content", received);
    showPeriod(received.dataset);
    setText(byId("timeline-problem"), "");
    if (query === currentQuery()) markMoment(query !== loaded.query);
  } catch {
    at = 0; // again soon
    setText(byId("timeline-problem"), "The timeline could not be loaded. The page tries again in a few seconds.");
  } finally {
    loaded = { at, query, slot: slotAt(), lasted: Date.now() - begun };
    isLoading = false;
  }
}

// ---- the period

// A field has a time without a zone. The labels say that it is in UTC, as all times of the page are.
const fieldValue = (iso) => new Date(iso).toISOString().slice(0, 19);
const isoTime = (value) => new Date(`${value}Z`).toISOString();

function showPeriod({ from, to }) {
  const chosen = view.from || (view.t && !view.period) ? "" : view.period || DEFAULT_PERIOD;
  for (const radio of form.querySelectorAll("[name=period]")) radio.checked = radio.value === chosen;
  if (document.activeElement === begin || document.activeElement === end) return;
  [begin.value, end.value] = [fieldValue(from), fieldValue(to)];
}

// The changes of the view that the two fields ask for; null if they are not valid.
function chosenTimes() {
  end.setCustomValidity(begin.value < end.value ? "" : "The end must be later than the beginning.");
  if (!begin.reportValidity() || !end.reportValidity()) return null;
  return { period: "", from: isoTime(begin.value), to: isoTime(end.value), t: "" };
}

export function startTimeline(changeView) {
  const showTimes = () => {
    const changes = chosenTimes();
    if (changes) changeView(changes);
  };
  form.hidden = false;
  form.addEventListener("change", ({ target }) => {
    if (target.name === "period") changeView({ period: target.value === DEFAULT_PERIOD ? "" : target.value, from: "", to: "", t: "" });
  });
  form.addEventListener("input", () => end.setCustomValidity(""));
  form.addEventListener("keydown", ({ key, target }) => key === "Enter" && target.type === "datetime-local" && showTimes());
  form.querySelector("button").addEventListener("click", showTimes);
}

// ---- a moment

// What a link inside the timeline, or to it, changes of the view; null: it is another link.
export function timelineChanges(link) {
  if ("all" in link.dataset) return { service: "", t: "" };
  const params = new URLSearchParams(link.hash?.slice(1) ?? link.getAttribute("href").slice(1));
  if (params.has("t")) return { t: params.get("t") === view.t ? "" : params.get("t") };
  return params.has("service") ? { service: params.get("service"), t: "" } : null;
}

// The view has changed. What is shown already is not loaded for another moment of it.
export function showTimeline(isAsked) {
  const item = view.t && byId(`t=${view.t}`);
  const scope = [view.service, view.period, view.from, view.to].join();
  if (item && scope === shownScope) {
    loaded.query = currentQuery();
    markMoment(true);
  } else {
    markMoment(false);
    refreshTimeline();
  }
  shownScope = scope;
  if (isAsked && !item) byId("timeline").scrollIntoView({ block: "start" });
}

function markMoment(isNew) {
  for (const one of document.querySelectorAll("#timeline [aria-current]")) one.removeAttribute("aria-current");
  const item = view.t && byId(`t=${view.t}`);
  if (!item) return;
  for (const link of document.querySelectorAll(`#timeline a[href="#t=${CSS.escape(view.t)}"]`)) link.setAttribute("aria-current", "true");
  byId("timeline-list").open = true;
  if (!isNew) return;
  item.scrollIntoView({ block: "nearest" });
  item.querySelector("a").focus({ preventScroll: true });
}
