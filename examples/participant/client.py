#!/usr/bin/env python3
"""Starts transactions with two participants on a coordinator, and checks their outcomes.

    python3 participant.py north.db 8081 &
    python3 participant.py south.db 8082 &
    interlock coordinate --backend postgres://localhost/shop \\
        --participant north=http://127.0.0.1:8081/ --participant south=http://127.0.0.1:8082/ &
    python3 client.py http://127.0.0.1:7461 http://127.0.0.1:8081/ http://127.0.0.1:8082/

It needs only Python's standard library. docs/reference/http.md describes the requests and answers.

The rule to remember: the client chooses the transaction's id, and repeats the same request
after any failure. A transaction with that id is not started again, so the same request also
waits for its end.
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

PATIENCE = 60  # seconds until a transaction must have ended
ENDED = {"SUCCEEDED", "COMPENSATED", "DEAD_LETTER", "RESOLVED", "CONFIRMED", "CANCELLED", "COMMITTED"}


def saga(sites, order):
    """North sells first, and undoes that if south, the pivot, refuses."""
    north, south = sites.items()
    return {"type": "seats", "steps": [
        {"name": north[0], "do": north[1], "undo": north[1], "input": order["north"]},
        {"name": south[0], "do": south[1], "pivot": True, "input": order["south"]},
    ]}


def tcc(sites, order):
    """Both hold seats; then both sell or release them."""
    return {"type": "seats", "branches": [
        {"name": name, "url": url, "input": order[name]} for name, url in sites.items()]}


def two_phase(_, order):
    """Both prepare; then both commit, or both roll back. The coordinator has their addresses."""
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
    """Returns the sold seats of an account, once none is held."""
    for _ in patiently(f"{account} is still held"):
        has = fetch(url + "?account=" + urllib.parse.quote(account))
        if has.get("held") == 0:
            return has["confirmed"]


def fetch(url, body=None):
    """Returns the JSON of an answer, empty if there is none. A body is posted."""
    data = None if body is None else json.dumps(body).encode()
    token = os.environ.get("COORDINATOR_TOKEN")  # for a coordinator with --token-file
    headers = {"Authorization": f"Bearer {token}"} if token and data else {}  # participants are only read
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code not in (503, 504):  # 503: nothing was done; 504: the outcome is unknown
            sys.exit(f"{url}: {error.code} {error.read().decode()}")
    except (OSError, http.client.HTTPException):
        pass  # the server is down, or the answer was lost
    return {}


def patiently(otherwise):
    """Repeats a loop, with a pause, until PATIENCE has passed."""
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
