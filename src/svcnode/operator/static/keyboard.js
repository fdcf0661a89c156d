// The keyboard in the table. Each row is one tab stop, so Tab goes from row to row. Up, Down, Home and End go to another
// row, Left and Right to the parts of a row: its name, its tags and its bars. In the bars, Left, Right, Home and End
// move their cursor, and Escape returns to the name.

import { moveCursor } from "./charts.js";
import { main } from "./state.js";

const PARTS = "a, button:enabled, .bars";
const SIDEWAYS = { ArrowLeft: -1, ArrowRight: 1 };

const partsOf = (row) => [...row.querySelectorAll(PARTS)];
const rowOf = (part) => (part.matches(PARTS) ? part.closest(".chunk > tr:not(.expanded)") : null);

// The part that had the focus last is the tab stop of its row.
export function takeTabStop(target) {
  const row = rowOf(target);
  if (row) for (const part of partsOf(row)) part.setAttribute("tabindex", part === target ? 0 : -1);
}

export function moveFocus(event) {
  const { key, target } = event;
  const row = rowOf(target);
  if (!row || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  if (target.matches(".bars") && moveCursor(event)) return event.preventDefault();
  const next = key in SIDEWAYS ? partsOf(row)[partsOf(row).indexOf(target) + SIDEWAYS[key]] : partIn(rowFor(key, row), target);
  if (!next) return;
  event.preventDefault();
  next.focus();
}

function rowFor(key, row) {
  const rows = [...main.querySelectorAll(".chunk > tr:not(.expanded, [hidden])")].filter((one) => partsOf(one).length);
  const position = { ArrowUp: rows.indexOf(row) - 1, ArrowDown: rows.indexOf(row) + 1, Home: 0, End: rows.length - 1 }[key];
  return rows[position];
}

// From bars to bars, otherwise to the first part.
const partIn = (row, like) => row && ((like.matches(".bars") && row.querySelector(".bars")) || partsOf(row)[0]);
