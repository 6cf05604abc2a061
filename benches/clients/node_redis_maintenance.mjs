// Clients of node-redis that asked for maintenance notifications, without retries and with a short timeout.
//
// Arguments: host, port, seconds, and `off` to not ask for them. Four clients with a connection each. Writes one line of JSON: which
// notifications the library received, what the clients saw, and the connections opened after CLIENTS_SETTLE seconds.

import diagnostics from "node:diagnostics_channel";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

process.env.REDIS_EMIT_DIAGNOSTICS = "1";
const require = createRequire(`${process.env.CLIENTS_HOME}/`);
const net = require("node:net");
const { createClient } = require("redis");
const { version } = JSON.parse(readFileSync(`${process.env.CLIENTS_HOME}/node_modules/redis/package.json`));

const [host, port, seconds, mode] = process.argv.slice(2);
const end = performance.now() + Number(seconds) * 1000;
const settled = performance.now() + Number(process.env.CLIENTS_SETTLE ?? 0) * 1000;
const seen = { answered: 0, errors: 0, wrong: 0, longest_ms: 0, reconnects: 0, kinds: {}, told: {} };

const connect = net.createConnection;
net.createConnection = (...all) => {
  seen.reconnects += Number(performance.now() > settled);
  return connect(...all);
};
diagnostics.subscribe("redis.maintenance", ({ type }) => {
  seen.told[type] = (seen.told[type] ?? 0) + 1;
});

async function live(number) {
  const client = createClient({
    RESP: 3, socket: { host, port: Number(port), reconnectStrategy: 100, socketTimeout: 1000 },
    maintNotifications: mode === "off" ? "disabled" : "enabled",
  });
  // The library connects again by itself; a command that fails for it is counted.
  client.on("error", () => {});
  await client.connect();
  let expected;
  while (performance.now() < end) {
    const begin = performance.now();
    try {
      const value = await client.incr(`node-${number}`);
      seen.answered += 1;
      seen.wrong += Number(expected !== undefined && value !== expected);
      expected = value + 1;
    } catch (error) {
      seen.errors += 1;
      const kind = `${error.constructor.name}: ${error.message}`;
      seen.kinds[kind] = (seen.kinds[kind] ?? 0) + 1;
      expected = undefined;
    }
    if (begin >= settled) seen.longest_ms = Math.max(seen.longest_ms, Math.round(performance.now() - begin));
    await sleep(50);
  }
  client.destroy();
}

await Promise.all([0, 1, 2, 3].map(live));
console.log(JSON.stringify({ library: `node-redis ${version}`, ...seen }));
process.exit(0);
