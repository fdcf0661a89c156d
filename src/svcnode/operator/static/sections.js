// Puts sections that the server has rendered in place: everything inside the element with the id of the section.

import { byId } from "./state.js";

const FOCUSABLE = "a, button, summary, [tabindex]";
const waiting = new Map(); // new contents of sections in which the user selects text

// The server links to documents, which need no script; here, they are views of the page.
export function useViews(root) {
  for (const link of root.querySelectorAll("a[href^='page/timeline?']")) {
    const service = new URLSearchParams(link.search).get("id");
    link.setAttribute("href", `#${new URLSearchParams({ service })}`);
  }
  for (const link of root.querySelectorAll("a[data-all]")) link.setAttribute("href", "#");
}

export function putSection(name, source) {
  const section = byId(name);
  if (!section) return; // of a newer server
  waiting.delete(name);
  if (isSelectingIn(section)) waiting.set(name, source);
  else replaceContents(section, source);
}

export function putWaitingSections() {
  for (const [name, source] of waiting) putSection(name, source);
}

function isSelectingIn(section) {
  const selection = getSelection();
  return !selection.isCollapsed && section.contains(selection.anchorNode);
}

// Open parts stay.
function replaceContents(section, source) {
  const open = new Set([...section.querySelectorAll("details[id][open]")].map(({ id }) => id));
  replaceChildren(section, source.childNodes);
  useViews(section);
  for (const part of section.querySelectorAll("details[id]")) part.open ||= open.has(part.id);
}

// The focus stays on what looks the same, or at its position.
export function replaceChildren(section, children) {
  const focused = section.contains(document.activeElement) ? document.activeElement : null;
  const position = [...section.querySelectorAll(FOCUSABLE)].indexOf(focused);
  section.replaceChildren(...children);
  if (!focused) return;
  const choices = [...section.querySelectorAll(FOCUSABLE)];
  const same = choices.find((choice) => keyOf(choice) === keyOf(focused)) ?? choices[Math.min(position, choices.length - 1)];
  same?.focus({ preventScroll: true });
}

const keyOf = (element) => element.id || element.getAttribute("href") || element.ariaLabel || element.textContent;
