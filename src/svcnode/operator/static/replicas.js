// The replicas of a node on several machines: who is there, and who checks how many services.

import { count, duration, escapeInvisible } from "./format.js";
import { byId, element } from "./state.js";

export function paintReplicas(sharing) {
  const list = byId("replica-list");
  if (!list || !sharing) return; // the node is on one machine
  const items = sharing.replicas.map(replicaItem);
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
