// The replicas of a node on several machines: who is there, who checks how many services, who drains and is in maintenance.

import { count, duration, escapeInvisible } from "./format.js";
import { byId, element } from "./state.js";

export function paintReplicas(sharing) {
  if (!sharing) return; // the node is on one machine
  paintList("replica-list", sharing.replicas.map(replicaItem));
  paintList("work-list", sharing.work.map(workItem));
}

function paintList(id, items) {
  const list = byId(id);
  if (!list) return;
  const isSame = items.length === list.children.length && items.every((item, index) => item.isEqualNode(list.children[index]));
  if (!isSame) list.replaceChildren(...items);
}

function replicaItem({ name, url, checks, since, since_s: seen, software, is_self: isSelf }) {
  const shown = escapeInvisible(name);
  return element("li", {},
    element("b", { dir: "auto" }, url ? element("a", { href: url }, shown) : shown),
    element("span", {}, `checks ${count(checks, "service")}`),
    element("span", {}, "seen for ", element("time", { datetime: since }, duration(seen))),
    element("span", {}, `svcnode ${software}`),
    ...(isSelf ? [element("span", {}, "this one")] : []));
}

function workItem({ replica, kind, text }) {
  return element("li", {},
    element("b", { dir: "auto" }, replica === null ? "All replicas" : escapeInvisible(replica)),
    element("span", { ...(kind === "drain" && { class: "failing" }), dir: "auto" }, escapeInvisible(text)));
}
