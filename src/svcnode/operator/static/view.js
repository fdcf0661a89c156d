// The view: what is filtered, sorted and collapsed. It is saved in the fragment of the URL for bookmarks and links.

import { SHARED } from "./format.js";
import { COLUMNS, sortAndFilter } from "./order.js";
import { RESOLUTIONS, TIMELINE_PARAMETERS, byId, main, now, view } from "./state.js";

// A node that started less than 90 minutes ago has little history.
const defaultResolution = () => (now() - Date.parse(main.dataset.started) < 90 * 60000 ? "minutes" : "hours");

export function saveView() {
  const params = new URLSearchParams();
  if (view.q) params.set("q", view.q);
  if (view.status) params.set("status", view.status);
  if (view.sort !== "status" || view.isDescending) params.set("sort", (view.isDescending ? "-" : "") + view.sort);
  if (view.areGroupsCollapsed) params.set("groups", "collapsed");
  if (view.resolution !== defaultResolution()) params.set("resolution", view.resolution);
  for (const name in TIMELINE_PARAMETERS) if (view[name]) params.set(name, view[name]);
  history.replaceState(null, "", `#${params}`);
}

export function restoreView() {
  const params = new URLSearchParams(location.hash.slice(1));
  const known = (value, allowed, fallback) => (Object.hasOwn(allowed, value) ? value : fallback);
  const sort = params.get("sort") ?? "";
  Object.assign(view, {
    q: params.get("q") ?? "",
    status: known(params.get("status"), SHARED.status_order, ""),
    sort: known(sort.replace(/^-/, ""), COLUMNS, "status"),
    isDescending: sort.startsWith("-"),
    areGroupsCollapsed: params.get("groups") === "collapsed",
    resolution: known(params.get("resolution"), RESOLUTIONS, defaultResolution()),
  });
  for (const [name, pattern] of Object.entries(TIMELINE_PARAMETERS)) view[name] = params.get(name)?.match(pattern)?.[0] ?? "";
  byId("filter").value = view.q;
  for (const name of ["status", "resolution"]) main.querySelector(`[name=${name}][value="${view[name]}"]`).checked = true;
  sortAndFilter();
}
