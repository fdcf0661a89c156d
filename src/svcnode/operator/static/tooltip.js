// One bar in detail: under the pointer, the finger, or the arrow keys.

import { indexAt, pointAt } from "./charts.js";
import { announceBar } from "./rows.js";
import { byId, element, services } from "./state.js";

const tooltip = byId("tooltip");
const STEPS = {
  ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -1000, End: 1000,
};
let activeChart = null;
let activeChartTop = 0;

const serviceOf = (chart) => services.get(chart.closest("tr").dataset.id);

export function showTooltip(chart, index = Infinity) {
  const service = serviceOf(chart);
  if (!service?.bars.length) return;
  if (activeChart !== chart) hideTooltip();
  activeChart = chart;
  const bars = service.row.querySelector(".bars");
  const at = Math.max(0, Math.min(service.bars.length - 1, index));
  const { heading, lines } = announceBar(bars, service, at);
  pointAt(bars, at, service.bars);
  const items = lines.map(([kind, text]) => element("span", { class: kind }, text));
  tooltip.replaceChildren(element("b", {}, heading), ...items);
  tooltip.hidden = false;
  setPosition(chart.getBoundingClientRect(), (at + 0.5) / service.bars.length);
}

function setPosition(box, part) {
  const middle = box.left + part * box.width;
  const left = Math.min(document.documentElement.clientWidth - tooltip.offsetWidth - 8, middle - tooltip.offsetWidth / 2);
  const above = box.top - tooltip.offsetHeight - 8;
  tooltip.style.left = `${Math.max(8, left)}px`;
  tooltip.style.top = `${above < 8 ? box.bottom + 8 : above}px`;
  activeChartTop = box.top;
}

export function hideTooltip() {
  if (activeChart) pointAt(activeChart.closest("tr").querySelector(".bars"), null, [0]);
  activeChart = null;
  tooltip.hidden = true;
}

export function hideTooltipOnScroll() {
  if (activeChart && activeChart.getBoundingClientRect().top !== activeChartTop) hideTooltip();
}

export function followPointer(event) {
  const chart = event.target.closest?.(".chart:not(.checks)");
  if (chart && serviceOf(chart)) showTooltip(chart, indexAt(chart, event.clientX, serviceOf(chart).bars));
  else if (document.activeElement !== activeChart) hideTooltip();
}

export function moveCursor(event) {
  if (!(event.key in STEPS)) return;
  event.preventDefault();
  showTooltip(event.target, Number(event.target.getAttribute("aria-valuenow")) + STEPS[event.key]);
}
