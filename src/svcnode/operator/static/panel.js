// The expanded row: everything about one service, from /details and the transitions of /history.

import { EMPTY_CELL, age, count, displayReason, duration, escapeInvisible, latency, utcText } from "./format.js";
import { replaceChildren } from "./sections.js";
import { element, getJson, queriesFor, services } from "./state.js";

export function togglePanel(service) {
  if (!service.panel) {
    openPanel(service);
    return;
  }
  service.panel.remove();
  service.panel = null;
  service.row.classList.remove("open");
  service.link.setAttribute("aria-expanded", "false");
}

// Returns when it has been filled.
export function openPanel(service) {
  const cell = element("td", { role: "cell", colspan: 7 }, emptyText("Loading…"));
  service.panel = element("tr", { role: "row", class: "expanded" }, cell);
  service.row.after(service.panel);
  service.row.classList.add("open");
  service.link.setAttribute("aria-expanded", "true");
  if (service.details) paint(service);
  return fillPanels();
}

// Loads and paints the open panels of these services, or of all.
export async function fillPanels(subset) {
  const openServices = [...(subset ?? services.values())].filter((service) => service.panel);
  for (const query of queriesFor(openServices)) {
    const [current, past] = await Promise.allSettled([
      getJson(`details?recent_checks=1${query}`), getJson(`history?resolution=hours&transitions=20${query}`),
    ]);
    for (const details of current.value?.services ?? []) {
      const service = services.get(details.id);
      if (!service?.panel) continue;
      Object.assign(service, { details, transitions: past.value?.transitions?.[details.id] ?? service.transitions });
      paint(service);
    }
  }
}

function paint({ panel, details, transitions }) {
  const cell = panel.firstChild;
  const selection = getSelection();
  if (!selection.isCollapsed && cell.contains(selection.anchorNode)) return; // keeps the text that the user selects
  const offsets = [...cell.querySelectorAll(".scroll")].map((list) => list.scrollTop);
  replaceChildren(cell, [contents(details, transitions)]);
  cell.querySelectorAll(".scroll").forEach((list, index) => (list.scrollTop = offsets[index] ?? 0));
}

function contents(service, transitions) {
  return element("div", { class: "panel" },
    element("section", {}, ...factsSection(service)),
    element("section", {}, ...observerSection(service), heading("Recent checks"), checkList(service)),
    element("section", {}, heading("Status changes"), transitionList(service, transitions)),
  );
}

