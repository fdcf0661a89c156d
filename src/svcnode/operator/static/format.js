// How times, latencies and shares are said: as page.py says them, so that nothing jumps when the page comes to life.

export const EMPTY_CELL = "–";

export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const [minutes, hours, days] = [60, 3600, 86400].map((length) => Math.floor(whole / length));
  if (minutes < 1) return `${whole} s`;
  if (hours < 1) return `${minutes} min`;
  if (days < 1) return `${hours} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
  return `${days} d${hours % 24 ? ` ${hours % 24} h` : ""}`;
}

export const ago = (seconds) => `${duration(seconds)} ago`;

export function latency(ms) {
  if (ms < 9.95) return `${ms.toFixed(1)} ms`;
  return ms < 999.5 ? `${ms.toFixed(0)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

// Rounded down: what was down for a second was not up for 100 % of the time.
export function percent(share) {
  if (share <= 0) return "0 %";
  return share >= 1 ? "100 %" : `${(Math.floor(share * 10000) / 100).toFixed(2)} %`;
}

// What would be unseen, or turn around what stands beside it, is escapeInvisible instead.
const INVISIBLE = /(?! )[\p{C}\p{Z}]/gu;
const ESCAPES = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

export function escapeInvisible(text) {
  return text.replace(INVISIBLE, (character) => {
    const code = character.codePointAt(0);
    const [letter, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return ESCAPES[character] ?? `\\${letter}${code.toString(16).padStart(digits, "0")}`;
  });
}

// Why a service is what it is. Where nothing has counted yet, what kept the newest check from counting says more.
export function displayReason({ reason, evidence }) {
  const isEvidenceNewer = reason === "no evidence yet" && evidence?.verdict === "unknown";
  return (isEvidenceNewer && evidence.reason) || reason;
}

// Without the rest of words that would fill the headline; they stand in full further down. What parts it from the next stays.
export const shortenWords = (text) => text.replace(/(\S{48})\S{16,}(?:([,;:])|\S)/gu, "$1…$2");

export const count = (number, one, many = `${one}s`) => `${number} ${number === 1 ? one : many}`;

const CLOCK = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const clock = new Intl.DateTimeFormat(undefined, { ...CLOCK, second: "2-digit" });
const minute = new Intl.DateTimeFormat(undefined, CLOCK);
const day = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });

const isToday = (time) => new Date(time).toDateString() === new Date().toDateString();

export const clockTime = (time) => clock.format(time);

// A moment as it stands in a list: the day only when it is not today's.
export const moment = (time) => (isToday(time) ? clock.format(time) : `${day.format(time)}, ${clock.format(time)}`);

// From when to when, for a bar that is so long.
export function formatTimeRange(begin, length) {
  if (length >= 86400e3) {
    // Days are those of UTC, so what stands here must be, too.
    return new Date(begin).toLocaleDateString(undefined, {
      weekday: "short", day: "numeric", month: "short", timeZone: "UTC",
    }) + " (UTC)";
  }
  const hours = `${minute.format(begin)} to ${minute.format(begin + length)}`;
  return isToday(begin) ? hours : `${day.format(begin)}, ${hours}`;
}
