"use strict";
// Helpers: elements, formatting, tables, plots.
const SVG = "http://www.w3.org/2000/svg";
const make = (tag, text, cls) => {
  const e = document.createElement(tag);
  if (text !== undefined && text !== null) e.textContent = text;
  if (cls) e.className = cls;
  return e;
};
const draw = (tag, attributes, text) => {
  const e = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  if (text !== undefined) e.textContent = text;
  return e;
};
// Writes only changes, so that a screen reader does not repeat the same text every second.
const say = (e, text, cls) => {
  if (e.textContent !== text) e.textContent = text;
  if (cls !== undefined && e.className !== cls) e.className = cls;
};
const none = v => v === null || v === undefined;
const span = s => none(s) ? "–" : s < 1 ? Math.round(s * 1000) + " ms" : s < 10 ? s.toFixed(1) + " s" : s < 120 ? Math.round(s) + " s"
  : s < 7200 ? Math.round(s / 60) + " min" : s < 172800 ? (s / 3600).toFixed(1) + " h" : Math.round(s / 86400) + " days";
const millis = v => none(v) ? "–" : v > 0 && v < .1 ? Math.round(v * 1000) + " µs" : v < 10 ? v.toFixed(1) + " ms" : v < 10000 ? Math.round(v) + " ms" : (v / 1000).toFixed(1) + " s";
const count = v => none(v) ? "–" : v >= 1e9 ? (v / 1e9).toFixed(1) + " G" : v >= 1e6 ? (v / 1e6).toFixed(1) + " M"
  : v >= 1e4 ? (v / 1e3).toFixed(0) + " k" : String(Math.round(v * 10) / 10);
const many = (n, one, more) => `${count(n)} ${n === 1 ? one : more}`;
// The time `age` seconds ago, by the reader's clock.
const clock = age => new Date(Date.now() - age * 1000).toLocaleString([], age < 43200 ? { timeStyle: "medium" } : { dateStyle: "short", timeStyle: "medium" });
// Shortens long names in the middle, since similar names differ at the ends.
const cut = (text, most) => text.length <= most ? text : text.slice(0, Math.ceil(most / 2) - 1) + "…" + text.slice(-Math.floor(most / 2));
// Breaks a text into lines, after a space, dot or dash if there is one in the second half; the last line is shortened.
const wrap = (text, most, lines) => {
  const all = [];
  while (text.length > most && all.length < lines - 1) {
    const at = Math.max(...[" ", ".", "-", ","].map(c => text.lastIndexOf(c, most - 1))) + 1, end = at > most / 2 ? at : most;
    all.push(text.slice(0, end).trim());
    text = text.slice(end).trim();
  }
  return [...all, cut(text, most)];
};
// A scrollable region for content that is too wide, usable by keyboard.
const scrolled = (content, name) => {
  const box = make("div", undefined, "scroll");
  box.tabIndex = 0; box.setAttribute("role", "region"); box.setAttribute("aria-label", name);
  box.append(content);
  return box;
};
const table = (caption, heads, rows) => {
  const t = make("table"), head = make("tr");
  t.append(make("caption", caption));
  for (const h of heads) { const th = make("th", h); th.scope = "col"; head.append(th); }
  t.append(head);
  for (const r of rows) {
    const tr = make("tr");
    r.forEach((c, i) => {
      if (i === 0) { const th = make("th"); th.append(c); th.scope = "row"; tr.append(th); }
      else tr.append(c instanceof Node ? c : make("td", c ?? "–"));
    });
    t.append(tr);
  }
  return scrolled(t, caption);
};
// Names with their values, in as many columns as fit.
const facts = pairs => {
  const list = make("dl", undefined, "facts");
  for (const [name, value, cls] of pairs) {
    const pair = make("div");
    pair.append(make("dt", name), make("dd", value, cls));
    list.append(pair);
  }
  return list;
};
// `switches` are the indices of samples after a master change; `seconds` is the age of the first sample.
const plot = (name, values, unit, switches, seconds) => {
  const f = make("figure"), c = make("figcaption");
  const known = values.filter(v => !none(v)), last = values.at(-1), most = Math.max(...known, 0);
  c.append(make("span", name), make("b", none(last) ? "–" : unit(last)));
  const label = known.length ? `now ${none(last) ? "unknown" : unit(last)}, maximum ${unit(most)} in ${span(seconds)}` : "nothing measured yet";
  const s = draw("svg", { viewBox: "0 0 300 86", role: "img", "aria-label": `${name}: ${label}` });
  const x = i => values.length < 2 ? 300 : i * 300 / (values.length - 1), y = v => 68 - (most > 0 ? v / most * 50 : 0);
  s.append(draw("line", { class: "axis", x1: 0, x2: 300, y1: 68, y2: 68 }));
  for (const at of switches) s.append(draw("line", { class: "switch", x1: x(at), x2: x(at), y1: 16, y2: 68 }));
  let d = "", pen = false;
  values.forEach((v, i) => { if (none(v)) { pen = false; return; } d += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`; pen = true; });
  if (known.length > 1) s.append(draw("path", { class: "curve", d }));
  s.append(draw("text", { class: "small", x: 2, y: 11 }, known.length ? `up to ${unit(most)}` : "nothing measured yet"));
  s.append(draw("text", { class: "small", x: 2, y: 83 }, `${span(seconds)} ago`), draw("text", { class: "small end", x: 298, y: 83 }, "now"));
  f.append(c, s);
  return f;
};
