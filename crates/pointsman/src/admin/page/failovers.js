// The failovers of a service, the plots of the last minutes, and the tables of sentinels and nodes.
const DECIDED_BY = { majority: "a majority of the sentinels", single_sentinel: "one sentinel, uncontradicted", reconfirmed: "the same master, confirmed again", epoch_regression: "a majority at an older epoch", bootstrap_minority: "the best view at the start, without a majority", operator: "an operator's order" };
// Replication bytes that the old master had and the new one lacks. The count includes Redis' own pings, and offsets are
// sampled, so as much as one second of traffic proves no lost write.
const unreplicated = (f, h) => {
  if (none(f.lost_bytes)) return ["unknown"];
  if (!f.lost_bytes) return ["0 bytes"];
  const at = h && h.bytes ? h.bytes.length - 1 - Math.round(f.age_s / 2) : -1;
  const rate = at < 0 ? 0 : Math.max(0, ...h.bytes.slice(Math.max(0, at - 15), at + 1).filter(v => !none(v)));
  const text = `about ${count(f.lost_bytes)} bytes (estimate)`;
  return f.lost_bytes > Math.max(1024, rate) ? [text, "bad"] : [text];
};
// The phases from the first sign of failure to the first session, to scale.
const phases = f => {
  const before = f.duration_ms ?? f.held_ms ?? 0, held = Math.min(f.held_ms ?? 0, before), after = f.first_session_ms ?? 0;
  const parts = [["detection", before - held, "detection"], ["held", held, "traffic held"], ["connect", after, "until the first session"]], whole = before + after;
  if (whole <= 0) return [];
  const bar = make("div", undefined, "bar"), key = make("p", undefined, "key");
  bar.setAttribute("aria-hidden", "true"); key.setAttribute("aria-hidden", "true");
  for (const [cls, time, name] of parts) if (time > 0) {
    const part = make("i", undefined, cls), word = make("span", `${name} ${millis(time)}`, cls);
    part.style.width = `${time / whole * 100}%`; bar.append(part); key.append(word, " ");
  }
  return [bar, key];
};
const failover = (f, h) => {
  const li = make("li");
  li.append(make("b", f.from ? (f.from === f.to ? `${f.to} confirmed again` : `${f.from} → ${f.to}`) : `First master: ${f.to}`), make("span", ` ${clock(f.age_s)}, ${span(f.age_s)} ago`, "soft"));
  const pairs = [["Generation", String(f.generation)], ["Epoch", String(f.epoch)], ["Decided by", DECIDED_BY[f.decided_by] || f.decided_by]];
  if (f.from) {
    li.append(...phases(f));
    if (!none(f.duration_ms)) pairs.push(["Duration", millis(f.duration_ms)]);
    if (!none(f.held_ms)) pairs.push(["Traffic held", millis(f.held_ms)]);
    if (!none(f.switched_ms)) pairs.push(["Switched", `${millis(f.switched_ms)} after the majority`]);
    if (!none(f.verified_ms)) pairs.push(["Verified in", millis(f.verified_ms)]);
    pairs.push(["First session", none(f.first_session_ms) ? "none yet" : `${millis(f.first_session_ms)} later`], ["Not replicated", ...unreplicated(f, h)]);
  }
  li.append(facts(pairs));
  return li;
};
const failovers = (v, h) => {
  const list = make("ol", undefined, "failovers");
  list.append(...v.failovers.slice().reverse().map(f => failover(f, h)));
  if (!v.failovers.length) list.append(make("li", "none yet", "soft"));
  return list;
};
const HISTORY = [["sessions", "Sessions", count], ["commands", "Commands/s", count], ["new_sessions", "New sessions/s", count], ["p99_ms", "Latency, p99", millis], ["bytes", "Bytes/s", count]];
const plots = h => {
  const all = make("div", undefined, "plots"), switches = [];
  h.generation.forEach((g, i) => { if (i && g !== h.generation[i - 1] && !none(g)) switches.push(i); });
  for (const [key, name, unit] of HISTORY) if (h[key]) all.append(plot(name, h[key], unit, switches, h.seconds));
  return all;
};
const words = counts => Object.entries(counts || {}).filter(([word, n]) => n && word !== "ordinary").sort((a, b) => b[1] - a[1])
  .map(([word, n]) => `${count(n)} ${word.replaceAll("_", " ")}`).join(", ");
