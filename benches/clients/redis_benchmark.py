"""Clients of redis-benchmark, each a process with one connection that asks as fast as it is answered: it ends at its first error.

It looks at no reply but for an error, and writes what it is answered a second every quarter of a second; so the longest pause has
no finer grain, and the answers are an estimate. There are at most
sixteen, which is enough to keep a machine busy.

Arguments: host, port, clients, seconds. Writes one line of JSON.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time

host, port, count, seconds = sys.argv[1], sys.argv[2], min(int(sys.argv[3]), 16), float(sys.argv[4])
GRAIN_MS = 250
# Until then the machine is busy with starting everybody, which is no pause.
settled = time.monotonic() + float(os.environ.get("CLIENTS_SETTLE", "0"))
RATE = re.compile(r"rps=([0-9.]+) ")
lock = threading.Lock()
seen = {"answered": 0, "errors": 0, "wrong": "-", "longest_ms": 0, "longest_at": 0, "errors_at": [], "kinds": {}}
version = subprocess.run(["redis-benchmark", "--version"], capture_output=True, text=True).stdout.split()[1]


def live(number):
    command = ["redis-benchmark", "-h", host, "-p", port, "--user", "app", "-a", "pw", "--dbnum", str(number)]
    command += ["-3"] * (number % 2) + ["-c", "1", "-n", "1000000000", "-q", "INCR", f"bench-{number}"]
    it = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    threading.Timer(seconds, it.terminate).start()
    answered, silent, longest, longest_at = 0.0, 0, 0, 0
    for line in it.stdout:
        rate = RATE.search(line)
        if rate:
            answered += float(rate[1]) * GRAIN_MS / 1000
            silent = 0 if float(rate[1]) or time.monotonic() < settled else silent + GRAIN_MS
            if silent > longest:
                longest, longest_at = silent, round(time.time() * 1000) - silent
    at = round(time.time() * 1000)
    words = [line for line in it.stderr.read().splitlines() if not line.startswith("WARNING")]
    with lock:
        seen["answered"] += round(answered)
        if longest > seen["longest_ms"]:
            seen["longest_ms"], seen["longest_at"] = longest, longest_at
        # Ended by itself, and not by the timer.
        if it.wait() >= 0:
            seen["errors"] += 1
            seen["errors_at"].append(at)
            kind = words[-1] if words else "no word"
            seen["kinds"][kind] = seen["kinds"].get(kind, 0) + 1


threads = [threading.Thread(target=live, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"library": f"redis-benchmark {version}", **seen}))
