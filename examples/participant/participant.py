#!/usr/bin/env python3
"""A participant of Interlock's transactions: a shop that holds and sells seats.

    python3 participant.py seats.db 8080

It needs only Python's standard library. docs/reference/conformance.md lists its answers to
all messages; the conformance kit sends all of them to this file.

The rule to remember: one local transaction reads the row of the branch first, and writes
that row and the business data. Everything else is bookkeeping.
"""

import contextlib
import http.server
import json
import re
import sqlite3
import sys
import time
import urllib.parse
import uuid

FIRST = {"do", "try", "prepare"}
CONFIRM = {"confirm", "commit"}
UNDO = {"undo", "cancel", "rollback"}
MAX_BODY = 4 << 20

TABLES = """
create table if not exists branch (transaction_id text, branch text, step text, state text not null,
    operation text not null, input blob not null, output text not null, since int not null, primary key (transaction_id, branch, step));
create table if not exists mark (before int not null, excepted text not null);
create table if not exists account (name text primary key, held int not null default 0, confirmed int not null default 0);
"""


class Refused(Exception):
    """The business refuses: 409, now and for every repetition of the message."""


class Answer(Exception):
    """Ends the message with a status and a text."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


# ---- The business.


def business(db, operation, order):
    """Does one operation. The barrier ensures that it is done once, and in order."""
    name, amount = order["account"], order["amount"]
    db.execute("insert into account (name) values (?) on conflict do nothing", (name,))
    if operation in FIRST:
        full = "select held + confirmed + ? > ? from account where name = ?"
        if db.execute(full, (amount, order["capacity"], name)).fetchone()[0]:
            raise Refused("there is no room")
    held, confirmed = {
        "do": (0, 1), "undo": (0, -1),
        "try": (1, 0), "prepare": (1, 0), "confirm": (-1, 1), "commit": (-1, 1), "cancel": (-1, 0), "rollback": (-1, 0),
    }[operation]
    db.execute("update account set held = held + ?, confirmed = confirmed + ? where name = ?",
               (held * amount, confirmed * amount, name))
    return {"hold": str(uuid.uuid4())}


# ---- The barrier.


@contextlib.contextmanager
def transaction(path):
    """Commits all of its writes or none. One transaction writes at a time; the others wait."""
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        db.execute("pragma synchronous = full")  # done means that it is on the disk
        db.execute("begin immediate")
        yield db
        db.execute("commit")
    finally:
        db.close()  # rolls back what was not committed


def barrier(db, key, operation, body):
    """Answers a message: (status, JSON or text)."""
    state, order, output = db.execute(
        "select state, input, output from branch where transaction_id = ? and branch = ? and step = ?", key
    ).fetchone() or ("unknown", None, None)
    if operation in FIRST:
        if state == "undone":
            return 409, "it was undone before"
        if state != "unknown" and order != body:
            return 422, "it came with another input before"
        if state == "refused":
            return 409, output
        return (200, output) if state != "unknown" else run_first(db, key, operation, body)
    if operation in CONFIRM:
        if state == "done":
            run_last(db, key, operation, order, "confirmed")
        elif state != "confirmed":
            return 409, f"it cannot be confirmed, it is {state}"
        return 200, ""
    if state == "confirmed":
        return 409, "it cannot be undone, it is confirmed"
    if state == "done":
        run_last(db, key, operation, order, "undone")
    elif state == "unknown":  # nothing to undo, but the first may arrive later
        remember(db, key, "undone", operation, b"", "")
    return 200, ""


def forgotten(db, transaction, begun):
    """Reports whether the transaction of a message may be forgotten: its rows may be deleted."""
    before, excepted = db.execute("select before, excepted from mark").fetchone() or (0, "[]")
    return begun < before and transaction not in json.loads(excepted)


def forget(db, before, excepted):
    """Raises the mark to a time from the coordinator, and deletes rows that are an hour older, for clock differences."""
    if before > (db.execute("select max(before) from mark").fetchone()[0] or 0):
        db.execute("delete from mark")
        db.execute("insert into mark values (?, ?)", (before, json.dumps(excepted)))
    before, excepted = db.execute("select before, excepted from mark").fetchone()
    removed = db.execute("delete from branch where since < ? and transaction_id not in (select value from json_each(?))",
                         (before - 3600000, excepted))
    return 200, json.dumps({"removed": removed.rowcount})


def run_first(db, key, operation, body):
    """Runs the business and stores the outcome, including a refusal."""
    db.execute("savepoint business")
    try:
        output = json.dumps(business(db, operation, json.loads(body)))
    except Refused as refusal:
        db.execute("rollback to business")
        remember(db, key, "refused", operation, body, str(refusal))
        return 409, str(refusal)
    remember(db, key, "done", operation, body, output)
    return 200, output


def run_last(db, key, operation, order, state):
    """Confirms or undoes the order of the first, which is in the row."""
    business(db, operation, json.loads(order))
    db.execute("update branch set state = ? where transaction_id = ? and branch = ? and step = ?", (state, *key))


def remember(db, key, state, operation, order, output):
    now = int(time.time() * 1000)
    db.execute("insert into branch values (?, ?, ?, ?, ?, ?, ?, ?)", (*key, state, operation, order, output, now))


def in_doubt(db):
    """Returns the prepared branches, so that a coordinator can decide those that it has lost."""
    rows = db.execute("select transaction_id, branch, since from branch where state = 'done' and operation = 'prepare'")
    return [{"transaction": transaction, "branch": branch, "since": since} for transaction, branch, since in rows]


# ---- HTTP.


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece
    timeout = 30  # seconds for what is slow to come
    database = ""

    def do_POST(self):
        try:
            body = self.body()
            if self.headers.get("Interlock-Operation") == "forget":
                before, excepted = self.mark(body)
                with transaction(self.database) as db:
                    status, text = forget(db, before, excepted)
            else:
                key, operation = self.call()
                with transaction(self.database) as db:
                    status, text = 410, "its transaction began before what is forgotten"
                    if not forgotten(db, key[0], self.number("Begun")):
                        status, text = barrier(db, key, operation, body)
        except Answer as answer:
            status, text = answer.status, str(answer)
        except sqlite3.OperationalError as busy:
            status, text = 503, str(busy)
        except Exception as error:  # an unexpected error; the transaction was rolled back
            status, text = 500, repr(error)
        self.answer(status, text)

    def do_GET(self):
        """Returns the state of an account, or the branches in doubt."""
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query, keep_blank_values=True)
        name = query.get("account", [""])[0]
        with transaction(self.database) as db:
            if "in-doubt" in query:
                return self.answer(200, json.dumps(in_doubt(db)))
            held, confirmed = db.execute(
                "select held, confirmed from account where name = ?", (name,)).fetchone() or (0, 0)
        self.answer(200, json.dumps({"held": held, "confirmed": confirmed}))

    def body(self):
        length = "" if "Transfer-Encoding" in self.headers else self.headers.get("Content-Length", "")
        if not re.fullmatch("[0-9]{1,9}", length) or int(length) > MAX_BODY:
            self.close_connection = True  # the rest of the request is not read
            raise Answer(413 if length.isdigit() else 411, "a body has a length, of 4 MiB at most, and no chunks")
        body = b""
        with contextlib.suppress(TimeoutError):
            body = self.rfile.read(int(length))
        if len(body) < int(length):
            self.close_connection = True
            raise Answer(400, "the body was cut off")
        return body

    def call(self):
        """Returns the key and the operation of the headers, which must all be valid."""
        key = self.name("Transaction", 200), self.name("Branch", 255), self.name("Step", 255, "")
        operation = self.header("Operation")
        if operation not in FIRST | CONFIRM | UNDO:
            raise Answer(400, f"there is no operation {operation!r}")
        self.number("Attempt")
        self.number("Begun")
        self.number("Epoch", 0)
        self.number("Until", 0)
        deadline = self.number("Deadline", 0)
        if deadline and deadline <= time.time() * 1000:
            raise Answer(408, "the deadline has passed, nobody waits for the answer")
        return key, operation

    def mark(self, body):
        """Returns the mark: transactions that began before it may be forgotten, with exceptions."""
        try:
            mark = json.loads(body)
            before, excepted = mark["before"], mark["except"]
            if type(before) is not int or before <= 0 or not all(type(name) is str for name in excepted):
                raise ValueError
        except (ValueError, TypeError, KeyError):
            raise Answer(400, "it is no mark") from None
        if before > time.time() * 1000:
            raise Answer(400, "the mark lies ahead of the clock")
        return before, excepted

    def header(self, name, default=None):
        values = self.headers.get_all("Interlock-" + name, [])
        if not values and default is not None:
            return default
        if len(values) != 1 or not values[0]:
            raise Answer(400, f"Interlock-{name} comes {len(values)} times, or is empty")
        return values[0]

    def number(self, name, default=None):
        text = self.header(name, None if default is None else str(default))
        if text != str(default) and not re.fullmatch("[1-9][0-9]{0,18}", text):
            raise Answer(400, f"Interlock-{name} is no number above 0")
        return int(text)

    def name(self, name, longest, default=None):
        text = self.header(name, default)
        try:
            if re.search("%(?![0-9A-Fa-f]{2})", text):
                raise ValueError
            decoded = urllib.parse.unquote(text, errors="strict")
        except ValueError:
            raise Answer(400, f"Interlock-{name} is not percent-encoded UTF-8") from None
        if len(decoded.encode()) > longest or "\0" in decoded:
            raise Answer(400, f"Interlock-{name} is too long, or has a NUL")
        return decoded

    def answer(self, status, text):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json" if status == 200 else "text/plain; charset=utf-8")
        if status == 422:
            self.send_header("Interlock-Input", "other")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: participant.py DATABASE [PORT]")
    Handler.database = sys.argv[1]
    with contextlib.closing(sqlite3.connect(Handler.database)) as db:  # open to the end: the last close copies the log
        db.execute("pragma journal_mode = wal")
        db.executescript(TABLES)
        with Server(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) == 3 else 0), Handler) as server:
            print(f"http://127.0.0.1:{server.server_address[1]}/", flush=True)
            with contextlib.suppress(KeyboardInterrupt):
                server.serve_forever()


if __name__ == "__main__":
    main()
