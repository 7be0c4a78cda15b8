// Makes elements. What comes from a job is text to this module, never markup: nothing on the page parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children. `on...` attributes are listeners; null and false leave one out. */
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same, of SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set an element's text, if it is another one: an unchanged element costs no layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A message in the place of content that cannot be shown. */
export function notice(title, text, bad = false) {
  return h("div", { class: bad ? "notice bad" : "notice", role: "alert" }, h("strong", {}, title), h("p", {}, text));
}

/** A labelled field to search with; `/` leads to it. `changed` gets its text when typing pauses. */
export function searchField(label, value, changed) {
  let timer = 0;
  const input = h("input", {
    type: "search",
    placeholder: label,
    "aria-label": label,
    autocomplete: "off",
    spellcheck: "false",
    maxlength: "200",
    value,
    oninput: () => {
      clearTimeout(timer);
      timer = setTimeout(() => changed(input.value), 150);
    },
  });
  return h("div", { class: "search" }, input, h("kbd", { "aria-hidden": "true" }, "/"));
}
