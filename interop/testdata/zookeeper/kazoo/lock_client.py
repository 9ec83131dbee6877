"""Acquires and releases kazoo's locks by commands on standard input, one per
line, and answers each with one line: "acquire PATH" by "held PATH", "try PATH"
by that or "busy PATH", "release PATH" by "released PATH".

Arguments: the servers, the session timeout in seconds, and patterns of
other clients' nodes that count as contenders.
"""
import sys

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout


def run(lock, command):
    if command == "acquire":
        lock.acquire()
        return "held"
    if command == "try":
        try:
            return "held" if lock.acquire(timeout=1) else "busy"
        except LockTimeout:
            return "busy"
    if command == "release":
        lock.release()
        return "released"
    raise ValueError(command)


def main(servers, timeout, *patterns):
    client = KazooClient(hosts=servers, timeout=float(timeout))
    client.start()
    print("ready", flush=True)
    locks = {}
    for line in sys.stdin:
        command, path = line.strip().split(" ", 1)
        if path not in locks:
            locks[path] = client.Lock(path, "kazoo of the test", extra_lock_patterns=patterns)
        print(run(locks[path], command), path, flush=True)
    client.stop()


main(*sys.argv[1:])
