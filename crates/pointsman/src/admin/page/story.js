// What happened: the moves of the points, the plots of the last minutes, and the tables.
const BASIS = { Majority: "a majority of the sentinels", Solo: "one sentinel that nobody contradicted", Again: "the same master, back again", Regress: "a majority that insisted on an older epoch", BootstrapMinority: "the best view at the start, without a majority" };
const lost = f => none(f.lost_bytes) ? ["not known"] : f.lost_bytes ? [`about ${count(f.lost_bytes)} bytes`, "bad"] : ["nothing"];
// From the first sign to the first session, to scale: traffic to the old master, held, held no more.
const phases = f => {
  const before = f.suspected_ms ?? f.held_ms ?? 0, shut = Math.min(f.held_ms ?? 0, before), after = f.first_session_ms ?? 0;
  const parts = [["looked", before - shut, "suspected"], ["shut", shut, "held"], ["moved", after, "until the first session"]], whole = before + after;
  if (whole <= 0) return [];
  const bar = make("div", undefined, "bar"), key = make("p", undefined, "key");
  bar.setAttribute("aria-hidden", "true"); key.setAttribute("aria-hidden", "true");
  for (const [cls, time, name] of parts) if (time > 0) {
    const part = make("i", undefined, cls), word = make("span", `${name} ${millis(time)}`, cls);
    part.style.width = `${time / whole * 100}%`; bar.append(part); key.append(word, " ");
  }
  return [bar, key];
};
const move = f => {
  const li = make("li");
  li.append(make("b", f.from ? (f.from === f.to ? `${f.to} again` : `${f.from} → ${f.to}`) : `Found ${f.to}`), make("span", ` ${clock(f.age_s)}, ${span(f.age_s)} ago`, "soft"));
  const pairs = [["Generation", String(f.generation)], ["Epoch", String(f.epoch)], ["Decided by", BASIS[f.basis] || f.basis]];
  if (f.from) {
    li.append(...phases(f));
    if (!none(f.suspected_ms)) pairs.push(["First sign", `${millis(f.suspected_ms)} before`]);
    if (!none(f.held_ms)) pairs.push(["Held for", millis(f.held_ms)]);
    if (!none(f.switched_ms)) pairs.push(["Moved", `${millis(f.switched_ms)} after the majority`]);
    if (!none(f.verified_ms)) pairs.push(["Verified in", millis(f.verified_ms)]);
    pairs.push(["First session", none(f.first_session_ms) ? "none yet" : `${millis(f.first_session_ms)} after`], ["History lost", ...lost(f)]);
  }
  li.append(facts(pairs));
  return li;
};
const story = v => {
  const list = make("ol", undefined, "story");
  list.append(...v.failovers.slice().reverse().map(move));
  if (!v.failovers.length) list.append(make("li", "none yet", "soft"));
  return list;
};
const HISTORY = [["sessions", "Sessions", count], ["commands", "Commands a second", count], ["p99_ms", "Latency, 99th percentile", millis], ["bytes", "Bytes a second", count]];
const plots = h => {
  const all = make("div", undefined, "plots"), moves = [];
  h.generation.forEach((g, i) => { if (i && g !== h.generation[i - 1] && !none(g)) moves.push(i); });
  for (const [key, name, unit] of HISTORY) if (h[key]) all.append(plot(name, h[key], unit, moves, h.seconds));
  return all;
};
const totals = v => {
  const t = v.traffic, ended = Object.entries(t.sessions_closed).filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
  const pairs = [["Sessions", `${count(t.sessions_open)} of ${count(t.sessions_limit)}`], ["Waiting", count(t.sessions_waiting), t.sessions_waiting ? "warn" : ""],
    ["Carried over", count(t.sessions_carried)], ["Refused", count(t.sessions_refused), t.sessions_refused ? "warn" : ""],
    ["Dial errors", count(t.dial_errors), t.dial_errors ? "warn" : ""], ["Majority", `${v.quorum.majority} of ${v.quorum.voters}`]];
  if (v.readers) pairs.push(["Readers", many(v.readers.traffic.sessions_open, "session", "sessions")], ["Replicas serving", `${count(v.readers.eligible)} of ${v.replicas.length}`, v.readers.eligible ? "" : "warn"]);
  const words = counts => Object.entries(counts || {}).filter(([word, n]) => n && word !== "ordinary").sort((a, b) => b[1] - a[1])
    .map(([word, n]) => `${count(n)} ${word.replaceAll("_", " ")}`).join(", ");
  const pinned = words(t.sessions_by_state), uncarried = words(t.sessions_not_carried);
  if (pinned) pairs.push(["Closed at a failover", pinned]);
  if (uncarried) pairs.push(["Not carried over", uncarried]);
  if (ended.length) pairs.push(["Ended", ended.map(([reason, n]) => `${count(n)} ${reason.replaceAll("_", " ")}`).join(", ")]);
  return facts(pairs);
};
const mark = (cls, text) => make("td", text, cls);
const details = v => {
  const serves = n => v.replicas.find(r => r.addr === n.addr), heads = ["Node", "Role", "Behind", "Offset", "Asked"];
  const inForce = n => v.target && n.addr === v.target.name ? 0 : 1;
  const nodes = v.nodes.slice().sort((a, b) => inForce(a) - inForce(b)).map(n => [n.addr,
    mark(n.pong && !n.problem ? "good" : "bad", n.problem || (inForce(n) ? n.role : `${n.role}, in force`)),
    n.role === "replica" && !none(lag(v, n)) ? count(lag(v, n)) + " bytes" : "–", none(n.offset) ? "–" : String(n.offset), none(n.age_s) ? "–" : span(n.age_s) + " ago",
    ...(v.readers ? [serves(n) ? mark(serves(n).state === "eligible" ? "good" : "warn", serves(n).state === "eligible" ? many(serves(n).sessions, "reader", "readers") : serves(n).state.replaceAll("_", " ")) : "–"] : [])]);
  return [
    table("Sentinels", ["Sentinel", "State", "Names", "Epoch", "Heard"], v.sentinels.map(n => [n.addr,
      mark(n.up && !n.problem && !n.disagrees ? "good" : n.up ? "warn" : "bad", n.problem || (n.up ? (n.disagrees ? "disagrees" : n.events ? "agrees" : "agrees, polled only") : "not heard")),
      n.says, none(n.epoch) ? "–" : String(n.epoch), none(n.age_s) ? "–" : span(n.age_s) + " ago"])),
    table("Redis nodes", v.readers ? [...heads, "Readers"] : heads, nodes),
  ];
};
