// The topology: sentinels with their views, this proxy, and the nodes. Drawn from left to right, or from top to bottom on
// narrow screens.
// The offsets of two nodes are from two moments, so their difference is no lag. Known for replicas that may serve readers.
const lag = (v, n) => {
  const replica = n.pong && v.replicas.find(r => r.addr === n.addr);
  return replica ? replica.lag_bytes : null;
};
const sentinelWords = n => n.problem || (!n.up ? "unreachable" : n.disagrees ? `names ${n.master}, epoch ${n.epoch}` : none(n.epoch) ? "no view yet" : `agrees, epoch ${n.epoch}`);
const sentinelClass = n => !n.up || n.problem ? "off" : n.disagrees ? "odd" : "on";
// A server that refuses PING with an error has answered.
const replies = n => n.pong || !none(n.ping);
const isMaster = (v, n) => v.target && n.addr === v.target.name;
const serves = (v, n) => v.replicas.find(r => r.addr === n.addr);
const nodeWords = (v, n) => {
  const bytes = lag(v, n), all = [isMaster(v, n) ? (n.role === "master" ? "master" : `master: ${n.role}`) : n.role];
  if (replies(n) && !n.pong) all.push(`answers ${n.ping}`);
  if (v.candidate === n.addr) all.push("failover candidate");
  if (n.role === "replica" && !none(bytes)) all.push(`lag ${count(bytes)} bytes`);
  if (serves(v, n)) all.push(serves(v, n).state === "eligible" ? many(n.sessions, "reader", "readers") : `no readers: ${serves(v, n).state.replaceAll("_", " ")}`);
  else if (isMaster(v, n)) all.push(many(n.sessions, "session", "sessions"));
  return all.join(", ");
};
const nodeClass = (v, n) => !replies(n) ? "off" : !n.pong || v.candidate === n.addr ? "odd" : isMaster(v, n) ? "on" : "";
// The lines of a box; long names and sentences take several.
const lines = (w, title, below, cls) => {
  const names = wrap(title, Math.floor((w - 16) / 7.4), 4), words = wrap(below, Math.floor((w - 16) / 5.9), 3);
  return { title, below, cls, w, names, words, tall: 12 + names.length * 17 + words.length * 14 + 3 };
};
const box = (x, y, tall, b) => {
  const g = draw("g", {}), first = y + 3 + b.names.length * 17;
  g.append(draw("title", {}, `${b.title}: ${b.below}`), draw("rect", { class: "box " + b.cls, x, y, width: b.w, height: tall, rx: 6 }),
    ...b.names.map((text, i) => draw("text", { x: x + 9, y: y + 20 + i * 17 }, text)),
    ...b.words.map((text, i) => draw("text", { class: "small", x: x + 9, y: first + 17 + i * 14 }, text)));
  return g;
};
const topology = (v, narrow) => {
  const master = v.target && v.target.name, S = v.sentinels, held = v.gate === "open" ? "" : " held";
  const nodes = v.nodes.slice().sort((a, b) => (b.addr === master) - (a.addr === master));
  const label = `${S.filter(n => n.up).length} of ${S.length} sentinels are reachable; this proxy forwards to ${master || "no master"}` +
    `${held ? ", traffic is held" : ""}; nodes: ` + nodes.map(n => `${n.addr} ${nodeWords(v, n)}`).join(", ");
  const [left, middle, right] = narrow ? [262, 262, 262] : [215, 170, 205];
  const sentinels = S.map(n => lines(left, n.addr, sentinelWords(n), sentinelClass(n)));
  const proxy = lines(middle, v.gate === "open" ? "this proxy" : "this proxy: traffic held", many(v.traffic.sessions_open, "session", "sessions") + (v.traffic.sessions_waiting ? `, ${count(v.traffic.sessions_waiting)} waiting` : ""),
    v.gate === "open" && v.target ? "on" : "off");
  const servers = nodes.map(n => lines(right, n.addr, nodeWords(v, n), nodeClass(v, n)));
  const tall = Math.max(...[...sentinels, proxy, ...servers].map(b => b.tall)), row = tall + (narrow ? 8 : 14), half = tall / 2;
  const wire = (d, cls) => draw("path", { class: cls, d });
  const rows = Math.max(S.length, nodes.length, 2), high = narrow ? (S.length + nodes.length + 1) * row + 50 : 20 + rows * row;
  const s = draw("svg", { viewBox: `0 0 ${narrow ? 330 : 775} ${high}`, role: "img", "aria-label": label });
  // From the proxy: to the master, to replicas with readers, and to the candidate.
  const track = n => isMaster(v, n) ? "track" + (held || (n.pong ? "" : " odd")) : v.candidate === n.addr ? "wire odd" : (serves(v, n) || {}).state === "eligible" ? "track reads" : "";
  const follows = i => nodes[i].role === "replica" && isMaster(v, nodes[0]);
  if (narrow) {
    const y = i => 4 + i * row, mid = y(S.length) + 18, at = i => mid + tall + 22 + i * row;
    S.forEach((n, i) => s.append(wire(`M292 ${y(i) + half} H${312 - i * 2} V${mid + half} H292`, "wire" + (n.disagrees ? " odd" : ""))));
    nodes.forEach((n, i) => {
      if (track(n)) s.append(wire(`M${60 + i * 12} ${mid + tall} V${at(i)}`, track(n)));
      if (i && follows(i)) s.append(wire(`M30 ${at(i) + half} H${14 + i * 2} V${at(0) + half} H30`, "wire"));
    });
    sentinels.forEach((b, i) => s.append(box(30, y(i), tall, b)));
    s.append(box(30, mid, tall, proxy));
    servers.forEach((b, i) => s.append(box(30, at(i), tall, b)));
    return s;
  }
  const y = (i, of) => 10 + (i + .5) * (high - 20) / Math.max(of, 1), mid = y(0, 1), at = i => y(i, nodes.length);
  S.forEach((n, i) => s.append(wire(`M220 ${y(i, S.length)} C260 ${y(i, S.length)} 260 ${mid} 300 ${mid}`, "wire" + (n.disagrees ? " odd" : ""))));
  nodes.forEach((n, i) => {
    if (track(n)) s.append(wire(`M470 ${mid} C510 ${mid} 510 ${at(i)} 550 ${at(i)}`, track(n)));
    if (i && follows(i)) s.append(wire(`M755 ${at(0) + 8} C772 ${at(0) + 20} 772 ${at(i) - 10} 755 ${at(i)}`, "wire"));
  });
  sentinels.forEach((b, i) => s.append(box(5, y(i, S.length) - half, tall, b)));
  s.append(box(300, mid - half, tall, proxy));
  servers.forEach((b, i) => s.append(box(550, at(i) - half, tall, b)));
  return s;
};
