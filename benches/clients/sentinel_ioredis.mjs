// Clients of ioredis that ask sentinels for the master: writers, and a reader of the write acknowledged last.
//
// Arguments: the master's name, sentinels (host:port,...), the prefix of all keys, writers, writes per second of all of them, and
// the time in seconds after which a connection is given up. Writes a line per outcome; harness::LoadBuilder::start_program reads
// them. Everything else is as the library has it, its retries included.

import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const Redis = createRequire(`${process.env.CLIENTS_HOME}/`)("ioredis");

const [name, given, prefix, writers, rate, timeout] = process.argv.slice(2);
const sentinels = given.split(",").map((it) => ({ host: it.split(":")[0], port: Number(it.split(":")[1]) }));
const say = (line) => process.stdout.write(`${line}\n`);
let newest;

function master() {
  const client = new Redis({
    sentinels, name, socketTimeout: Number(timeout) * 1000, connectTimeout: Number(timeout) * 1000, sentinelCommandTimeout: 500,
  });
  // Commands that fail are counted.
  client.on("error", () => {});
  return client;
}

async function attempt(act) {
  try {
    await act();
  } catch (error) {
    say(`err ${error.name}: ${error.message}`.replaceAll("\n", " "));
    await sleep(20);
  }
}

async function write(writer) {
  const client = master();
  let due = performance.now();
  for (let number = 0; ; number += 1) {
    await sleep(Math.max(0, due - performance.now()));
    due = Math.max(due, performance.now()) + (1000 * Number(writers)) / Number(rate);
    await attempt(async () => {
      const key = `${prefix}:${writer}:${number}`;
      if ((await client.set(key, "1")) === "OK") {
        newest = key;
        say(`ok ${writer} ${number}`);
      }
    });
  }
}

async function read() {
  const client = master();
  for (;;) {
    await attempt(async () => {
      const key = newest;
      if (key && (await client.get(key)) !== "1") say("wrong");
    });
    await sleep(20);
  }
}

for (let writer = 0; writer < Number(writers); writer += 1) write(writer);
read();
