// What is known of the connection, and how the page says it. The page must never show a better health than is known: if a
// request fails or nothing is received for a while, everything turns grey until new data arrives. It says "live" only while
// it shows every change that it was told of.

import { byId, connection, main, setText } from "./state.js";
import { EMPTY_CELL, SHARED, duration, utcText } from "./format.js";

const LOST_AFTER_MS = 20000;
const LOST_AFTER_HIDDEN_MS = 90000; // browsers run the timers of a hidden page only once a minute
const BEHIND_AFTER_MS = 2000;

const MODE_LABELS = { live: "live", polling: "every 5 s", retrying: "retrying" };
const UNKNOWN = ["Unknown", "○"];

// Data about the current state arrived.
export function markReceived() {
  Object.assign(connection, { receivedAt: Date.now(), isFailing: false, isLost: false });
  paintNode();
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
  const { health: known, code } = byId("health-label").dataset;
  const health = connection.isLost ? "unknown" : known;
  const [label, symbol] = connection.isLost ? UNKNOWN : SHARED.healths[known];
  main.dataset.health = health;
  byId("headline").hidden = connection.isLost;
  byId("lost-headline").hidden = !connection.isLost;
  setText(byId("health-code"), connection.isLost ? EMPTY_CELL : code);
  paintConnection();
  paintTitle(health, `${symbol} ${main.dataset.name}: ${label.toLowerCase()}`, label);
}

function paintTitle(health, title, label) {
  if (document.title === title) return;
  document.title = title;
  document.querySelector("link[rel=icon]").href = `static/${health}.${SHARED.static_hash}.svg`;
  const reason = byId(connection.isLost ? "lost-reason" : "health-reason").textContent;
  setText(byId("announcement"), `${main.dataset.name} is ${label.toLowerCase()}. ${reason}`);
}

function currentMode(behind) {
  if (connection.isLost) return "lost";
  if (connection.isFailing) return "retrying";
  if (behind > BEHIND_AFTER_MS) return "behind";
  return connection.isStreaming ? "live" : "polling";
}

function paintConnection() {
  const asOf = utcText(connection.receivedAt, connection.receivedAt);
  const behind = connection.behindSince ? Date.now() - connection.behindSince : 0;
  const mode = currentMode(behind);
  const label = { lost: asOf, behind: `${duration(behind / 1000)} behind`, ...MODE_LABELS }[mode];
  main.dataset.connection = mode;
  setText(byId("updates-label"), connection.isLost ? "As of" : "Updates");
  setText(byId("updates"), label);
  setText(byId("state-at"), utcText(connection.receivedAt)); // on paper
  byId("connection-lost").hidden = mode !== "lost";
  byId("connection-behind").hidden = mode !== "behind";
  if (mode === "lost") setText(byId("connection-lost"), `Connection lost. Last update: ${asOf}. Retrying.`);
}
