"""Clients of redis-cli, each a process that is given its commands line by line: every line that is no answer is counted.

Arguments: host, port, clients, seconds. Writes one line of JSON.
"""

import json
import os
import subprocess
import sys
import threading
import time

host, port, count, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
end = time.monotonic() + seconds
# Until then the machine is busy with starting everybody, which is no pause.
settled = time.monotonic() + float(os.environ.get("CLIENTS_SETTLE", "0"))
lock = threading.Lock()
seen = {"answered": 0, "errors": 0, "wrong": 0, "longest_ms": 0, "longest_at": 0, "errors_at": []}
secured = [word for option, file in (("cacert", "CA"), ("cert", "CERTIFICATE"), ("key", "KEY"))
           if f"CLIENTS_{file}" in os.environ for word in (f"--{option}", os.environ[f"CLIENTS_{file}"])]
version = subprocess.run(["redis-cli", "--version"], capture_output=True, text=True).stdout.split()[1]


def live(number):
    name, expected = f"cli-{number}", None
    # Unbuffered, since it writes to a pipe here.
    command = ["stdbuf", "-oL", "redis-cli", "-h", host, "-p", port] + (["--tls"] + secured if secured else [])
    it = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def say(line):
        it.stdin.write(line + "\n")
        it.stdin.flush()
        return it.stdout.readline().strip()

    for line in ("AUTH app pw", f"SELECT {number % 16}", f"CLIENT SETNAME {name}"):
        if say(line) != "OK":
            raise SystemExit(f"{line} was refused")
    time.sleep(0.1 * number / count)
    while time.monotonic() < end:
        begin, at = time.monotonic(), round(time.time() * 1000)
        value = say(f"INCR {name}")
        if not value.isdigit():
            with lock:
                seen["errors"] += 1
                seen["errors_at"].append(at)
            # It connects again by itself, and chooses its database, but it is nobody any more.
            it.kill()
            return
        got = say("CLIENT GETNAME")
        pause = round((time.monotonic() - begin) * 1000)
        with lock:
            seen["answered"] += 2
            seen["wrong"] += int(expected not in (None, int(value))) + int(got != name)
            if begin > settled and pause > seen["longest_ms"]:
                seen["longest_ms"], seen["longest_at"] = pause, at
        expected = int(value) + 1
        time.sleep(0.1)
    it.stdin.close()
    it.wait()


threads = [threading.Thread(target=live, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"library": f"redis-cli {version}", **seen}))
