// The node as a whole: health, title, icon, notices. What is shown must never be greener than what is known: when the
// node cannot be asked, or nothing was markReceived for a while, all turns grey, and only fresh news brings the colour back.

import { byId, element, connection, main, node, setText } from "./state.js";
import { EMPTY_CELL, clockTime, shortenWords } from "./format.js";

const LOST_AFTER_MS = 20000;
const LOST_AFTER_HIDDEN_MS = 90000; // browsers let a page that nobody sees run but once a minute

const HEALTHS = {
  200: ["healthy", "Healthy", "●"],
  206: ["partial", "Partially healthy", "◐"],
  503: ["unhealthy", "Unhealthy", "✖"],
};
const UNKNOWN = ["unknown", "Unknown", "○"];

// Something came that tells how the node is now. Returns whether it was lost until then.
export function markReceived() {
  const wasLost = connection.isLost;
  Object.assign(connection, { receivedAt: Date.now(), isFailing: false, isLost: false });
  paintNode();
  return wasLost;
}

// A question was in vain. While the stream stands, that is one lost answer; without a stream, nothing tells any more
// that the node is there. A question from before the stream broke may have been cut off with it, by a node that is
// started anew: the next one tells.
export function requestFailed(wasStreaming) {
  connection.isFailing = true;
  connection.isLost ||= !wasStreaming && !connection.isStreaming;
  checkFreshness();
}

export function checkFreshness() {
  const isThrottled = document.hidden && !connection.isFailing;
  const silence = Math.abs(Date.now() - connection.receivedAt); // a clock that was set back is no reason to trust
  connection.isLost ||= silence > (isThrottled ? LOST_AFTER_HIDDEN_MS : LOST_AFTER_MS);
  paintNode();
}

export function paintNode() {
  const [health, word, sign] = connection.isLost ? UNKNOWN : HEALTHS[node.code];
  const reason = connection.isLost ? "No response from the node." : shortenWords(node.reason);
  main.dataset.health = health;
  setText(byId("health-label"), word);
  setText(byId("reason"), reason);
  setText(byId("code"), connection.isLost ? EMPTY_CELL : String(node.code));
  paintConnection();
  const title = `${sign} ${node.name}: ${word.toLowerCase()}`;
  if (document.title === title) return;
  document.title = title;
  document.querySelector("link[rel=icon]").href = `static/${health}.svg`;
  setText(byId("announcement"), `${node.name} is ${word.toLowerCase()}. ${reason}`);
}

function paintConnection() {
  const asOf = clockTime(connection.receivedAt);
  const how = connection.isStreaming ? "live" : connection.isFailing ? "trying again" : "every few seconds";
  setText(byId("live-label"), connection.isLost ? "As of" : "Updates");
  setText(byId("live"), connection.isLost ? asOf : how);
  byId("live").className = connection.isStreaming && !connection.isLost ? "live" : "";
  byId("connection-lost").hidden = !connection.isLost;
  if (connection.isLost) setText(byId("connection-lost"), `Connection lost: what stands here is as of ${asOf}. Trying again.`);
}

export function paintNotices({ history_problem: history, reload_problem: reload }) {
  const messages = [
    history && `History: ${history}`,
    reload && `The configuration was not reloaded, the old one is in force: ${reload}`,
  ].filter(Boolean);
  if (byId("notices").textContent === messages.join("")) return;
  byId("notices").replaceChildren(...messages.map((text) => element("p", { class: "notice", dir: "auto" }, text)));
}
