// The health of the node: headline, title, icon, notices. The page must never show a better health than is known: if a
// request fails or nothing is received for a while, everything turns grey until new data arrives.

import { byId, element, connection, main, node, setText } from "./state.js";
import { EMPTY_CELL, SHARED, clockTime, shortenWords } from "./format.js";

const LOST_AFTER_MS = 20000;
const LOST_AFTER_HIDDEN_MS = 90000; // browsers run the timers of a hidden page only once a minute

const MODE_LABELS = { live: "live", polling: "every 5 s", retrying: "retrying" };
const UNKNOWN = ["unknown", "Unknown", "○"];

// Data about the current state arrived. Returns whether the connection was lost before.
export function markReceived() {
  const wasLost = connection.isLost;
  Object.assign(connection, { receivedAt: Date.now(), isFailing: false, isLost: false });
  paintNode();
  return wasLost;
}

// With an open event stream, one failed request is only a lost response. Without a stream the node counts as lost. A
// request that began while the stream was open may have been aborted together with it, by a restart of the node: the next
// request decides.
export function markFailed(wasStreaming) {
  connection.isFailing = true;
  connection.isLost ||= !wasStreaming && !connection.isStreaming;
  checkFreshness();
}

export function checkFreshness() {
  const isThrottled = document.hidden && !connection.isFailing;
  const silence = Math.abs(Date.now() - connection.receivedAt); // absolute: the clock may have been set back
  connection.isLost ||= silence > (isThrottled ? LOST_AFTER_HIDDEN_MS : LOST_AFTER_MS);
  paintNode();
}

export function paintNode() {
  const [health, label, symbol] = connection.isLost ? UNKNOWN : SHARED.healths[node.health];
  const reason = connection.isLost ? "No response from the node." : shortenWords(node.reason);
  main.dataset.health = health;
  setText(byId("health-label"), label);
  setText(byId("health-reason"), reason);
  setText(byId("health-code"), connection.isLost ? EMPTY_CELL : String(node.health));
  paintConnection();
  const title = `${symbol} ${node.name}: ${label.toLowerCase()}`;
  if (document.title === title) return;
  document.title = title;
  document.querySelector("link[rel=icon]").href = `static/${health}.svg`;
  setText(byId("announcement"), `${node.name} is ${label.toLowerCase()}. ${reason}`);
}

function paintConnection() {
  const asOf = clockTime(connection.receivedAt);
  const mode = connection.isStreaming ? "live" : connection.isFailing ? "retrying" : "polling";
  main.dataset.connection = connection.isLost ? "lost" : mode;
  setText(byId("updates-label"), connection.isLost ? "As of" : "Updates");
  setText(byId("updates"), connection.isLost ? asOf : MODE_LABELS[mode]);
  byId("connection-lost").hidden = !connection.isLost;
  if (connection.isLost) setText(byId("connection-lost"), `Connection lost. Last update: ${asOf}. Retrying.`);
}

export function paintNotices(problems) {
  const texts = Object.fromEntries(Object.entries(problems).map(([key, problem]) => [key, problem?.text ?? problem]));
  texts.sharing = problems.sharing?.problem;
  const shown = Object.entries(SHARED.notices).filter(([key]) => texts[key]);
  const notices = shown.map(([key, label]) => `${label}: ${texts[key]}`);
  if (byId("notices").textContent === notices.join("")) return;
  byId("notices").replaceChildren(...notices.map((text) => element("p", { class: "notice", dir: "auto" }, text)));
}
