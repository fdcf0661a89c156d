// The groups of services: each has a heading, and can be collapsed.

import { escapeInvisible } from "./format.js";
import { byId, groups, main, services, setText, view } from "./state.js";

export function readGroups() {
  for (const row of main.querySelectorAll("tr.group")) addGroup(row.dataset.group, row);
}

function addGroup(name, row) {
  const group = { name, row, button: row.querySelector("button"), isToggled: false };
  groups.set(name, group);
  return group;
}

// The heading of a group that is new is a copy of the one that the server has rendered for this.
export function groupOf(name) {
  if (groups.has(name)) return groups.get(name);
  const row = byId("group-template").content.firstElementChild.cloneNode(true);
  row.id = `q=${name}`;
  row.dataset.group = name;
  setText(row.querySelector("button"), escapeInvisible(name));
  return addGroup(name, row);
}

// A filter shows all matching services.
const isFiltering = () => view.status !== "" || view.q.trim() !== "";
const isCollapsed = ({ isToggled }) => !isFiltering() && view.areGroupsCollapsed !== isToggled;

export function toggleGroup(name) {
  groups.get(name).isToggled = !groups.get(name).isToggled;
}

// Services in no group come first; the groups follow in the order of their first service. Returns services and headings.
export function arrangeGroups(sorted) {
  const members = new Map([["", []]]);
  for (const service of sorted) {
    if (!members.has(service.group)) members.set(service.group, [groupOf(service.group)]);
    members.get(service.group).push(service);
  }
  return [...members.values()].flat();
}

// Shows the services that match the filter, and the headings of their groups.
export function showMatching() {
  const shown = new Set();
  for (const service of services.values()) {
    const group = groups.get(service.group);
    if (service.isMatching) shown.add(group);
    setHidden(service, !service.isMatching || (group !== undefined && isCollapsed(group)));
  }
  for (const group of groups.values()) setHidden(group, !shown.has(group));
}

function setHidden({ row, panel }, isHidden) {
  if (row.hidden !== isHidden) row.hidden = isHidden;
  if (panel) panel.hidden = isHidden;
}

export function paintGroups() {
  const counts = new Map();
  for (const { group, status } of services.values()) {
    if (!counts.has(group)) counts.set(group, {});
    counts.get(group)[status] = (counts.get(group)[status] ?? 0) + 1;
  }
  for (const [name, group] of groups) {
    if (counts.has(name)) paintGroup(group, counts.get(name));
    else removeGroup(group);
  }
  byId("toggle-groups").hidden = groups.size === 0;
  setText(byId("toggle-groups"), view.areGroupsCollapsed ? "Expand groups" : "Collapse groups");
}

function paintGroup(group, counts) {
  group.button.disabled = isFiltering();
  group.button.setAttribute("aria-expanded", String(!isCollapsed(group)));
  for (const total of group.row.querySelectorAll("[data-status]")) {
    const number = counts[total.dataset.status] ?? 0;
    total.hidden = number === 0;
    setText(total.firstChild, `${number} ${total.dataset.status}`);
  }
}

function removeGroup({ name, row }) {
  groups.delete(name);
  row.remove();
}
