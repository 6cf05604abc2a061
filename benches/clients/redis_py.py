"""Clients of redis-py without retries of their own: every error that the library raises is counted.

Arguments: host, port, clients, seconds. Writes one line of JSON.
"""

import json
import os
import sys
import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

host, port, count, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
end = time.monotonic() + seconds
# Until then the machine is busy with starting everybody, which is no pause.
settled = time.monotonic() + float(os.environ.get("CLIENTS_SETTLE", "0"))
lock = threading.Lock()
seen = {"answered": 0, "errors": 0, "wrong": 0, "longest_ms": 0, "longest_at": 0, "errors_at": [], "kinds": {}}


def tls():
    if "CLIENTS_CA" not in os.environ:
        return {}
    files = {"ssl_ca_certs": "CA", "ssl_certfile": "CERTIFICATE", "ssl_keyfile": "KEY"}
    named = {option: os.environ[f"CLIENTS_{file}"] for option, file in files.items()}
    return {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True, **named}


def connect(number):
    return redis.Redis(
        host=host, port=port, username="app", password="pw", db=number % 16, client_name=f"py-{number}",
        protocol=2 + number % 2, socket_timeout=30, retry=Retry(NoBackoff(), 0), single_connection_client=True,
        **tls(),
    )


def live(number):
    client, expected = connect(number), None
    time.sleep(0.1 * number / count)
    while time.monotonic() < end:
        begin, at = time.monotonic(), round(time.time() * 1000)
        try:
            if client is None:
                client = connect(number)
            value, name = client.incr(f"py-{number}"), client.client_getname()
            name = name.decode() if isinstance(name, bytes) else name
            with lock:
                seen["answered"] += 2
                # A counter that does not go on by one, or a name that is another's.
                seen["wrong"] += int(expected not in (None, value)) + int(name != f"py-{number}")
            expected = value + 1
        except Exception as error:
            with lock:
                seen["errors"] += 1
                seen["errors_at"].append(at)
                kind = type(error).__name__
                seen["kinds"][kind] = seen["kinds"].get(kind, 0) + 1
            # Whether it ran is unknown, and what the new master knows too.
            client, expected = None, None
        pause = round((time.monotonic() - begin) * 1000)
        with lock:
            if begin > settled and pause > seen["longest_ms"]:
                seen["longest_ms"], seen["longest_at"] = pause, at
        time.sleep(0.1)


threads = [threading.Thread(target=live, args=(number,)) for number in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"library": f"redis-py {redis.__version__}", **seen}))
