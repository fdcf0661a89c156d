// What unfolds below a row: all that is known of one service, from /details and the transitions of /history.

import { element, getJson, queriesFor, services } from "./state.js";
import { EMPTY_CELL, ago, count, duration, latency, moment, displayReason, escapeInvisible } from "./format.js";

export function toggle(service) {
  if (!service.panel) {
    openPanel(service);
    return;
  }
  service.panel.remove();
  service.panel = null;
  service.row.classList.remove("open");
  service.link.setAttribute("aria-expanded", "false");
}

export function openPanel(service) {
  const cell = element("td", { role: "cell", colspan: 7 }, element("p", { class: "none" }, "Asking…"));
  service.panel = element("tr", { role: "row", class: "expanded" }, cell);
  service.row.after(service.panel);
  service.row.classList.add("open");
  service.link.setAttribute("aria-expanded", "true");
  if (service.details) paint(service);
  fillPanels();
}

// Fill those that are open, of these services or of all.
export async function fillPanels(some) {
  const open = [...(some ?? services.values())].filter((service) => service.panel);
  for (const query of queriesFor(open)) {
    const [message, past] = await Promise.allSettled([
      getJson(`details?attempts=1${query}`), getJson(`history?resolution=hours&transitions=20${query}`),
    ]);
    for (const details of message.value?.services ?? []) {
      const service = services.get(details.id);
      if (!service?.panel) continue;
      Object.assign(service, { details, transitions: past.value?.transitions?.[details.id] ?? service.transitions });
      paint(service);
    }
  }
}

function paint({ panel, details, transitions }) {
  const cell = panel.firstChild;
  const chosen = getSelection();
  if (!chosen.isCollapsed && cell.contains(chosen.anchorNode)) return; // somebody is about to copy something
  const offsets = [...cell.querySelectorAll(".list")].map((list) => list.scrollTop);
  cell.replaceChildren(contents(details, transitions));
  cell.querySelectorAll(".list").forEach((list, index) => (list.scrollTop = offsets[index] ?? 0));
}

const text = (text) => element("span", { dir: "auto" }, text);

const IMPACTS = {
  critical: "critical: while it is Down, the node is unhealthy",
  partial: "partial: while it is not Up, the node is partially healthy at best",
  none: "none: it does not count in the health of the node",
};

function contents(service, transitions) {
  return element("div", { class: "panel" },
    element("section", {}, ...about(service)),
    element("section", {}, heading("Last attempts"), attempts(service)),
    element("section", {}, heading("Last changes"), changes(service, transitions)),
  );
}

const heading = (text) => element("h2", {}, text);

function* about(service) {
  if (service.description) yield element("p", { class: "description", dir: "auto" }, service.description);
  const list = facts(service).filter(([, message]) => message);
  yield element("dl", {}, ...list.flatMap(([term, message]) => [element("dt", {}, term), element("dd", {}, message)]));
  yield element("p", { class: "hint" }, "Why it is so, and what would change it: ",
    element("code", { dir: "auto" }, `svcnode explain --url ${quoted(here())} ${quoted(service.id)}`));
}

const isFixed = ({ kind }) => kind === "fixed";

function facts(service) {
  const { policy, counters, schedule } = service;
  const { failures_in_a_row: failures, ready_in_a_row: successes } = counters;
  return [
    ["Reason", service.reason && text(displayReason(service))],
    ["Probe", isFixed(service) ? "none, the status is set in the configuration" : text(service.probe ?? service.kind)],
    ["Impact", IMPACTS[service.impact]],
    ["Checks", schedule && `every ${seconds(schedule.interval_s)}${next(service)}`],
    ["Times out", schedule && `after ${seconds(schedule.timeout_s)}`],
    ["Slow", schedule?.max_latency_s && `not ready when it takes more than ${seconds(schedule.max_latency_s)}`],
    ["Down after", schedule && `${count(policy.fall, "failure")} in a row; now ${failures}`],
    ["Up after", schedule && `${count(policy.rise, "success", "successes")} in a row; now ${successes}`],
    ["Stale after", policy.stale_after_s && `${seconds(policy.stale_after_s)} without evidence${left(service)}`],
    ["Down after", policy.ttl_s && `${seconds(policy.ttl_s)} without a report${left(service)}`],
    ["Last success", !isFixed(service) && (service.last_ready ? ago(service.last_ready.age_s) : "none yet")],
    ["So far", `${tally(service)}${count(service.transitions, "change")} of status`],
    ["Registered", ago(service.registered_s)],
  ];
}

const seconds = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : value % 1 ? `${value} s` : duration(value));
const left = ({ expires_in_s: expires }) => (expires === null ? "" : `; ${duration(expires)} left`);

function next({ next_check_in_s: wait }) {
  if (wait === null) return "";
  return wait >= 1 ? `, the next in ${duration(wait)}` : ", the next now";
}

const here = () => location.origin + location.pathname.replace(/\/$/, "");

// As a shell takes it.
function quoted(id) {
  if (/^[\w.:/@%+=,-]+$/.test(id)) return id;
  if (escapeInvisible(id) !== id) return `$'${escapeInvisible(id.replace(/[\\']/g, "\\$&"))}'`;
  return `'${id.replaceAll("'", "'\\''")}'`;
}

const VERDICTS = {
  ready: ["Up", "ready"],
  not_ready: ["Initializing", "not ready"],
  failed: ["Down", "failed"],
  unknown: ["", "unknown"],
};

function tally(service) {
  if (isFixed(service)) return "";
  const counted = Object.entries(service.checks).filter(([, many]) => many);
  return `${counted.map(([verdict, many]) => `${many} ${VERDICTS[verdict][1]}`).join(", ") || "no checks yet"}; `;
}

const none = (text) => element("p", { class: "none" }, text);

function attempts(service) {
  const list = service.attempts ?? [];
  if (!list.length) return none(isFixed(service) ? "None: this service is not checked." : "None yet.");
  return element("ol", { class: "list" }, ...list.map((one) => {
    const [status, word] = VERDICTS[one.verdict];
    return element("li", { "data-status": status },
      element("time", { datetime: one.at }, moment(Date.parse(one.at))),
      element("span", { class: "status" }, word),
      element("span", { class: "latency" }, one.duration_ms ? latency(one.duration_ms) : EMPTY_CELL),
      element("span", { class: "message", dir: "auto" }, one.reason));
  }));
}

function changes(service, list) {
  if (!list) return none("They could not be asked for.");
  if (!list.length) return none(service.transitions ? "None are kept." : "None yet.");
  return element("ol", { class: "list changes" }, ...list.map((one) =>
    element("li", { "data-status": one.after ?? "" },
      element("time", { datetime: one.at }, moment(Date.parse(one.at))),
      element("span", { class: "status" }, one.after ?? one.kind),
      element("span", { class: "message", dir: "auto" }, message(one)))));
}

function message(one) {
  const how = one.kind === "status" && one.before ? `was ${one.before}` : one.kind;
  return one.reason ? `${how}: ${one.reason}` : how;
}
