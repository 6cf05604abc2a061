const lag = (v, n) => {
  const m = v.nodes.find(o => v.target && o.addr === v.target.name);
  return m && !none(m.offset) && !none(n.offset) ? Math.max(0, m.offset - n.offset) : null;
};
// One sentence that says how a service is, the worst first.
const verdict = v => {
  if (!v.target) return ["bad", `${v.name}: no master. New clients wait; ${v.traffic.sessions_waiting} are waiting now.`];
  if (v.gate !== "open") return ["warn", `${v.name}: traffic is held${none(v.held_s) ? "" : " for " + span(v.held_s)}: a failover is under way, or an operator paused it.`];
  if (v.minority) return ["warn", `${v.name} leads to ${v.target.name}, but the sentinels in reach are a minority.`];
  if (v.disagreement) return ["warn", `${v.name} leads to ${v.target.name}, and the sentinels disagree.`];
  if (!v.sentinels.some(n => n.up)) return ["warn", `${v.name} leads to ${v.target.name}; no sentinel can be heard.`];
  return ["good", `${v.name} leads to ${v.target.name}`];
};
const topology = v => {
  const S = v.sentinels, master = v.target && v.target.name;
  const nodes = v.nodes.slice().sort((a, b) => (b.addr === master) - (a.addr === master));
  const rows = Math.max(S.length, nodes.length, 2), H = 30 + rows * 62;
  const words = `${S.filter(n => n.up).length} of ${S.length} sentinels are heard; this proxy leads to ${master || "nothing"}; nodes: ` +
    nodes.map(n => `${n.addr} ${n.role}`).join(", ");
  const s = draw("svg", { viewBox: `0 0 770 ${H}`, role: "img", "aria-label": words });
  const y = (i, of) => 20 + (i + .5) * (H - 30) / Math.max(of, 1);
  const box = (x, at, w, title, below, cls) => {
    s.append(draw("rect", { class: "box " + cls, x, y: at - 23, width: w, height: 46, rx: 6 }),
      draw("text", { x: x + 9, y: at - 3 }, title.length > 27 ? title.slice(0, 26) + "…" : title),
      draw("text", { class: "small", x: x + 9, y: at + 14 }, below.length > 34 ? below.slice(0, 33) + "…" : below));
  };
  const at = new Map(nodes.map((n, i) => [n.addr, y(i, nodes.length)])), mid = y(0, 1);
  if (master && at.has(master)) {
    s.append(draw("path", { class: "track" + (v.gate === "open" ? "" : " shut"), d: `M455 ${mid} C495 ${mid} 500 ${at.get(master)} 540 ${at.get(master)}` }));
    nodes.filter(n => n.role === "replica").forEach(n =>
      s.append(draw("path", { class: "wire", d: `M748 ${at.get(master) + 8} C764 ${at.get(master) + 20} 764 ${at.get(n.addr) - 10} 748 ${at.get(n.addr)}` })));
  }
  S.forEach((n, i) => {
    const from = y(i, S.length);
    s.append(draw("path", { class: "wire" + (n.disagrees ? " odd" : ""), d: `M215 ${from} C250 ${from} 260 ${mid} 290 ${mid}` }));
    box(5, from, 210, n.addr, n.problem || (n.up ? (n.disagrees ? `says ${n.says} at ${n.epoch}` : `agrees, epoch ${n.epoch ?? "–"}`) : "not heard"), n.up && !n.problem ? (n.disagrees ? "odd" : "on") : "off");
  });
  box(290, mid, 165, "this proxy", `${v.traffic.sessions_open} sessions, gate ${v.gate}`, v.gate === "open" && v.target ? "on" : "off");
  nodes.forEach(n => {
    const behind = lag(v, n), follows = n.role === "replica" && !none(behind) ? `, ${count(behind)} bytes behind` : "";
    box(540, at.get(n.addr), 208, n.addr, (n.addr === master ? "the master" : n.role) + follows, n.addr === master ? "on" : n.pong ? "" : "off");
  });
  return scrolled(s, `Picture of ${v.name}`);
};
const story = v => {
  const list = make("ol", undefined, "story");
  for (const f of v.failovers.slice().reverse()) {
    const li = make("li");
    li.append(make("b", `${f.from ? f.from + " → " : ""}${f.to}`), make("span", ` ${span(f.age_s)} ago, epoch ${f.epoch}, by ${f.basis}`, "soft"));
    const before = [f.suspected_ms, f.held_ms, f.switched_ms, 0].map(t => none(t) ? 0 : t), whole = Math.max(...before, 0);
    if (whole > 0) {
      const bar = make("div", undefined, "bar"); bar.setAttribute("aria-hidden", "true");
      const cuts = [whole, Math.min(whole, before[1] || before[2]), before[2], 0];
      for (let i = 0; i < 3; i++) {
        const part = make("i", undefined, "p" + i); part.style.width = `${Math.max(0, cuts[i] - cuts[i + 1]) / whole * 100}%`; bar.append(part);
      }
      li.append(bar);
    }
    const parts = [];
    if (!none(f.suspected_ms)) parts.push(`first sign ${millis(f.suspected_ms)} before`);
    if (!none(f.held_ms)) parts.push(`held for ${millis(f.held_ms)}`);
    if (!none(f.switched_ms)) parts.push(`first switch ${millis(f.switched_ms)} before`);
    if (!none(f.verified_ms)) parts.push(`verified in ${millis(f.verified_ms)}`);
    if (!none(f.first_session_ms)) parts.push(`first session ${millis(f.first_session_ms)} after`);
    if (!none(f.lost_bytes)) parts.push(f.lost_bytes ? `${count(f.lost_bytes)} bytes of the old master's history lost` : "nothing of the old master's history lost");
    li.append(make("div", parts.join(" · ")));
    list.append(li);
  }
  if (!v.failovers.length) list.append(make("li", "none yet", "soft"));
  return list;
};
const HISTORY = [["sessions", "Sessions", count], ["commands", "Commands a second", count], ["p99_ms", "Latency, 99th percentile", millis], ["bytes", "Bytes a second", count]];
const plots = h => {
  const box = make("div", undefined, "plots"), moves = [];
  h.generation.forEach((g, i) => { if (i && g !== h.generation[i - 1] && !none(g)) moves.push(i); });
  for (const [key, name, unit] of HISTORY) if (h[key]) box.append(plot(name, h[key], unit, moves));
  return box;
};
const mark = (cls, text) => make("td", text, cls);
const details = v => [
  table(`Sentinels of ${v.name}`, ["Sentinel", "State", "Names", "Epoch", "Heard"], v.sentinels.map(n => [n.addr,
    mark(n.up && !n.problem && !n.disagrees ? "good" : n.up ? "warn" : "bad", n.problem || (n.up ? (n.disagrees ? "disagrees" : n.events ? "up" : "up, polled only") : "not heard")),
    n.says, n.epoch, none(n.age_s) ? "–" : span(n.age_s) + " ago"])),
  table(`Redis nodes of ${v.name}`, ["Node", "Role", "Behind", "Offset", "Asked"], v.nodes.map(n => [n.addr,
    mark(n.pong ? "good" : "bad", n.problem || (v.target && n.addr === v.target.name ? "master, in force" : n.role)),
    n.role === "replica" ? count(lag(v, n)) + " bytes" : "–", n.offset, none(n.age_s) ? "–" : span(n.age_s) + " ago"])),
];
const sections = new Map();
const section = v => {
  let e = sections.get(v.name);
  if (!e) {
    e = { root: make("section"), line: make("p"), live: make("div") };
    const h = make("h2", v.name); h.id = "service-" + sections.size;
    e.root.setAttribute("aria-labelledby", h.id);
    e.root.append(h, e.line, e.live);
    document.getElementById("services").append(e.root);
    sections.set(v.name, e);
  }
  return e;
};
const show = (s, history) => {
  say(document.getElementById("process"), `version ${s.version}, up ${span(s.uptime_s)}, ${s.phase}, ${s.ready ? "ready" : "not ready: " + s.not_ready_because.join("; ")}, ${s.drain.open} sessions`);
  const order = ["bad", "warn", "good"], all = s.services.map(verdict).sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
  const leaving = s.phase !== "serving" ? `This proxy is ${s.phase}: ${s.drain.open} sessions are left. ` : "";
  const worst = all[0] || ["warn", "no service"], calm = worst[0] === "good" && all.length > 1;
  say(document.getElementById("verdict"), leaving + (calm ? `All ${all.length} services lead to their masters.` : worst[1]), "verdict " + (leaving ? "warn" : worst[0]));
  for (const v of s.services) {
    const e = section(v), [cls, text] = verdict(v), h = history.services.find(o => o.name === v.name);
    say(e.line, `${text}${v.target ? `, for ${span(v.target.age_s)}, epoch ${v.target.epoch}` : ""}. ${v.traffic.sessions_open} of ${v.traffic.sessions_limit} sessions, ${v.traffic.sessions_waiting} waiting; a majority is ${v.quorum.majority} of ${v.quorum.voters} sentinels.`, cls);
    // Whoever reads or scrolls here is not disturbed: places are kept, contents are new.
    const focus = document.activeElement && e.live.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    const scroll = [...e.live.querySelectorAll(".scroll")].map(o => o.scrollLeft);
    e.live.replaceChildren(topology(v), ...(h ? [make("h3", `The last ${span(h.seconds)}`), plots(h)] : []),
      make("h3", "Moves of the points"), story(v), ...details(v));
    e.live.querySelectorAll(".scroll").forEach((o, i) => { o.scrollLeft = scroll[i] || 0; if (focus === o.getAttribute("aria-label")) o.focus({ preventScroll: true }); });
  }
  for (const [name, e] of sections) if (!s.services.some(v => v.name === name)) { e.root.remove(); sections.delete(name); }
};
const get = async path => { const r = await fetch(path, { signal: AbortSignal.timeout(5000) }); return r.json(); };
const turn = async () => {
  const answers = await Promise.all([get("/status"), get("/history")]).catch(() => null);
  if (answers) show(...answers);
  else say(document.getElementById("verdict"), "No answer from the process; what stands below is old.", "verdict bad");
};
// A fault of this page must not stop it.
const look = () => turn().catch(e => console.error(e)).then(() => setTimeout(look, document.hidden ? 10000 : 1000));
look();
