// Polls status and history every second, four times as often during a failover, and updates what changed.
const at = id => document.getElementById(id);
const narrow = matchMedia("(max-width: 44rem)"), sections = new Map();
let answers = null, answered = 0, frozen = false;
const section = v => {
  let e = sections.get(v.name);
  if (!e) {
    e = { root: make("section"), head: make("h2"), line: make("p"), since: make("p", undefined, "since"), more: make("details"), live: make("div") };
    e.head.id = "service-" + sections.size; e.head.tabIndex = -1;
    e.root.setAttribute("aria-labelledby", e.head.id);
    e.summary = make("summary", "Details");
    e.more.append(e.summary, e.live);
    // With many services, the details of healthy ones are collapsed.
    e.more.open = answers[0].services.length <= 3;
    e.more.addEventListener("toggle", () => { if (e.more.open) fill(e, answers[0].services.find(o => o.name === v.name), answers[1]); });
    e.root.append(e.head, e.line, e.since, e.more);
    at("services").append(e.root);
    sections.set(v.name, e);
  }
  return e;
};
// Replaces the contents and keeps focus and scroll positions.
const replace = (root, ...children) => {
  const focus = document.activeElement && root.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") || document.activeElement.textContent : null;
  const scroll = [...root.querySelectorAll(".scroll")].map(o => o.scrollLeft);
  root.replaceChildren(...children);
  root.querySelectorAll(".scroll").forEach((o, i) => { o.scrollLeft = scroll[i] || 0; });
  if (focus !== null) for (const o of root.querySelectorAll("a, button, .scroll")) if ((o.getAttribute("aria-label") || o.textContent) === focus) { o.focus({ preventScroll: true }); break; }
};
const fill = (e, v, history) => {
  if (!v || !e.more.open) return;
  const h = history.services.find(o => o.name === v.name);
  const of = list => { list.forEach(o => o.setAttribute("aria-label", `${o.getAttribute("aria-label")} of ${v.name}`)); return list; };
  replace(e.live, topology(v, narrow.matches), totals(v), ...(h && h.seconds ? [make("h3", `The last ${span(h.seconds)}`), plots(h)] : []),
    make("h3", "Failovers"), failovers(v, h), ...of(details(v)));
};
// With many services, only the sections that were asked for are shown.
const MANY = 8, LINES = 16;
const link = (v, e) => {
  const a = make("a", v.name);
  a.href = "#" + e.head.id;
  a.addEventListener("click", () => { e.asked = true; e.root.hidden = false; e.more.open = true; });
  return a;
};
// The process decides on the verdicts; this is how they look.
const LOOKS = { fault: ["bad", "✕"], warning: ["warn", "!"], ok: ["good", "✓"] };
const looks = verdict => { const [cls, sign] = LOOKS[verdict.severity]; return [cls, `${sign} ${verdict.text}`]; };
const ORDER = Object.keys(LOOKS);
let unfolded = false;
// With several services: one line each, the most severe first. With many: one line for all that have the same verdict, and only the first lines.
const overview = (s, history) => {
  const many = s.services.length > MANY && !unfolded, groups = new Map();
  for (const v of s.services.slice().sort((a, b) => ORDER.indexOf(a.verdict.severity) - ORDER.indexOf(b.verdict.severity))) {
    const key = many ? v.verdict.text : v.name;
    if (groups.has(key)) groups.get(key).push(v); else groups.set(key, [v]);
  }
  const all = [...groups.values()], shown = many ? all.slice(0, LINES) : all, rest = all.slice(shown.length).reduce((sum, of) => sum + of.length, 0);
  const of = ([v, ...more]) => { const e = make("span"); e.append(link(v, section(v)), more.length ? ` and ${more.length} more` : ""); return e; };
  const total = list => list.some(none) ? null : list.reduce((a, b) => a + b, 0);
  const one = group => {
    const [cls, text] = looks(group[0].verdict), last = key => total(group.map(v => { const h = history.services.find(o => o.name === v.name); return h && h[key].at(-1); }));
    return [of(group), mark(cls, text), count(total(group.map(v => v.traffic.sessions_open))), count(last("new_sessions")), count(last("commands")), millis(group.length > 1 ? null : last("p99_ms"))];
  };
  const parts = [];
  if (narrow.matches) {
    const list = make("ul");
    list.append(...shown.map(group => { const li = make("li"), [cls, text] = looks(group[0].verdict); li.append(of(group), make("span", text, "line " + cls)); return li; }));
    parts.push(list);
  } else parts.push(table("Services", ["Service", "State", "Sessions", "New per second", "Commands per second", "p99"], shown.map(one)));
  if (many && (rest || all.length < s.services.length)) {
    const button = make("button", rest ? `Show all ${s.services.length} services, ${rest} more` : `Show all ${s.services.length} services`);
    button.type = "button";
    button.addEventListener("click", () => { unfolded = true; show(...answers); });
    parts.push(button);
  }
  return parts;
};
const show = (s, history) => {
  say(at("process"), `version ${s.version} · up ${span(s.uptime_s)} · ${s.phase}, ${s.ready ? "ready" : "not ready"} · ${many(s.drain.open, "session", "sessions")}`);
  const [cls, first] = looks(s.verdict);
  say(at("verdict"), first, "verdict " + cls);
  const list = at("notices");
  while (list.children.length > s.notices.length) list.lastChild.remove();
  s.notices.forEach((it, i) => { const [cls, text] = looks(it); if (!list.children[i]) list.append(make("li")); say(list.children[i], text, cls); });
  document.title = `${LOOKS[s.verdict.severity][1]} Pointsman`;
  for (const v of s.services) {
    const e = section(v), [cls, text] = looks(v.verdict);
    say(e.head, v.master_name && v.master_name !== v.name ? `${v.name} (master ${v.master_name})` : v.name);
    say(e.line, text, cls);
    // That of the only service is above.
    e.line.hidden = s.services.length === 1;
    e.root.hidden = s.services.length > MANY && !e.asked;
    say(e.since, `${v.target ? `${v.target.name} for ${span(v.target.age_s)}, epoch ${v.target.epoch}, generation ${v.generation}. ` : ""}Listening on ${v.listen.join(", ")}.`);
    if (cls !== "good" && e.was === "good") e.more.open = true;
    e.was = cls;
    fill(e, v, history);
  }
  for (const [name, e] of sections) if (!s.services.some(v => v.name === name)) { e.root.remove(); sections.delete(name); }
  if (s.services.length > 1) replace(at("overview"), ...overview(s, history)); else at("overview").replaceChildren();
};
// Shows the age of the data, prominently if it is outdated.
const age = () => {
  const old = answers ? (performance.now() - answered) / 1000 : null, gone = old === null ? performance.now() > 3000 : old > 3 && !frozen;
  document.body.classList.toggle("stale", gone);
  if (gone) {
    say(at("verdict"), `${LOOKS.fault[1]} No answer from the process${old === null ? "." : ` since ${clock(old)}; the data below is outdated.`}`, "verdict bad");
    document.title = `${LOOKS.fault[1]} Pointsman: no answer`;
  }
  say(at("age"), old === null ? "" : frozen ? `frozen at ${clock(old)}` : gone ? `${span(old)} old` : "live", gone || frozen ? "warn" : "soft");
};
const get = async path => { const r = await fetch(path, { signal: AbortSignal.timeout(5000) }); return r.json(); };
const update = async () => {
  const received = await Promise.all([get("/status"), get("/history")]).catch(() => null);
  if (received && !frozen) { answers = received; answered = performance.now(); show(...received); }
};
const unsettled = () => answers && answers[0].services.some(v => v.gate !== "open" || v.state !== "stable");
// An error in this script must not stop the updates.
const poll = () => (frozen ? Promise.resolve() : update().catch(e => console.error(e))).then(() => { age(); setTimeout(poll, document.hidden ? 10000 : unsettled() ? 250 : 1000); });
at("freeze").addEventListener("click", () => { frozen = !frozen; at("freeze").setAttribute("aria-pressed", String(frozen)); age(); });
narrow.addEventListener("change", () => { if (answers) show(...answers); });
setInterval(age, 1000);
poll();