const heading = (text) => element("h2", {}, text);
const emptyText = (text) => element("p", { class: "none" }, text);
// The node accepts only web pages; a browser would run a link with another scheme.
const link = (url) => (/^https?:\/\//.test(url) ? element("a", { href: url, rel: "noopener noreferrer", target: "_blank", dir: "auto" }, url) : autoText(url));
// Long lists scroll, also by keyboard.
const scrollable = (name, label, ...items) =>
  element("div", { class: "scroll", role: "group", tabindex: 0, "aria-label": label }, element("ol", { class: `list ${name}` }, ...items));
const autoText = (text) => element("span", { dir: "auto" }, text);

// ---- facts

const IMPACTS = {
  critical: "critical: the node is unhealthy while this service is Down",
  partial: "partial: the node is at best partially healthy while this service is not Up",
  none: "none: does not affect the health of the node",
};

function* factsSection(service) {
  if (service.description) yield element("p", { class: "description", dir: "auto" }, service.description);
  const list = facts(service).filter(([, value]) => value);
  yield element("dl", {}, ...list.flatMap(([term, value]) => [element("dt", {}, term), element("dd", {}, value)]));
  yield element("p", { class: "hint" }, "For causes and fixes, run ",
    element("code", { dir: "auto" }, `svcnode explain ${quoted(pageUrl())} --service ${quoted(service.id)}`));
}

const isFixed = ({ kind }) => kind === "fixed";
const isProbed = ({ kind }) => !["fixed", "reported"].includes(kind);

function facts(service) {
  const { policy, counters, schedule } = service;
  const { failures_in_a_row: failures, ready_in_a_row: successes } = counters;
  const { reason, code } = displayReason(service);
  return [
    ["Reason", reason && autoText(reason)],
    ["Code", element("code", {}, code)],
    ["Since", isFixed(service) ? "" : timeElement(service.since)],
    ["First failure", service.first_failure && timeElement(service.first_failure.at)],
    ["Lost", service.lost && "by the registry; it stays in the list until it is registered again, or until you run svcnode registry accept"],
    ["Maintenance", service.maintenance && autoText(`${service.maintenance.text}; alerts are held, and this time does not count towards availability`)],
    ["Planned maintenance", service.planned_maintenance && autoText(service.planned_maintenance.text)],
    ["Acknowledged", service.acknowledged && autoText(`${service.acknowledged.text}; no reminders, no escalation`)],
    ["Probe", isFixed(service) ? "none: the configuration sets the status" : autoText(service.probe ?? service.kind)],
    ["Group", service.group && autoText(service.group)],
    ["Runbook", service.runbook && link(service.runbook)],
    ["Depends on", service.depends_on?.length && autoText(dependsOn(service))],
    ["Impact", IMPACTS[service.impact]],
    ["Checked by", isProbed(service) && service.checked_by && autoText(service.checked_by.join(", ") || "no live replica")],
    ["Reports to", service.kind === "reported" && service.checked_by && autoText(service.checked_by.join(", "))],
    ["Interval", schedule && `${seconds(schedule.interval_s)}${nextCheck(service)}`],
    ["Timeout", schedule && seconds(schedule.timeout_s)],
    ["Maximum latency", schedule?.max_latency_s && `${seconds(schedule.max_latency_s)}; a slower check is not ready`],
    ["Down after", schedule && `${count(policy.fall, "failure")} in a row; now ${failures}`],
    ["Up after", schedule && `${count(policy.rise, "success", "successes")} in a row; now ${successes}`],
    ["Unreliable", schedule && policy.tolerance !== "off" && unreliableRule(service)],
    ["Stale after", policy.stale_after_s && `${seconds(policy.stale_after_s)} without evidence${timeLeft(service)}`],
    ["Down after", policy.ttl_s && `${seconds(policy.ttl_s)} without a ${policy.grace_s ? "success" : "heartbeat"}${timeLeft(service)}`],
    ["Last success", !isFixed(service) && (service.last_ready ? age(service.last_ready.age_s) : "none yet")],
    ["Totals", `${outcomeTotals(service)}${count(service.transitions, "status change")}`],
    ["Registered", age(service.registered_s)],
  ];
}

const dependsOn = ({ depends_on: names, causes }) =>
  [names.join(", "), ...causes.map(({ id, status, since_s: since }) => `${id} has been ${status} for ${duration(since)}`)].join("; ");
const seconds = (value) => (value < 1 ? `${Math.round(value * 1000)} ms` : value % 1 ? `${value} s` : duration(value));
const timeLeft = ({ expires_in_s: expires }) => (expires === null ? "" : `; ${duration(expires)} left`);

function unreliableRule({ policy, counters, unreliable }) {
  const now = `now ${Math.max(counters.recent_failures, counters.repeated_failures)}`;
  const [maxFailures, checks] = policy.tolerance.split("/").map(Number);
  const limit = (failures) => `${count(failures, "failure")} among ${count(checks, "check")}`;
  return unreliable
    ? `yes, until at most ${limit(Math.floor(maxFailures / 4))}; ${now}`
    : `no; with more than ${limit(maxFailures)}; ${now}`;
}

const timeElement = (at) => element("time", { datetime: at }, utcText(Date.parse(at)));

function nextCheck({ next_check_in_s: wait }) {
  if (wait === null) return "";
  return wait >= 1 ? `; next check in ${duration(wait)}` : "; next check now";
}

const pageUrl = () => location.origin + location.pathname.replace(/\/$/, "");

// As one argument of a shell command.
function quoted(argument) {
  if (/^[\w.:/@%+=,-]+$/.test(argument)) return argument;
  if (escapeInvisible(argument) !== argument) return `$'${escapeInvisible(argument.replace(/[\\']/g, "\\$&"))}'`;
  return `'${argument.replaceAll("'", "'\\''")}'`;
}

// ---- lists

const OUTCOMES = {
  ready: ["Up", "ready"],
  not_ready: ["Initializing", "not ready"],
  failed: ["Down", "failed"],
  unknown: ["", "unknown"],
};

function outcomeTotals(service) {
  if (isFixed(service)) return "";
  const counts = Object.entries(service.checks).filter(([, number]) => number);
  return `${counts.map(([outcome, number]) => `${number} ${OUTCOMES[outcome][1]}`).join(", ") || "no checks yet"}; `;
}

// The code is left out where it only repeats the outcome.
const codeElements = (code) => (code && code !== "ok" && code !== "reported" ? [element("code", {}, code)] : []);

function noChecksText(service) {
  if (isFixed(service)) return "None: this service is not checked.";
  return service.observed && !service.schedule ? "None here: another replica runs the checks." : "None yet.";
}

function checkList(service) {
  const list = service.recent_checks ?? [];
  if (!list.length) return emptyText(noChecksText(service));
  return scrollable("checks", "Recent checks", ...list.map((check) => {
    const [status, label] = OUTCOMES[check.outcome];
    return element("li", { "data-status": status },
      timeElement(check.at),
      element("span", { class: "status" }, label),
      element("span", { class: "latency" }, check.duration_ms ? latency(check.duration_ms) : EMPTY_CELL),
      ...codeElements(check.code),
      element("span", { class: "message", dir: "auto" }, check.reason));
  }));
}

// What each replica publishes about the service; a node on one machine has none.
function observerSection({ observed }) {
  if (!observed?.length) return [];
  return [heading("Observations"), scrollable("observers", "Observations", ...observed.map((state) =>
    element("li", { "data-status": state.status },
      element("span", { class: "observer", dir: "auto" }, state.observer),
      element("span", { class: "status" }, state.status),
      element("span", { class: "latency" }, state.age_s === null ? "at an unknown time" : age(state.age_s)),
      ...codeElements(state.code),
      element("span", { class: "message", dir: "auto" }, state.reason))))];
}

function transitionList(service, list) {
  if (!list) return emptyText("Loading failed.");
  if (!list.length) return emptyText(service.transitions ? "None in history." : "None yet.");
  return scrollable("transitions", "Status changes", ...list.map((transition) =>
    element("li", { "data-status": transition.after ?? "" },
      timeElement(transition.at),
      element("span", { class: "status" }, transition.after ?? transition.kind),
      ...codeElements(transition.code),
      element("span", { class: "message", dir: "auto" }, transitionText(transition)))));
}

function transitionText({ kind, before, reason }) {
  const change = kind === "status" && before ? `was ${before}` : kind.replace("_", " ");
  return reason ? `${change}: ${reason}` : change;
}
