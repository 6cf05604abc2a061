// Clients by network: requested only while the section is open, since the workers have to look.
const amount = v => v < 1e4 ? `${Math.round(v)} B` : `${count(v)}B`;
let networksTimer;
const networksOf = d => {
  const row = n => [n.network, count(n.sessions), count(n.commands), amount(n.bytes_in), amount(n.bytes_out)];
  const rows = d.largest.map(row);
  if (d.rest.sessions) rows.push(row(d.rest));
  const silent = d.silent_workers.length ? [make("p", `Worker ${d.silent_workers.join(", ")} did not answer: its sessions are missing.`, "warn")] : [];
  const note = make("p", `${many(d.sessions, "session", "sessions")} from ${many(d.networks, "network", "networks")}.`, "since");
  return [...silent, note, table("Clients by network", ["Network", "Sessions", "Commands", "Received", "Sent"], rows)];
};
const loadNetworks = async () => {
  clearTimeout(networksTimer);
  const section = at("networks");
  if (!section.open) { at("networks-live").replaceChildren(); return; }
  if (!document.hidden && !frozen) {
    const d = await get("/networks").catch(() => null);
    // Refused while another list is made: the last one stays.
    if (d && d.largest && section.open && !frozen) replace(at("networks-live"), ...networksOf(d));
  }
  clearTimeout(networksTimer);
  networksTimer = setTimeout(loadNetworks, 5000);
};
at("networks").addEventListener("toggle", loadNetworks);
