// What to say of a service, decided from the status alone. Each is a class (`bad`, `warn`, `good`) and a sentence.
const SIGNS = { bad: "✕", warn: "!", good: "✓" };
const ORDER = ["bad", "warn", "good"];
const lag = (v, n) => {
  const m = v.nodes.find(o => v.target && o.addr === v.target.name);
  return m && !none(m.offset) && !none(n.offset) ? Math.max(0, m.offset - n.offset) : null;
};
const waiting = v => v.traffic.sessions_waiting ? `; ${many(v.traffic.sessions_waiting, "client waits", "clients wait")}` : "";
const held = v => {
  const time = none(v.held_s) ? "" : ` for ${span(v.held_s)}`;
  if (v.state === "armed" || v.state === "committing") return ["warn", `Held${time}: a failover is under way${waiting(v)}.`];
  if (v.state === "unconfirmed") return ["warn", `Held${time}: the master may have been replaced; waiting for the sentinels to confirm it${waiting(v)}.`];
  if (v.state === "no_master") return ["bad", `Held${time}: no node can be verified as the master${waiting(v)}.`];
  if (v.minority) return ["bad", `Held${time}: the sentinels in reach are a minority${waiting(v)}.`];
  return ["warn", `Held${time} by an operator's order${waiting(v)}.`];
};
const suspected = v => {
  const node = v.nodes.find(n => n.addr === v.target.name);
  const how = { unreachable: "cannot be reached", unresponsive: "does not answer", connection_rejected: "turns new connections away", denied: "refuses our questions", unusable_address: "refuses our questions", replica: "says that it is a replica" };
  const what = node && how[node.role] ? `The master ${v.target.name} ${how[node.role]}` : `Something may be wrong with the master ${v.target.name}`;
  return ["warn", `${what}; clients stay with it until the sentinels decide${waiting(v)}.`];
};
// How a service is in one sentence, the worst first.
const verdict = v => {
  const heard = v.sentinels.filter(n => n.up).length, replicas = v.nodes.filter(n => !v.target || n.addr !== v.target.name), mute = replicas.filter(n => !n.pong);
  if (!v.target) {
    const found = v.generation || v.failovers.length ? "No master" : "No master found yet";
    return ["bad", `${found}: ${heard ? `${heard} of ${v.sentinels.length} sentinels are heard` : "no sentinel is heard"}${waiting(v)}.`];
  }
  if (v.gate !== "open") return held(v);
  if (v.state === "suspect") return suspected(v);
  const to = `Leads to ${v.target.name}`;
  if (v.minority) return ["warn", `${to}, but the sentinels in reach are a minority.`];
  if (v.disagreement) return ["warn", `${to}, and the sentinels disagree.`];
  if (!heard) return ["warn", `${to}; no sentinel is heard, so a failover would not be noticed.`];
  if (heard < v.quorum.majority) return ["warn", `${to}; only ${heard} of ${v.quorum.voters} sentinels are heard, too few to follow a failover.`];
  if (heard < v.sentinels.length) return ["warn", `${to}; ${heard} of ${v.sentinels.length} sentinels are heard.`];
  if (replicas.length && mute.length === replicas.length) return ["warn", `${to}; no replica answers, so nothing could take over.`];
  if (v.readers && v.readers.eligible === 0) return ["warn", `${to}; no replica serves readers.`];
  // Sentinels remember replicas that are gone for good: worth a word, no alarm.
  return ["good", `${to}${mute.length ? `; ${mute.length} of ${v.nodes.length} nodes ${mute.length === 1 ? "does" : "do"} not answer` : ""}.`];
};
// What concerns the whole process, worst first; nothing in calm times.
const notices = s => {
  const list = [], left = many(s.drain.open, "session is left", "sessions are left");
  if (s.phase !== "serving") list.push(["warn", `This proxy is ${s.phase}: ${left}; ${count(s.drain.asked)} were asked to go, ${count(s.drain.cut)} were cut.`]);
  else if (!s.ready) list.push(["bad", `Not ready: ${s.not_ready_because.join("; ")}.`]);
  if (s.config.faults.length) list.push(["warn", `The configuration was refused, the one before stays in force: ${s.config.faults.join("; ")}`]);
  if (s.config.pending_restart.length) list.push(["warn", `Written, but in force only after a restart: ${s.config.pending_restart.join(", ")}.`]);
  return list;
};
