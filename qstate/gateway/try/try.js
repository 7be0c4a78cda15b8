// The page that tries the API: a form for each operation of openapi.json. Answers are shown as text, never as HTML.
"use strict";

const MOST_SHOWN = 200_000;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function field(name, description, properties = {}, kind = "input") {
  const input = element(kind, { name, ...properties });
  return element("label", {}, name, element("small", { textContent: description }), input);
}

function queryOf(operation) {
  return operation.parameters.filter((parameter) => parameter.in === "query");
}

function formOf(path, method, operation) {
  const form = element("form");
  if (operation.description) {
    form.append(element("p", { className: "description", textContent: operation.description }));
  }
  for (const [, name] of path.matchAll(/{(\w+)}/g)) {
    form.append(field(name, "part of the path", { required: true }));
  }
  for (const parameter of queryOf(operation)) {
    const several = parameter.schema.type === "array";
    const description = several ? `${parameter.description} (here: one a line)` : parameter.description;
    form.append(field(parameter.name, description, {}, several ? "textarea" : "input"));
  }
  if (operation.requestBody) {
    form.append(field("body", "JSON", { value: '{"keys": []}' }, "textarea"));
  }
  const shown = element("pre", { hidden: true });
  form.append(element("button", { textContent: "Send" }), shown);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(path, method, operation, new FormData(form), shown);
  });
  return form;
}

function requestOf(path, method, operation, data) {
  const url = new URL(path.replace(/{(\w+)}/g, (_, name) => encodeURIComponent(data.get(name))), location.href);
  for (const { name, schema } of queryOf(operation)) {
    const texts = schema.type === "array" ? data.get(name).split("\n") : [data.get(name)];
    texts.filter((text) => text !== "").forEach((text) => url.searchParams.append(name, text));
  }
  const headers = {};
  const token = document.getElementById("token").value;
  if (token) headers.Authorization = `Bearer ${token}`;
  if (operation.requestBody) headers["Content-Type"] = "application/json";
  return [url, { method: method.toUpperCase(), headers, body: operation.requestBody ? data.get("body") : undefined }];
}

const running = new WeakMap();

async function send(path, method, operation, data, shown) {
  running.get(shown)?.abort();
  const stop = new AbortController();
  running.set(shown, stop);
  const [url, options] = requestOf(path, method, operation, data);
  const say = (text) => (shown.textContent = text.slice(-MOST_SHOWN));
  shown.hidden = false;
  say(`${options.method} ${url.pathname}${url.search}\n...`);
  try {
    const answer = await fetch(url, { ...options, signal: stop.signal });
    const tag = answer.headers.get("ETag");
    const head = `${options.method} ${url.pathname}${url.search}\n${answer.status}${tag ? ` ETag: ${tag}` : ""}\n\n`;
    if (/json/.test(answer.headers.get("Content-Type"))) say(head + indented(await answer.text()));
    else await showStream(answer, head, say, (id) => fetch(url, resumed(options, id, stop.signal)));
  } catch (error) {
    if (error.name !== "AbortError") say(`${options.method} ${url.pathname}\n${error}`);
  }
}

/** JSON with a line for each field. Numbers keep the digits that the gateway sent, where the browser gives them. */
function indented(text) {
  if (!JSON.rawJSON) return text;
  const sent = (_name, value, { source }) => (typeof value === "number" ? JSON.rawJSON(source) : value);
  return JSON.stringify(JSON.parse(text, sent), null, 2);
}

function resumed(options, id, signal) {
  return { ...options, headers: { ...options.headers, ...(id === null ? {} : { "Last-Event-ID": id }) }, signal };
}

/** Show a stream as it comes. It is closed while the page is hidden: a browser has six connections to a gateway for all
 * of its tabs. `open` opens it again after the event with an id. */
async function showStream(answer, text, say, open) {
  for (let id = null; ; answer = await open(id)) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const closed = until(true).then(() => reader.cancel());
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      text = (text + part.value).slice(-MOST_SHOWN);
      say(text);
    }
    if (!document.hidden) return;
    await closed;
    id = lastId(text) ?? id;
    text = `${text.slice(0, text.lastIndexOf("\n\n"))}\n\n(closed while the page was hidden)\n\n`;
    await until(false);
  }
}

/** The id of the last event that is whole. */
function lastId(text) {
  const whole = text.slice(0, text.lastIndexOf("\n\n"));
  return [...whole.matchAll(/^id: (.+)$/gm)].at(-1)?.[1];
}

/** Wait until the page is hidden, or until it can be seen. */
function until(hidden) {
  return new Promise((resolve) => {
    const look = () => {
      if (document.hidden !== hidden) return;
      document.removeEventListener("visibilitychange", look);
      resolve();
    };
    document.addEventListener("visibilitychange", look);
    look();
  });
}

async function show() {
  const operations = document.getElementById("operations");
  const api = await (await fetch("openapi.json")).json();
  operations.replaceChildren();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const title = element("summary", {}, element("b", { textContent: method.toUpperCase() }), `${path} `);
      title.append(element("span", { textContent: operation.summary }));
      operations.append(element("details", {}, title, formOf(path, method, operation)));
    }
  }
}

show();
