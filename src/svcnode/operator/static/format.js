// Formats durations, latencies, shares and times as the server does, so that no text changes when the script starts.

// Texts and numbers that the server and the scripts use; page.py has them.
export const SHARED = JSON.parse(document.getElementById("node").dataset.shared);
export const EMPTY_CELL = SHARED.empty_cell;

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [minutes, hours, days] = [60, 3600, 86400].map((length) => Math.floor(whole / length));
  if (minutes < 1) return `${whole} s`;
  if (hours < 1) return `${minutes} min`;
  if (days < 1) return `${hours} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  return `${days} d${hours % 24 ? ` ${hours % 24} h` : ""}`;
}

export const age = (seconds) => `${duration(seconds)} ago`;

export function latency(ms) {
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  return ms < 999.5 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

// Rounded down, so that one second of downtime does not show as 100 %.
export function percent(share) {
  if (share <= 0) return "0 %";
  return share >= 1 ? "100 %" : `${(Math.floor(share * 10000) / 100).toFixed(2)} %`;
}

// Time in maintenance is left out of the share.
export function availabilityText({ availability, hasMaintenance }) {
  if (availability === null) return hasMaintenance ? "only maintenance" : EMPTY_CELL;
  return percent(availability) + (hasMaintenance ? " without maintenance" : "");
}

// Invisible and direction-changing characters are shown as escape sequences, as in the log.
const INVISIBLE = /(?! )[\p{C}\p{Z}]/gu;
const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

export function escapeInvisible(text) {
  return text.replace(INVISIBLE, (character) => {
    const code = character.codePointAt(0);
    const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return ESCAPES[character] ?? `\\${letter}${code.toString(16).padStart(digits, "0")}`;
  });
}

// Reason and code of the state. Before the first usable evidence: those of the last check, if it could not run.
export function displayReason({ reason, code, evidence }) {
  const isFromEvidence = code === "no_evidence" && evidence?.outcome === "unknown" && evidence.reason;
  return isFromEvidence ? { reason: evidence.reason, code: evidence.code } : { reason, code };
}

export const count = (number, singular, plural = `${singular}s`) => `${number} ${number === 1 ? singular : plural}`;

// Every time: "2026-01-01 12:00:00 UTC", and without the date if `now` is on the same day; as utc_text() in Python.
export function utcText(time, now) {
  const [day, clock] = new Date(time).toISOString().split("T");
  const isToday = now !== undefined && new Date(now).toISOString().startsWith(day);
  return `${isToday ? "" : `${day} `}${clock.slice(0, 8)} UTC`;
}

// "2026-01-01 12:00:00 to 13:00:00 UTC"; a whole day is "2026-01-01 UTC".
export function timeRangeText(begin, length) {
  const text = utcText(begin).replace(" UTC", "");
  return length >= 86400e3 ? `${text.slice(0, 10)} UTC` : `${text} to ${utcText(begin + length, begin)}`;
}