// Connections to Redis that sessions share; nothing if the service shares none.
const sharing = (t, of) => {
  const s = t.shared, pairs = [];
  if (!s) return pairs;
  pairs.push([`Sharing${of}`, `${many(s.sessions, "session", "sessions")} on ${many(s.connections, "connection", "connections")}${s.mode === "shared" ? "" : ", until they end"}`],
    [`Own connection${of}`, many(s.sessions_dedicated, "session", "sessions")]);
  if (!none(s.requests_per_write)) pairs.push([`Requests per write${of}`, count(s.requests_per_write)]);
  if (words(s.promotions)) pairs.push([`Got their own connection${of}`, `${words(s.promotions)}; ${count(s.returns)} returned`]);
  if (s.connections_by_table.built_in) pairs.push([`Without the server's table of commands${of}`, many(s.connections_by_table.built_in, "connection", "connections"), "warn"]);
  if (s.sessions_lost) pairs.push([`Lost with a shared connection${of}`, many(s.sessions_lost, "session", "sessions"), "warn"]);
  if (s.desyncs) pairs.push([`Mismatched replies${of}`, many(s.desyncs, "shared connection", "shared connections"), "bad"]);
  return pairs;
};
const totals = v => {
  const t = v.traffic, ended = Object.entries(t.sessions_closed).filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
  const pairs = [["Sessions", `${count(t.sessions_open)} of ${count(t.sessions_limit)}`], ["Waiting", count(t.sessions_waiting), t.sessions_waiting ? "warn" : ""],
    ["Carried over", count(t.sessions_carried)], ["Refused", count(t.sessions_refused), t.sessions_refused ? "warn" : ""],
    ["Connection errors", count(t.dial_errors), t.dial_errors ? "warn" : ""], ["Majority", `${v.electorate.majority} of ${v.electorate.voters}`]];
  if (v.readers) pairs.push(["Readers", many(v.readers.traffic.sessions_open, "session", "sessions")], ["Replicas serving", `${count(v.readers.eligible)} of ${v.replicas.length}`, v.readers.eligible ? "" : "warn"]);
  pairs.push(...sharing(t, ""), ...(v.readers ? sharing(v.readers.traffic, " (readers)") : []));
  const pinned = words(t.sessions_by_state), uncarried = words(t.sessions_not_carried);
  if (pinned) pairs.push(["Would close at a failover", pinned]);
  if (uncarried) pairs.push(["Not carried over", uncarried]);
  if (ended.length) pairs.push(["Ended", ended.map(([reason, n]) => `${count(n)} ${reason.replaceAll("_", " ")}`).join(", ")]);
  return facts(pairs);
};
const mark = (cls, text) => make("td", text, cls);
const details = v => {
  const heads = ["Node", "Role", "Sessions", "Failed connections", "Failed probes", ...(v.readers ? ["Lag", "Readers"] : []), "Offset", "Probed"];
  const rank = n => isMaster(v, n) ? 0 : 1;
  const role = n => n.problem || [rank(n) ? n.role : `${n.role}, in force`, ...(v.candidate === n.addr ? ["candidate"] : []), ...(replies(n) && !n.pong ? [`answers ${n.ping}`] : [])].join(", ");
  const state = n => { const it = serves(v, n); return it ? mark(it.state === "eligible" ? "good" : "warn", it.state.replaceAll("_", " ")) : "–"; };
  const nodes = v.nodes.slice().sort((a, b) => rank(a) - rank(b)).map(n => [n.addr,
    mark(n.problem || !replies(n) ? "bad" : n.pong ? "good" : "warn", role(n)), count(n.sessions),
    mark(n.failed_connects ? "warn" : "", count(n.failed_connects)), count(n.failed_probes),
    ...(v.readers ? [none(lag(v, n)) ? "–" : count(lag(v, n)) + " bytes", state(n)] : []),
    none(n.offset) ? "–" : String(n.offset), none(n.age_s) ? "–" : span(n.age_s) + " ago"]);
  return [
    table("Sentinels", ["Sentinel", "State", "Master", "Epoch", "Last answer"], v.sentinels.map(n => [n.addr,
      mark(n.up && !n.problem && !n.disagrees ? "good" : n.up ? "warn" : "bad", n.problem || (n.up ? (n.disagrees ? "disagrees" : (n.events ? "agrees" : "agrees, polled only") + (n.tls ? `, TLS ${n.tls}` : "")) : "unreachable")),
      n.master, none(n.epoch) ? "–" : String(n.epoch), none(n.age_s) ? "–" : span(n.age_s) + " ago"])),
    table("Redis nodes", heads, nodes),
    ...((v.alarms || []).length ? [table("Alarms", ["Alarm", "State", "Sentinels", "Began"], v.alarms.slice().reverse().map(n => [n.message,
      n.on ? mark("warn", "on") : mark("good", `ended ${span(n.ended_s)} ago`), n.sentinels.join(", "), span(n.age_s) + " ago"]))] : []),
  ];
};
