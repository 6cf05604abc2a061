"""Clients of redis-py that ask sentinels for the master: writers, and a reader of the write acknowledged last.

Arguments: the master's name, sentinels (host:port,...), the prefix of all keys, writers, writes per second of all of them, and
the time in seconds after which a connection is given up. Writes a line per outcome; harness::LoadBuilder::start_program reads them.
Everything else is as the library has it, its retries included.
"""

import sys
import threading
import time

from redis.sentinel import Sentinel

name, sentinels, prefix, writers, rate, timeout = sys.argv[1:]
writers, rate, timeout = int(writers), int(rate), float(timeout)
hosts = [(host, int(port)) for host, port in (it.split(":") for it in sentinels.split(","))]
lock = threading.Lock()
newest = None


def say(line):
    with lock:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def master():
    options = {"socket_timeout": timeout, "socket_connect_timeout": timeout}
    sentinel = Sentinel(hosts, sentinel_kwargs={"socket_timeout": 0.5, "socket_connect_timeout": 0.5})
    return sentinel.master_for(name, **options)


def attempt(act):
    try:
        act()
    except Exception as error:
        say(f"err {type(error).__name__}: {error}".replace("\n", " "))
        time.sleep(0.02)


def write(writer):
    global newest
    client, number, due = master(), 0, time.monotonic()

    def act():
        global newest
        if client.set(f"{prefix}:{writer}:{number}", "1"):
            newest = f"{prefix}:{writer}:{number}"
            say(f"ok {writer} {number}")

    while True:
        time.sleep(max(0, due - time.monotonic()))
        due = max(due, time.monotonic()) + writers / rate
        attempt(act)
        number += 1


def read():
    client = master()

    def act():
        key = newest
        if key and client.get(key) != b"1":
            say("wrong")

    while True:
        attempt(act)
        time.sleep(0.02)


threads = [threading.Thread(target=write, args=(writer,), daemon=True) for writer in range(writers)]
threads.append(threading.Thread(target=read, daemon=True))
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
