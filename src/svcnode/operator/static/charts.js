// The two charts of a row, availability bars and a latency line, and the tooltip of a bar. A chart has a fixed number of
// SVG paths, independent of the number of bars. The bars are a slider for keyboards and screen readers.

import { count, duration, latency, timeRangeText } from "./format.js";
import { byId, element, services } from "./state.js";

const SVG = "http://www.w3.org/2000/svg";
const BARS = { width: 270, height: 22 };
const LINE = { width: 108, height: 18 };
const MIN_SEGMENT_PX = 6; // keeps a short outage visible

// A bucket of /history: [begin_s, up_s, initializing_s, down_s, checks, failures, mean_ms, max_ms, maintenance_s].
const TIME_COLUMNS = [["down", 3], ["initializing", 2], ["up", 1], ["maintenance", 8]]; // from bottom to top
const knownSeconds = (bucket) => bucket[1] + bucket[2] + bucket[3];
const observedSeconds = (bucket) => knownSeconds(bucket) + bucket[8];
export const meanLatency = (bucket) => bucket[6];

export function availability(buckets) {
  const known = buckets.reduce((sum, bucket) => sum + knownSeconds(bucket), 0);
  return known > 0 ? buckets.reduce((sum, bucket) => sum + bucket[1], 0) / known : null;
}

export const hasMaintenance = (buckets) => buckets.some((bucket) => bucket[8] > 0);

// ---- drawing

function newChart(size, className, paths) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `chart ${className}`);
  svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  for (const name of paths) {
    svg.appendChild(document.createElementNS(SVG, "path")).setAttribute("class", name);
  }
  return svg;
}

function setPath(svg, name, path) {
  svg.querySelector(`.${name}`).setAttribute("d", path);
}

function box(...numbers) {
  const [x, y, width, height] = numbers.map((number) => number.toFixed(2));
  return `M${x} ${y}h${width}v${height}h-${width}z`;
}

function layout(buckets) {
  const step = BARS.width / buckets.length;
  return { step, width: Math.max(step - 1, step * 0.6) };
}

export function newBars() {
  const svg = newChart(BARS, "bars", ["unknown", "maintenance", "up", "initializing", "down", "cursor"]);
  svg.setAttribute("role", "slider");
  svg.setAttribute("tabindex", "-1");
  svg.setAttribute("aria-valuemin", "0");
  return svg;
}

export function newLine() {
  const svg = newChart(LINE, "line", ["area", "stroke"]);
  svg.setAttribute("aria-hidden", "true"); // the bars give the same numbers as text
  return svg;
}

// A bar is filled in proportion to its elapsed time; time without data stays in the colour of "unknown".
export function drawBars(svg, buckets, length, fetchedAt) {
  const { step, width } = layout(buckets);
  const paths = { unknown: "", maintenance: "", up: "", initializing: "", down: "" };
  buckets.forEach((bucket, index) => {
    const elapsed = Math.max(1, Math.min(length, fetchedAt / 1000 - bucket[0]), observedSeconds(bucket));
    let top = BARS.height;
    paths.unknown += box(index * step, 0, width, BARS.height);
    for (const [status, column] of TIME_COLUMNS) {
      if (bucket[column] <= 0) continue;
      const height = Math.min(top, Math.max(MIN_SEGMENT_PX, (bucket[column] / elapsed) * BARS.height));
      top -= height;
      paths[status] += box(index * step, top, width, height);
    }
  });
  for (const [name, path] of Object.entries(paths)) setPath(svg, name, path);
}

// Latencies in milliseconds; null is a gap in the line.
export function drawLine(svg, latencies) {
  const hasLine = latencies.filter((value) => value !== null).length > 1;
  const highest = Math.max(...latencies.map((value) => value ?? 0));
  const step = LINE.width / Math.max(1, latencies.length - 1);
  let [stroke, area, begin] = ["", "", null];
  const closeArea = (index) => {
    if (begin !== null) area += `L${((index - 1) * step).toFixed(1)} ${LINE.height}L${begin} ${LINE.height}z`;
    begin = null;
  };
  latencies.forEach((value, index) => {
    if (value === null) return closeArea(index);
    const x = (index * step).toFixed(1);
    const y = (LINE.height - 1.5 - (highest ? value / highest : 0) * (LINE.height - 3)).toFixed(1);
    stroke += `${begin === null ? "M" : "L"}${x} ${y}`;
    area += begin === null ? `M${x} ${LINE.height}L${x} ${y}` : `L${x} ${y}`;
    if (begin === null && (latencies[index + 1] ?? null) === null) stroke += "h1"; // a single point between gaps
    begin ??= x;
  });
  closeArea(latencies.length);
  setPath(svg, "stroke", hasLine ? stroke : "");
  setPath(svg, "area", hasLine ? area : "");
}

