"""A pytest plugin for the tests of redis-py: it records the outcome of every test, and pauses after
the handshake of every connection.

Pointsman verifies a session on a connection of its own and gives that up 50 ms later. Most tests
are shorter than that, and would never use a shared connection without the pause.
"""

import asyncio
import os
import time

import redis.asyncio.connection
import redis.connection

OUTCOMES = open(os.environ["OUTCOMES"], "w", encoding="utf-8")
PAUSE = float(os.environ["PAUSE_MS"]) / 1000


def pause_after_handshake(connection):
    handshake = connection.on_connect_check_health

    def pausing(self, *args, **kwargs):
        handshake(self, *args, **kwargs)
        time.sleep(PAUSE)

    async def pausing_async(self, *args, **kwargs):
        await handshake(self, *args, **kwargs)
        await asyncio.sleep(PAUSE)

    is_async = asyncio.iscoroutinefunction(handshake)
    connection.on_connect_check_health = pausing_async if is_async else pausing


pause_after_handshake(redis.connection.AbstractConnection)
pause_after_handshake(redis.asyncio.connection.AbstractConnection)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        OUTCOMES.write(f"{report.outcome} {report.nodeid}\n")


def pytest_sessionfinish():
    OUTCOMES.write("ended\n")
    OUTCOMES.close()
