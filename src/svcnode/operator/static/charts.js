// Availability bars and latency lines: two small drawings for each row, each of a few paths, however many bars it has.
// What is drawn is said as well: a drawing of bars is walked through with the arrow keys, and each bar has its words.

import { count, duration, latency, formatTimeRange } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const BARS = { width: 270, height: 22 };
const LINE = { width: 108, height: 18 };
const MIN_SEGMENT_PX = 6; // what was short is still seen

// A bar as /history tells it: [begin_s, up_s, initializing_s, down_s, checks, failures, mean_ms, max_ms].
const KINDS = [["down", 3], ["initializing", 2], ["up", 1]]; // from the bottom up
const knownSeconds = (bar) => bar[1] + bar[2] + bar[3];
export const meanLatency = (bar) => bar[6];

export function availability(bars) {
  const known = bars.reduce((sum, bar) => sum + knownSeconds(bar), 0);
  return known > 0 ? bars.reduce((sum, bar) => sum + bar[1], 0) / known : null;
}

function drawing(size, className, kinds) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", `chart ${className}`);
  svg.setAttribute("viewBox", `0 0 ${size.width} ${size.height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  for (const kind of kinds) {
    svg.appendChild(document.createElementNS(SVG, "path")).setAttribute("class", kind);
  }
  return svg;
}

function setPath(svg, kind, path) {
  svg.querySelector(`.${kind}`).setAttribute("d", path);
}

function box(...numbers) {
  const [x, y, width, height] = numbers.map((number) => number.toFixed(2));
  return `M${x} ${y}h${width}v${height}h-${width}z`;
}

function layout(bars) {
  const step = BARS.width / bars.length;
  return { step, width: Math.max(step - 1, step * 0.6) };
}

export function newBars() {
  const svg = drawing(BARS, "bars", ["unknown", "up", "initializing", "down", "cursor"]);
  svg.setAttribute("role", "slider"); // what the arrow keys move through
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("aria-valuemin", "0");
  return svg;
}

export function newLine() {
  const svg = drawing(LINE, "line", ["area", "stroke"]);
  svg.setAttribute("aria-hidden", "true"); // the same numbers are said by the bars
  return svg;
}

// Each bar is filled as far as its time has passed: what nobody knows is left pale, not coloured.
export function drawBars(svg, bars, length, fetchedAt) {
  const { step, width } = layout(bars);
  const paths = { unknown: "", up: "", initializing: "", down: "" };
  bars.forEach((bar, index) => {
    const passed = Math.max(1, Math.min(length, fetchedAt / 1000 - bar[0]), knownSeconds(bar));
    let top = BARS.height;
    paths.unknown += box(index * step, 0, width, BARS.height);
    for (const [kind, column] of KINDS) {
      if (bar[column] <= 0) continue;
      const height = Math.min(top, Math.max(MIN_SEGMENT_PX, (bar[column] / passed) * BARS.height));
      top -= height;
      paths[kind] += box(index * step, top, width, height);
    }
  });
  for (const [kind, path] of Object.entries(paths)) setPath(svg, kind, path);
}

// Through latencies in milliseconds, with null where there is none.
export function drawLine(svg, latencies) {
  const isLine = latencies.filter((one) => one !== null).length > 1; // one point is none
  const highest = Math.max(...latencies.map((one) => one ?? 0));
  const step = LINE.width / Math.max(1, latencies.length - 1);
  let [stroke, area, begin] = ["", "", null];
  const end = (index) => {
    if (begin !== null) area += `L${((index - 1) * step).toFixed(1)} ${LINE.height}L${begin} ${LINE.height}z`;
    begin = null;
  };
  latencies.forEach((one, index) => {
    if (one === null) return end(index);
    const x = (index * step).toFixed(1);
    const y = (LINE.height - 1.5 - (highest ? one / highest : 0) * (LINE.height - 3)).toFixed(1);
    stroke += `${begin === null ? "M" : "L"}${x} ${y}`;
    area += begin === null ? `M${x} ${LINE.height}L${x} ${y}` : `L${x} ${y}`;
    if (begin === null && (latencies[index + 1] ?? null) === null) stroke += "h1"; // alone
    begin ??= x;
  });
  end(latencies.length);
  setPath(svg, "stroke", isLine ? stroke : "");
  setPath(svg, "area", isLine ? area : "");
}

// Which bar is under the pointer.
export function indexAt(svg, x, bars) {
  const { left, width } = svg.getBoundingClientRect();
  return Math.max(0, Math.min(bars.length - 1, Math.floor(((x - left) / width) * bars.length)));
}

export function pointAt(svg, index, bars) {
  const { step, width } = layout(bars);
  setPath(svg, "cursor", index === null ? "" : box(index * step - 1, 0, width + 2, BARS.height));
}

// One bar in words: a heading, and lines that each have a kind (for the mark before it).
export function describeBar(bar, length, fetchedAt) {
  const passed = Math.max(0, Math.min(length, fetchedAt / 1000 - bar[0]));
  const unknown = passed - knownSeconds(bar);
  const lines = [["up", "Up"], ["initializing", "Initializing"], ["down", "Down"]]
    .map(([kind, word], column) => [kind, word, bar[column + 1]])
    .concat([["unknown", "Unknown", unknown > 1.5 || knownSeconds(bar) <= 0 ? unknown : 0]])
    .filter(([, , seconds]) => seconds > 0)
    .map(([kind, word, seconds]) => [kind, `${word} ${seconds < 1 ? "less than 1 s" : duration(Math.round(seconds))}`]);
  const [checks, failures, mean, longest] = bar.slice(4);
  if (checks) lines.push(["", `${count(checks, "check")}, ${failures} failed`]);
  if (mean !== null) lines.push(["", `Latency ${latency(mean)} on average, ${latency(longest)} at most`]);
  return { heading: formatTimeRange(bar[0] * 1000, length * 1000), lines };
}