// ---- text of one bar

// A heading and lines of [status or "", text]; the tooltip marks lines that have a status.
function describeBar(bucket, length, fetchedAt) {
  const elapsed = Math.max(0, Math.min(length, fetchedAt / 1000 - bucket[0]));
  const unknown = elapsed - observedSeconds(bucket);
  const lines = [["up", "Up", 1], ["initializing", "Initializing", 2], ["down", "Down", 3], ["maintenance", "Maintenance", 8]]
    .map(([status, label, column]) => [status, label, bucket[column]])
    .concat([["unknown", "Unknown", unknown > 1.5 || observedSeconds(bucket) <= 0 ? unknown : 0]])
    .filter(([, , seconds]) => seconds > 0)
    .map(([status, label, seconds]) => [status, `${label} ${seconds < 1 ? "less than 1 s" : duration(Math.round(seconds))}`]);
  const [checks, failures, mean, longest] = bucket.slice(4, 8);
  if (checks) lines.push(["", `${count(checks, "check")}, ${failures} failed`]);
  if (mean !== null) lines.push(["", `Latency: mean ${latency(mean)}, maximum ${latency(longest)}`]);
  return { heading: timeRangeText(bucket[0] * 1000, length * 1000), lines };
}

export function setSliderValue(svg, { buckets, length, fetchedAt }, index) {
  const description = describeBar(buckets[index], length, fetchedAt);
  svg.setAttribute("aria-valuenow", index);
  svg.setAttribute("aria-valuetext", [description.heading, ...description.lines.map(([, text]) => text)].join(", "));
  return description;
}

// ---- tooltip, for mouse, touch and arrow keys

const tooltip = byId("tooltip");
const STEPS = {
  ArrowLeft: -1, ArrowRight: 1, PageDown: -10, PageUp: 10, Home: -1000, End: 1000,
};
let activeChart = null;
let activeChartTop = 0;

const serviceOf = (chart) => services.get(chart.closest("tr").dataset.id);
const barsOf = (chart) => chart.closest("tr").querySelector(".bars");

function barIndexAt(chart, x, buckets) {
  const { left, width } = chart.getBoundingClientRect();
  return Math.max(0, Math.min(buckets.length - 1, Math.floor(((x - left) / width) * buckets.length)));
}

function drawCursor(bars, index, buckets) {
  const { step, width } = layout(buckets);
  setPath(bars, "cursor", index === null ? "" : box(index * step - 1, 0, width + 2, BARS.height));
}

export function showTooltip(chart, requestedIndex = Infinity) {
  const service = serviceOf(chart);
  if (!service?.buckets.length) return;
  if (activeChart !== chart) hideTooltip();
  activeChart = chart;
  const bars = barsOf(chart);
  const index = Math.max(0, Math.min(service.buckets.length - 1, requestedIndex));
  const { heading, lines } = setSliderValue(bars, service, index);
  drawCursor(bars, index, service.buckets);
  const items = lines.map(([status, text]) => element("span", { class: status }, text));
  tooltip.replaceChildren(element("b", {}, heading), ...items);
  tooltip.hidden = false;
  moveTooltip(chart.getBoundingClientRect(), (index + 0.5) / service.buckets.length);
}

function moveTooltip(chartBox, fraction) {
  const middle = chartBox.left + fraction * chartBox.width;
  const left = Math.min(document.documentElement.clientWidth - tooltip.offsetWidth - 8, middle - tooltip.offsetWidth / 2);
  const above = chartBox.top - tooltip.offsetHeight - 8;
  tooltip.style.left = `${Math.max(8, left)}px`;
  tooltip.style.top = `${above < 8 ? chartBox.bottom + 8 : above}px`;
  activeChartTop = chartBox.top;
}

export function hideTooltip() {
  if (activeChart) drawCursor(barsOf(activeChart), null, [0]);
  activeChart = null;
  tooltip.hidden = true;
}

export const hideTooltipOf = (row) => activeChart && row.contains(activeChart) && hideTooltip();

export function hideTooltipOnScroll() {
  if (activeChart && activeChart.getBoundingClientRect().top !== activeChartTop) hideTooltip();
}

export function followPointer(event) {
  const chart = event.target.closest?.(".chart:not(.checks)");
  if (chart && serviceOf(chart)) showTooltip(chart, barIndexAt(chart, event.clientX, serviceOf(chart).buckets));
  else if (document.activeElement !== activeChart) hideTooltip();
}

// Returns whether the key is one of these.
export function moveCursor(event) {
  if (!(event.key in STEPS)) return false;
  showTooltip(event.target, Number(event.target.getAttribute("aria-valuenow")) + STEPS[event.key]);
  return true;
}
