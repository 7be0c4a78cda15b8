// Draws where the key groups of a state live: a strip of all groups, coloured by owner, and the owners.

import { h, setText } from "./dom.js";
import { plural, visible } from "./format.js";

const COLOURS = 8;
/** A strip of more pieces would be thinner than what a screen shows. */
const MOST_PIECES = 512;
const MOST_OWNERS = 200;

export class KeyGroups {
  constructor() {
    this.strip = h("div", { class: "groups", role: "img" });
    this.owners = h("ul", { class: "owners" });
    this.count = h("span", { class: "note" });
    this.shown = "";
    this.element = h(
      "section",
      { class: "card", hidden: true },
      h("div", { class: "head" }, h("h2", {}, "Where the key groups live"), this.count),
      this.strip,
      this.owners,
    );
  }

  update({ max_parallelism: groups, owners }) {
    const layout = JSON.stringify([groups, owners]);
    if (layout === this.shown) return;
    this.shown = layout;
    this.element.hidden = false;
    const pieces = withGaps(owners, groups);
    const byOwner = Map.groupBy(pieces, (piece) => piece.owner);
    const colours = new Map([...byOwner.keys()].filter((owner) => owner).sort().map((owner, index) => [owner, index % COLOURS]));
    this.strip.replaceChildren(...pieces.slice(0, MOST_PIECES).map((piece) => this.piece(piece, colours)));
    this.owners.replaceChildren(...[...byOwner].slice(0, MOST_OWNERS).map(([owner, all]) => this.owner(owner, all, colours)));
    const text = `${plural(groups, "key group")} at ${plural(colours.size, "state server")}`;
    setText(this.count, text);
    this.strip.setAttribute("aria-label", `${text}, listed below`);
  }

  piece({ start, stop, owner }, colours) {
    const element = h("span", { title: `${rangeText(start, stop)}: ${owner ? visible(owner) : "no owner now"}` });
    element.style.flexGrow = stop - start;
    paint(element, owner, colours);
    return element;
  }

  owner(owner, pieces, colours) {
    const mark = h("i");
    paint(mark, owner, colours);
    const ranges = pieces.slice(0, 3).map(({ start, stop }) => rangeText(start, stop)).join(", ");
    return h(
      "li",
      {},
      mark,
      h("span", { class: "code cut" }, owner ? visible(owner) : "no owner now"),
      h("span", { class: "note" }, ranges + (pieces.length > 3 ? `, ${pieces.length - 3} more` : "")),
    );
  }
}

function paint(element, owner, colours) {
  if (owner) element.style.background = `var(--owner-${colours.get(owner)})`;
  else element.classList.add("owner-none");
}

function rangeText(start, stop) {
  return stop - start === 1 ? `${start}` : `${start}–${stop - 1}`;
}

/** The ranges of all owners, and of the groups that have none. */
function withGaps(owners, groups) {
  const pieces = [];
  let at = 0;
  for (const { start, stop, host, port } of owners) {
    if (start > at) pieces.push({ start: at, stop: start, owner: "" });
    pieces.push({ start, stop, owner: host.includes(":") ? `[${host}]:${port}` : `${host}:${port}` });
    at = stop;
  }
  if (at < groups) pieces.push({ start: at, stop: groups, owner: "" });
  return pieces;
}
