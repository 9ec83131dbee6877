"""Acquires and releases locks with redis-py, by commands on standard input.

    acquire NAME SECONDS   answers yes or no, without waiting
    release NAME           answers released, or lost if it was not the owner's

Names have no spaces here. It ends with its input.
"""
import sys

import redis
from redis.exceptions import LockError


def main(port):
    client = redis.Redis(host="127.0.0.1", port=port)
    held = {}
    for line in sys.stdin:
        command, name, *rest = line.split()
        if command == "acquire":
            lock = client.lock(name, timeout=float(rest[0]))
            got = lock.acquire(blocking=False)
            if got:
                held[name] = lock
            answer = "yes" if got else "no"
        else:
            try:
                held.pop(name).release()
                answer = "released"
            except LockError:
                answer = "lost"
        print(answer, flush=True)


main(int(sys.argv[1]))
