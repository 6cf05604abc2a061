// The verdict on a service, decided from the status alone: a class (`bad`, `warn`, `good`) and a sentence.
const SIGNS = { bad: "✕", warn: "!", good: "✓" };
const ORDER = ["bad", "warn", "good"];
// The offsets of two nodes are from two moments, so their difference is no lag. Known for replicas that may serve readers.
const lag = (v, n) => {
  const replica = n.pong && v.replicas.find(r => r.addr === n.addr);
  return replica ? replica.lag_bytes : null;
};
const waiting = v => v.traffic.sessions_waiting ? `; ${many(v.traffic.sessions_waiting, "client is", "clients are")} waiting` : "";
const held = v => {
  const time = none(v.held_s) ? "" : ` for ${span(v.held_s)}`;
  if (v.state === "armed" || v.state === "committing") return ["warn", `Traffic held${time}: a failover is in progress${waiting(v)}.`];
  if (v.state === "unconfirmed") return ["warn", `Traffic held${time}: the master may have been replaced, waiting for confirmation by the sentinels${waiting(v)}.`];
  if (v.state === "no_master") return ["bad", `Traffic held${time}: no node can be verified as the master${waiting(v)}.`];
  if (v.minority && !v.override) return ["bad", `Traffic held${time}: only a minority of the sentinels is reachable${waiting(v)}.`];
  if (v.fleet_pause) return ["warn", `Traffic held${time}: the fleet is paused by an operator, ${v.fleet_pause.node ? `writes at ${v.fleet_pause.node} too` : `but writes at the master are not${v.fleet_pause.problem ? `: ${v.fleet_pause.problem}` : ""}`}${waiting(v)}.`];
  return ["warn", `Traffic held${time}: paused by an operator${waiting(v)}.`];
};
const suspected = v => {
  const node = v.nodes.find(n => n.addr === v.target.name);
  const how = { unreachable: "is unreachable", unresponsive: "does not answer", connection_rejected: "refuses new connections", denied: "refuses the probes", unusable_address: "refuses the probes", outside_nodes: "is outside service.nodes", replica: "reports that it is a replica" };
  const what = node && how[node.role] ? `The master ${v.target.name} ${how[node.role]}` : `The master ${v.target.name} may have failed`;
  return ["warn", `${what}; sessions stay on it until the sentinels decide${waiting(v)}.`];
};
const overridden = v => {
  const others = v.override.contradicted_by, names = others.length ? `; sentinels name ${others.join(", ")}` : "";
  return `OVERRIDE for ${span(v.override.left_s)} more: ${v.override.master} is followed by an operator's order, without the sentinels${names}.`;
};
// The most severe condition comes first.
const verdict = v => {
  const up = v.sentinels.filter(n => n.up).length, replicas = v.nodes.filter(n => !v.target || n.addr !== v.target.name), mute = replicas.filter(n => !n.pong);
  if (!v.target) {
    const found = v.generation || v.failovers.length ? "No master" : "No master found yet";
    if (v.override) return ["bad", `${found}: ${overridden(v)}`];
    const odd = v.sentinels.find(n => n.up && n.problem), why = odd ? `; ${odd.addr}: ${odd.problem}` : "";
    return ["bad", `${found}: ${up ? `${up} of ${v.sentinels.length} sentinels are reachable${why}` : "no sentinel is reachable"}${waiting(v)}.`];
  }
  if (v.override) return v.gate === "open" ? ["warn", overridden(v)] : [held(v)[0], `${held(v)[1]} ${overridden(v)}`];
  if (v.gate !== "open") return held(v);
  if (v.state === "suspect") return suspected(v);
  const to = `Master: ${v.target.name}`;
  const changed = v.changed_priorities || [];
  if (changed.length) return ["warn", `${to}; replica-priority is changed for a switchover and not restored yet: ${changed.map(n => `${n.node} from ${n.from} to ${n.to}`).join(", ")}.`];
  if (v.minority) return ["warn", `${to}; only a minority of the sentinels is reachable.`];
  if (v.disagreement) return ["warn", `${to}; the sentinels disagree.`];
  const alarm = (v.alarms || []).find(n => n.on);
  if (alarm) return ["warn", `${to}; ${alarm.message} (${alarm.sentinels.join(", ")}), for ${span(alarm.age_s)}.`];
  if (!up) return ["warn", `${to}; no sentinel is reachable, a failover would not be noticed.`];
  if (up < v.electorate.majority) return ["warn", `${to}; only ${up} of ${v.electorate.voters} sentinels are reachable, too few to follow a failover.`];
  if (up < v.sentinels.length) return ["warn", `${to}; ${up} of ${v.sentinels.length} sentinels are reachable.`];
  if (replicas.length && mute.length === replicas.length) return ["warn", `${to}; no replica answers, a failover is impossible.`];
  if (v.readers && v.readers.eligible === 0) return ["warn", `${to}; no replica serves readers.`];
  // Sentinels keep listing removed replicas: mentioned, but no warning.
  return ["good", `${to}${mute.length ? `; ${mute.length} of ${v.nodes.length} nodes ${mute.length === 1 ? "does" : "do"} not answer` : ""}.`];
};
// Messages about the whole process; none in normal operation.
const notices = s => {
  const list = [], open = many(s.drain.open, "session is open", "sessions are open");
  if (s.phase !== "serving") list.push(["warn", `Shutting down (${s.phase}): ${open}, ${count(s.drain.drained)} drained, ${count(s.drain.cut)} cut.`]);
  else if (!s.ready) {
    const all = s.not_ready_because, more = all.length > 5 ? `; and ${count(all.length - 5)} more` : "";
    list.push(["bad", `Not ready: ${all.slice(0, 5).join("; ")}${more}.`]);
  }
  if (s.config.last_reload === "partial") list.push(["warn", `Secrets not reloaded, those before stay in use: ${s.config.faults.join("; ")}`]);
  else if (s.config.faults.length) list.push(["warn", `Configuration not reloaded, the previous one stays in force: ${s.config.faults.join("; ")}`]);
  if (s.config.pending_restart.length) list.push(["warn", `Changed keys that need a restart: ${s.config.pending_restart.join(", ")}.`]);
  for (const c of s.config.certificates || []) if (c.expires_in_s < 7 * 86400)
    list.push([c.expires_in_s < 0 ? "bad" : "warn", `${c.service || "admin server"}: the certificate in ${c.file} ${c.expires_in_s < 0 ? "has expired" : `expires in ${span(c.expires_in_s)}`}.`]);
  for (const v of s.services) for (const [kind, it] of Object.entries(v.credentials)) if (it.refused.length) {
    const servers = kind === "redis" ? "Redis nodes" : "sentinels", kept = it.refused.every(r => r.fallback) ? "; those before are in use" : "";
    list.push(["warn", `${v.name}: ${it.refused.length} ${servers} refuse the configured credentials${kept}: ${it.refused[0].problem}.`]);
  }
  return list;
};
