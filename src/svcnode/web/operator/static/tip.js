// One bar in detail: under the pointer, the finger, or the arrow keys.

import { indexAt, pointAt } from "./charts.js";
import { sayBar } from "./rows.js";
import { byId, element, services } from "./state.js";

const tip = byId("tip");
const STEPS = {
  ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -1000, End: 1000,
};
let pointed = null;
let pointedTop = 0;

const serviceOf = (chart) => services.get(chart.closest("tr").dataset.id);

export function showTip(chart, index = Infinity) {
  const service = serviceOf(chart);
  if (!service?.bars.length) return;
  if (pointed !== chart) hideTip();
  pointed = chart;
  const bars = service.row.querySelector(".bars");
  const at = Math.max(0, Math.min(service.bars.length - 1, index));
  const { heading, lines } = sayBar(bars, service, at);
  pointAt(bars, at, service.bars);
  const said = lines.map(([kind, words]) => element("span", { class: kind }, words));
  tip.replaceChildren(element("b", {}, heading), ...said);
  tip.hidden = false;
  place(chart.getBoundingClientRect(), (at + 0.5) / service.bars.length);
}

function place(box, part) {
  const middle = box.left + part * box.width;
  const left = Math.min(document.documentElement.clientWidth - tip.offsetWidth - 8, middle - tip.offsetWidth / 2);
  const above = box.top - tip.offsetHeight - 8;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${above < 8 ? box.bottom + 8 : above}px`;
  pointedTop = box.top;
}

export function hideTip() {
  if (pointed) pointAt(pointed.closest("tr").querySelector(".bars"), null, [0]);
  pointed = null;
  tip.hidden = true;
}

export function hideTipWhenScrolled() {
  if (pointed && pointed.getBoundingClientRect().top !== pointedTop) hideTip();
}

export function followPointer(event) {
  const chart = event.target.closest?.(".chart:not(.looks)");
  if (chart && serviceOf(chart)) showTip(chart, indexAt(chart, event.clientX, serviceOf(chart).bars));
  else if (document.activeElement !== pointed) hideTip();
}

export function stepThroughBars(event) {
  if (!(event.key in STEPS)) return;
  event.preventDefault();
  showTip(event.target, Number(event.target.getAttribute("aria-valuenow")) + STEPS[event.key]);
}
