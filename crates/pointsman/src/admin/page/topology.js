// The topology: sentinels with their views, this proxy, and the nodes. Drawn from left to right, or from top to bottom on
// narrow screens.
// The offsets of two nodes are from two moments, so their difference is no lag. Known for replicas that may serve readers.
const lag = (v, n) => {
  const replica = n.pong && v.replicas.find(r => r.addr === n.addr);
  return replica ? replica.lag_bytes : null;
};
const sentinelWords = n => n.problem || (!n.up ? "unreachable" : n.disagrees ? `names ${n.master}, epoch ${n.epoch}` : none(n.epoch) ? "no view yet" : `agrees, epoch ${n.epoch}`);
const sentinelClass = n => !n.up || n.problem ? "off" : n.disagrees ? "odd" : "on";
const nodeWords = (v, n) => {
  if (v.target && n.addr === v.target.name) return n.pong ? "master" : `master: ${n.role}`;
  const bytes = lag(v, n), serves = v.replicas.find(r => r.addr === n.addr);
  return n.role + (n.role === "replica" && !none(bytes) ? `, lag ${count(bytes)} bytes` : "") + (serves ? `, ${many(serves.sessions, "reader", "readers")}` : "");
};
const nodeClass = (v, n) => !n.pong ? "off" : v.target && n.addr === v.target.name ? "on" : "";
const box = (x, y, w, title, below, cls) => {
  const g = draw("g", {});
  g.append(draw("title", {}, `${title}: ${below}`), draw("rect", { class: "box " + cls, x, y, width: w, height: 46, rx: 6 }),
    draw("text", { x: x + 9, y: y + 20 }, cut(title, Math.floor((w - 16) / 7.4))),
    draw("text", { class: "small", x: x + 9, y: y + 37 }, cut(below, Math.floor((w - 16) / 5.9))));
  return g;
};
const topology = (v, narrow) => {
  const master = v.target && v.target.name, S = v.sentinels, held = v.gate === "open" ? "" : " held";
  const nodes = v.nodes.slice().sort((a, b) => (b.addr === master) - (a.addr === master));
  const words = `${S.filter(n => n.up).length} of ${S.length} sentinels are reachable; this proxy forwards to ${master || "no master"}` +
    `${held ? ", traffic is held" : ""}; nodes: ` + nodes.map(n => `${n.addr} ${nodeWords(v, n)}`).join(", ");
  const proxy = [v.gate === "open" ? "this proxy" : "this proxy: traffic held", many(v.traffic.sessions_open, "session", "sessions") + (v.traffic.sessions_waiting ? `, ${count(v.traffic.sessions_waiting)} waiting` : ""),
    v.gate === "open" && v.target ? "on" : "off"];
  const wire = (d, cls) => draw("path", { class: cls, d });
  const rows = Math.max(S.length, nodes.length, 2), tall = narrow ? (S.length + nodes.length + 1) * 54 + 50 : 20 + rows * 60;
  const s = draw("svg", { viewBox: `0 0 ${narrow ? 330 : 775} ${tall}`, role: "img", "aria-label": words });
  const isMaster = i => nodes[i].addr === master, track = n => "track" + (held || (n.pong ? "" : " odd"));
  if (narrow) {
    const y = i => 4 + i * 54, middle = y(S.length) + 18, below = i => middle + 46 + 22 + i * 54;
    S.forEach((n, i) => s.append(wire(`M292 ${y(i) + 23} H${312 - i * 2} V${middle + 23} H292`, "wire" + (n.disagrees ? " odd" : ""))));
    nodes.forEach((n, i) => { if (isMaster(i)) s.append(wire(`M60 ${middle + 46} V${below(i)}`, track(n))); else if (n.role === "replica" && isMaster(0)) s.append(wire(`M30 ${below(i) + 23} H${14 + i * 2} V${below(0) + 23} H30`, "wire")); });
    S.forEach((n, i) => s.append(box(30, y(i), 262, n.addr, sentinelWords(n), sentinelClass(n))));
    s.append(box(30, middle, 262, ...proxy));
    nodes.forEach((n, i) => s.append(box(30, below(i), 262, n.addr, nodeWords(v, n), nodeClass(v, n))));
    return s;
  }
  const y = (i, of) => 10 + (i + .5) * (tall - 20) / Math.max(of, 1), mid = y(0, 1), at = i => y(i, nodes.length);
  S.forEach((n, i) => s.append(wire(`M220 ${y(i, S.length)} C260 ${y(i, S.length)} 260 ${mid} 300 ${mid}`, "wire" + (n.disagrees ? " odd" : ""))));
  nodes.forEach((n, i) => {
    if (isMaster(i)) s.append(wire(`M470 ${mid} C510 ${mid} 510 ${at(i)} 550 ${at(i)}`, track(n)));
    else if (n.role === "replica" && isMaster(0)) s.append(wire(`M755 ${at(0) + 8} C772 ${at(0) + 20} 772 ${at(i) - 10} 755 ${at(i)}`, "wire"));
  });
  S.forEach((n, i) => s.append(box(5, y(i, S.length) - 23, 215, n.addr, sentinelWords(n), sentinelClass(n))));
  s.append(box(300, mid - 23, 170, ...proxy));
  nodes.forEach((n, i) => s.append(box(550, at(i) - 23, 205, n.addr, nodeWords(v, n), nodeClass(v, n))));
  return s;
};
