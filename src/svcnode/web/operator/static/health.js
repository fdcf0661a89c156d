// The node as a whole: health, title, icon, notices. What is shown must never be greener than what is known: when the
// node cannot be asked, or nothing was heard for a while, all turns grey, and only fresh news brings the colour back.

import { byId, element, line, main, node, setText } from "./state.js";
import { NOTHING, clockTime, inBrief } from "./words.js";

const LOST_AFTER_MS = 20000;
const ASLEEP_AFTER_MS = 90000; // browsers let a page that nobody sees run but once a minute

const HEALTHS = {
  200: ["healthy", "Healthy", "●"],
  206: ["partial", "Partially healthy", "◐"],
  503: ["unhealthy", "Unhealthy", "✖"],
};
const UNKNOWN = ["unknown", "Unknown", "○"];

// Something came that tells how the node is now. Returns whether it was lost until then.
export function heard() {
  const wasLost = line.isLost;
  Object.assign(line, { heardAt: Date.now(), isFailing: false, isLost: false });
  paintNode();
  return wasLost;
}

// A question was in vain. While the stream stands, that is one lost answer; without a stream, nothing tells any more
// that the node is there. A question from before the stream broke may have been cut off with it, by a node that is
// started anew: the next one tells.
export function askedInVain(wasStreaming) {
  line.isFailing = true;
  line.isLost ||= !wasStreaming && !line.isStreaming;
  judgeSilence();
}

export function judgeSilence() {
  const isPatient = document.hidden && !line.isFailing;
  const silence = Math.abs(Date.now() - line.heardAt); // a clock that was set back is no reason to trust
  line.isLost ||= silence > (isPatient ? ASLEEP_AFTER_MS : LOST_AFTER_MS);
  paintNode();
}

export function paintNode() {
  const [health, word, sign] = line.isLost ? UNKNOWN : HEALTHS[node.code];
  const why = line.isLost ? "Nothing is heard from the node." : inBrief(node.why);
  main.dataset.health = health;
  setText(byId("word"), word);
  setText(byId("why"), why);
  setText(byId("code"), line.isLost ? NOTHING : String(node.code));
  paintLine();
  const title = `${sign} ${node.name}: ${word.toLowerCase()}`;
  if (document.title === title) return;
  document.title = title;
  document.querySelector("link[rel=icon]").href = `static/${health}.svg`;
  setText(byId("told"), `${node.name} is ${word.toLowerCase()}. ${why}`);
}

function paintLine() {
  const asOf = clockTime(line.heardAt);
  const how = line.isStreaming ? "live" : line.isFailing ? "trying again" : "every few seconds";
  setText(byId("live-label"), line.isLost ? "As of" : "Updates");
  setText(byId("live"), line.isLost ? asOf : how);
  byId("live").className = line.isStreaming && !line.isLost ? "live" : "";
  byId("lost").hidden = !line.isLost;
  if (line.isLost) setText(byId("lost"), `Connection lost: what stands here is as of ${asOf}. Trying again.`);
}

export function paintNotices({ history_problem: history, reload_problem: reload }) {
  const said = [
    history && `History: ${history}`,
    reload && `The configuration was not reloaded, the old one is in force: ${reload}`,
  ].filter(Boolean);
  if (byId("notices").textContent === said.join("")) return;
  byId("notices").replaceChildren(...said.map((words) => element("p", { class: "notice", dir: "auto" }, words)));
}
