"""Clients of redis-py that asked for maintenance notifications, without retries and with a short timeout.

Arguments: host, port, seconds, and `off` to not ask for them. Four threads share one pool. Writes one line of JSON: which
notifications the library received, what the threads saw, and the connections opened after CLIENTS_SETTLE seconds.
"""

import json
import os
import sys
import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.maint_notifications import (
    EndpointType,
    MaintNotificationsConfig,
    MaintNotificationsConnectionHandler,
    MaintNotificationsPoolHandler,
)
from redis.retry import Retry

host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
NAMES = {
    "NodeMovingNotification": "MOVING",
    "NodeFailingOverNotification": "FAILING_OVER",
    "NodeFailedOverNotification": "FAILED_OVER",
}
lock = threading.Lock()
seen = {"answered": 0, "errors": 0, "wrong": 0, "longest_ms": 0, "reconnects": 0, "kinds": {}, "told": {}}
settled = time.monotonic() + float(os.environ.get("CLIENTS_SETTLE", "0"))


def listen(handler):
    """Counts what the library is told, and lets it do what it does then."""
    handle = handler.handle_notification

    def counted(self, notification):
        name = NAMES.get(type(notification).__name__, type(notification).__name__)
        with lock:
            seen["told"][name] = seen["told"].get(name, 0) + 1
        return handle(self, notification)

    handler.handle_notification = counted


def count_connections():
    """Counts the connections that are opened once everybody is started."""
    connect = redis.Connection._connect

    def counted(self):
        with lock:
            seen["reconnects"] += int(time.monotonic() > settled)
        return connect(self)

    redis.Connection._connect = counted


listen(MaintNotificationsPoolHandler)
listen(MaintNotificationsConnectionHandler)
count_connections()
config = MaintNotificationsConfig(enabled=sys.argv[4:] != ["off"], endpoint_type=EndpointType.NONE)
client = redis.Redis(
    host=host, port=port, protocol=3, socket_timeout=1, retry=Retry(NoBackoff(), 0), maint_notifications_config=config,
)
end = time.monotonic() + seconds


def live(number):
    expected = None
    while time.monotonic() < end:
        begin = time.monotonic()
        try:
            value = client.incr(f"py-{number}")
            with lock:
                seen["answered"] += 1
                seen["wrong"] += int(expected not in (None, value))
            expected = value + 1
        except Exception as error:
            with lock:
                seen["errors"] += 1
                kind = f"{type(error).__name__}: {error}"
                seen["kinds"][kind] = seen["kinds"].get(kind, 0) + 1
            expected = None
        pause = round((time.monotonic() - begin) * 1000)
        with lock:
            if begin >= settled:
                seen["longest_ms"] = max(seen["longest_ms"], pause)
        time.sleep(0.05)


threads = [threading.Thread(target=live, args=(number,)) for number in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"library": f"redis-py {redis.__version__}", **seen}))
