// Brings the page to life. The server has made the whole table; here begins what keeps it true, and what people do with
// it. Parts: state.js what all share, live.js how it is kept true, health.js the node, rows.js the table, charts.js and
// tip.js the past, panel.js one service in detail, words.js how numbers are said.

import { paintNode } from "./health.js";
import { comeIntoView, learnAll, loadBars, lookCloser, readPage, tick } from "./live.js";
import { toggle } from "./panel.js";
import { COLUMNS, arrange, recall, remember } from "./rows.js";
import { SPANS, byId, main, services, setText, soon, view } from "./state.js";
import { followPointer, hideTip, hideTipWhenScrolled, showTip, stepThroughBars } from "./tip.js";

function choose(changes) {
  Object.assign(view, changes);
  remember();
  if ("span" in changes) showSpan();
  else arrange();
}

function showSpan() {
  setText(byId("share-head"), `Available, ${SPANS[view.span][0]}`);
  loadBars();
}

async function sortBy(column) {
  view.isDescending = view.sort === column ? !view.isDescending : COLUMNS[column][1];
  view.sort = column;
  remember();
  arrange();
  try {
    await learnAll(column);
  } catch {
    return; // what is known is in order already
  }
  arrange();
}

function showAll() {
  byId("filter").value = "";
  main.querySelector("[name=status][value='']").checked = true;
  choose({ q: "", status: "" });
}

function onClick(event) {
  const { target } = event;
  const row = target.closest("tr[data-id]");
  const isLink = target.closest("a[role=button]") !== null;
  if (target.closest("[data-sort]")) sortBy(target.closest("[data-sort]").dataset.sort);
  else if (target.id === "show-all") showAll();
  else if (row && !target.closest(".chart") && !(event.ctrlKey || event.metaKey || event.shiftKey)) {
    if (isLink) event.preventDefault();
    if (isLink || getSelection().isCollapsed) toggle(services.get(row.dataset.id));
  }
}

function onKey(event) {
  const { key, target } = event;
  const isFilter = target === byId("filter");
  if (key === "/" && !isFilter && !(event.ctrlKey || event.metaKey || event.altKey)) {
    event.preventDefault();
    byId("filter").focus();
  } else if (key === "Escape") {
    hideTip();
    if (isFilter) choose({ q: (target.value = "") });
  } else if (key === " " && target.matches("a[role=button]")) {
    event.preventDefault();
    target.click();
  } else if (target.matches(".bars")) {
    stepThroughBars(event);
  }
}

function recallAll() {
  recall();
  showSpan();
}

readPage();
for (const control of main.querySelectorAll("[disabled]")) control.disabled = false;
for (const control of main.querySelectorAll("#spans, .filter")) control.hidden = false;
main.classList.add("alive");
recallAll();
paintNode();
comeIntoView();
setInterval(tick, 1000);

addEventListener("sight", () => soon("look", lookCloser, 150)); // not at every row that flies by
addEventListener("hashchange", recallAll);
addEventListener("scroll", hideTipWhenScrolled, { passive: true });
document.addEventListener("visibilitychange", comeIntoView);
document.addEventListener("keydown", onKey);
main.addEventListener("click", onClick);
main.addEventListener("pointermove", followPointer, { passive: true });
main.addEventListener("pointerdown", followPointer, { passive: true });
main.addEventListener("focusin", ({ target }) => target.matches(".bars") && showTip(target));
main.addEventListener("focusout", hideTip);
main.addEventListener("animationend", ({ target }) => target.classList.remove("changed"));
byId("filter").addEventListener("input", ({ target }) => choose({ q: target.value }));
byId("statuses").addEventListener("change", ({ target }) => choose({ status: target.value }));
byId("spans").addEventListener("change", ({ target }) => choose({ span: target.value }));
