"use strict";
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
// Only what changed is written, so that a screen reader is not told the same thing every second.
const say = (e, text, cls) => {
  if (e.textContent !== text) e.textContent = text;
  if (cls !== undefined && e.className !== cls) e.className = cls;
};
const none = v => v === null || v === undefined;
const span = s => none(s) ? "–" : s < 1 ? Math.round(s * 1000) + " ms" : s < 120 ? s.toFixed(1) + " s" : s < 7200 ? Math.round(s / 60) + " min" : s < 172800 ? (s / 3600).toFixed(1) + " h" : Math.round(s / 86400) + " days";
const millis = v => none(v) ? "–" : v < 10 ? v.toFixed(1) + " ms" : v < 10000 ? Math.round(v) + " ms" : (v / 1000).toFixed(1) + " s";
const count = v => none(v) ? "–" : v >= 1e9 ? (v / 1e9).toFixed(1) + " G" : v >= 1e6 ? (v / 1e6).toFixed(1) + " M" : v >= 1e4 ? (v / 1e3).toFixed(0) + " k" : String(Math.round(v * 10) / 10);
// What is too wide for a telephone is scrolled by itself, by keyboard too.
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
      if (i === 0) { const th = make("th", c); th.scope = "row"; tr.append(th); }
      else tr.append(c instanceof Node ? c : make("td", c ?? "–"));
    });
    t.append(tr);
  }
  return scrolled(t, caption);
};
const plot = (name, values, unit, moves) => {
  const f = make("figure"), c = make("figcaption");
  const known = values.filter(v => !none(v)), last = known.at(-1), most = Math.max(...known, 0);
  c.append(make("span", name), make("b", none(last) ? "–" : unit(last)));
  const s = draw("svg", { viewBox: "0 0 300 70", role: "img", "aria-label": `${name}: now ${none(last) ? "unknown" : unit(last)}, at most ${unit(most)}` });
  const x = i => values.length < 2 ? 300 : i * 300 / (values.length - 1), y = v => 66 - (most > 0 ? v / most * 46 : 0);
  let d = "", pen = false;
  values.forEach((v, i) => { if (none(v)) { pen = false; return; } d += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`; pen = true; });
  for (const at of moves) s.append(draw("line", { class: "moved", x1: x(at), x2: x(at), y1: 4, y2: 66 }));
  if (known.length > 1) s.append(draw("path", { class: "curve", d }));
  s.append(draw("text", { class: "small", x: 2, y: 11 }, `up to ${unit(most)}`));
  f.append(c, s);
  return f;
};
