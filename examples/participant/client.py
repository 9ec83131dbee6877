#!/usr/bin/env python3
"""Has a coordinator run transactions whose branches are two participants, and looks at their outcomes.

    python3 participant.py north.db 8081 &
    python3 participant.py south.db 8082 &
    interlock coordinate --backend postgres://localhost/shop \\
        --participant north=http://127.0.0.1:8081/ --participant south=http://127.0.0.1:8082/ &
    python3 client.py http://127.0.0.1:7461 http://127.0.0.1:8081/ http://127.0.0.1:8082/

It needs nothing but Python's standard library. What is asked and answered is in docs/reference/http.md.

The rule to take home: the client chooses the transaction's id, and whatever happens to a
request, it sends the same one again. Where there is a transaction of that id it is not
started again, so this is also how to wait for its end.
"""

import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid

PATIENCE = 60  # seconds for what has to come to its end
ENDED = {"SUCCEEDED", "COMPENSATED", "DEAD_LETTER", "RESOLVED", "CONFIRMED", "CANCELLED", "COMMITTED"}


def saga(sites, order):
    """North sells first, and takes it back if south, the pivot, refuses."""
    north, south = sites.items()
    return {"type": "seats", "steps": [
        {"name": north[0], "do": north[1], "undo": north[1], "input": order["north"]},
        {"name": south[0], "do": south[1], "pivot": True, "input": order["south"]},
    ]}


def tcc(sites, order):
    """Both hold seats; then both sell them, or both let go."""
    return {"type": "seats", "branches": [
        {"name": name, "url": url, "input": order[name]} for name, url in sites.items()]}


def two_phase(_, order):
    """Both prepare; then both commit, or both roll back. The coordinator knows where they are."""
    return {"branches": order}


def finish(url, body):
    """Sends a request until its transaction has ended, and returns its state."""
    for _ in patiently(f"{url} does not end"):
        answer = fetch(url + "?wait=10s", body)
        if answer.get("state") in ENDED:
            return answer["state"]
        if answer.get("decision") == "abort":
            return "ABORTED"


def sold(url, account):
    """How many seats of an account are sold, once none is held any more."""
    for _ in patiently(f"{account} is still held"):
        has = fetch(url + "?account=" + urllib.parse.quote(account))
        if has.get("held") == 0:
            return has["confirmed"]


def fetch(url, body=None):
    """The JSON of an answer, empty if there was none. A body is posted."""
    data = None if body is None else json.dumps(body).encode()
    token = os.environ.get("INTERLOCK_TOKEN")  # of a coordinator that was started with --token-file
    headers = {"Authorization": f"Bearer {token}"} if token and data else {}  # participants are only read
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code not in (503, 504):  # 503: nothing was done; 504: nobody knows
            sys.exit(f"{url}: {error.code} {error.read().decode()}")
    except (OSError, http.client.HTTPException):
        pass  # nobody is there, or the answer was lost on its way
    return {}


def patiently(otherwise):
    """Goes round a loop, with a pause, as long as there is patience."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        yield
        time.sleep(0.1)
    sys.exit(otherwise)


def main():
    if len(sys.argv) not in (4, 5):
        sys.exit("usage: client.py COORDINATOR NORTH SOUTH [NAME]")
    coordinator, sites = sys.argv[1].rstrip("/"), dict(zip(("north", "south"), sys.argv[2:4]))
    run = sys.argv[4] if len(sys.argv) == 5 else str(uuid.uuid4())
    for path, request in (("sagas", saga), ("tcc", tcc), ("2pc", two_phase)):
        for case, room in (("room for both", 1), ("no room in south", 0)):
            account = f"{run}, {path}, {case}"  # of this transaction alone, so that its effect can be seen
            order = {"north": {"account": account, "amount": 1, "capacity": 1},
                     "south": {"account": account, "amount": 1, "capacity": room}}
            url = f"{coordinator}/v1/{path}/{urllib.parse.quote(account, safe='')}"
            seen = []
            for _ in range(2):  # the second time finds what the first one did
                state = finish(url, request(sites, order))
                seen.append((state, *(sold(site, account) for site in sites.values())))
            if seen[0] != seen[1]:
                sys.exit(f"{path}, {case}: {seen[0]} became {seen[1]}")
            print("{}, {}: {}, north sold {}, south sold {}".format(path, case, *seen[0]), flush=True)


if __name__ == "__main__":
    main()
