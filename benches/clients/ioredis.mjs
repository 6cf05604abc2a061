// Clients of ioredis: every rejected command is counted, and every connection that was lost, since the library reconnects by itself.
//
// Arguments: host, port, clients, seconds. Writes one line of JSON.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(`${process.env.CLIENTS_HOME}/`);
const Redis = require("ioredis");
const { version } = JSON.parse(readFileSync(`${process.env.CLIENTS_HOME}/node_modules/ioredis/package.json`));

const [host, port, count, seconds] = process.argv.slice(2);
const end = performance.now() + Number(seconds) * 1000;
// Until then the machine is busy with starting everybody, which is no pause.
const settled = performance.now() + Number(process.env.CLIENTS_SETTLE ?? 0) * 1000;
const seen = { answered: 0, errors: 0, wrong: 0, longest_ms: 0, longest_at: 0, errors_at: [], kinds: {} };
// `at`: when the request was begun, in milliseconds of Unix time; a loss on its own has only the moment at which it was noticed.
const note = (kind, at = Date.now()) => {
  seen.errors += 1;
  seen.errors_at.push(at);
  seen.kinds[kind] = (seen.kinds[kind] ?? 0) + 1;
};

const file = (name) => readFileSync(process.env[`CLIENTS_${name}`]);
const tls = process.env.CLIENTS_CA && { ca: file("CA"), cert: file("CERTIFICATE"), key: file("KEY") };

async function live(number) {
  const name = `js-${number}`;
  const client = new Redis({
    host, port: Number(port), username: "app", password: "pw", db: number % 16, connectionName: name,
    maxRetriesPerRequest: 0, retryStrategy: () => 100, ...(tls && { tls }),
  });
  let over = false;
  let expected;
  client.on("error", () => {});
  client.on("close", () => { if (!over) note("connection lost"); });
  await sleep((100 * number) / Number(count));
  while (performance.now() < end) {
    const [begin, at] = [performance.now(), Date.now()];
    try {
      const [value, got] = await Promise.all([client.incr(name), client.client("GETNAME")]);
      seen.answered += 2;
      seen.wrong += Number(expected !== undefined && value !== expected) + Number(got !== name);
      expected = value + 1;
    } catch (error) {
      note(error.name, at);
      expected = undefined;
    }
    const pause = Math.round(performance.now() - begin);
    if (begin > settled && pause > seen.longest_ms) [seen.longest_ms, seen.longest_at] = [pause, at];
    await sleep(100);
  }
  over = true;
  client.disconnect();
}

await Promise.all(Array.from({ length: Number(count) }, (_, number) => live(number)));
console.log(JSON.stringify({ library: `ioredis ${version}`, ...seen }));
