// What was tried for each notification target, and the result.

import { age, count, duration } from "./format.js";
import { byId, element } from "./state.js";

export function paintNotifications(targets) {
  const items = targets.map((target) => element("li", {}, element("b", { dir: "auto" }, target.target), ...facts(target)));
  const contents = items.length ? [element("h2", {}, "Notifications"), element("ul", {}, ...items)] : [];
  const section = element("section", { id: "notifications", class: "facts-list" }, ...contents);
  if (!section.isEqualNode(byId("notifications"))) byId("notifications").replaceWith(section);
}

function* facts({ last_attempt: attempt, last_delivery: delivery, waiting_since: waiting, error, failures_in_a_row: failures, retry_in_s: retry }) {
  if (!attempt) return yield fact("no message so far");
  if (!error) return yield delivery ? fact("delivered ", timeAgo(delivery)) : fact("first attempt under way");
  yield element("span", { class: "failing", dir: "auto" }, "failed ", timeAgo(attempt), `: ${error}`);
  yield fact(`${count(failures, "failure")} in a row`);
  if (retry !== null) yield fact(retry >= 1 ? `next attempt in ${duration(retry)}` : "next attempt now");
  if (waiting) yield fact(`a message has waited for ${duration(waiting.age_s)}`);
  yield delivery ? fact("last delivery ", timeAgo(delivery)) : fact("none delivered so far");
}

const fact = (...children) => element("span", {}, ...children);
const timeAgo = ({ at, age_s: seconds }) => element("time", { datetime: at }, age(seconds));
