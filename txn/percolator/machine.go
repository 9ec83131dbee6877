package percolator

import "slices"

// outcome is the answer of a step.
type outcome int

const (
	done       outcome = iota
	committed          // the transaction is committed here, at answer.at
	aborted            // the transaction was rolled back, or can never commit
	locked             // another transaction has the lock, answer.lock
	conflict           // another transaction committed after this one began, at answer.at
	tooOld             // the snapshot or the transaction is below the safe point, answer.at
	alive              // the transaction has its primary lock, and time left
	starving           // the transaction is alive, and readers have delayed its commit for too long
	missing            // the primary lock is not there, but may still arrive
	tooEarly           // a reader asks for a commit timestamp of at least answer.at
	notPrimary         // the lock names another primary
	unknown            // too old: its commit may have been collected
)

// answer is the result of a step in addition to the record.
type answer struct {
	outcome outcome
	at      Timestamp
	lock    *lock
	value   []byte
	found   bool
}

// prewrite places the lock l. It is idempotent.
func prewrite(r record, l lock) (record, answer) {
	switch at := r.committed(l.Start); {
	case at > 0:
		return r, answer{outcome: committed, at: at}
	case r.Aborted.has(l.Start):
		return r, answer{outcome: aborted}
	case r.heldBy(l.Start):
		return r, answer{}
	case l.Start < r.Safe:
		return r, answer{outcome: tooOld, at: r.Safe}
	case r.newest() > l.Start:
		return r, answer{outcome: conflict, at: r.newest()}
	case r.Lock != nil:
		return r, answer{outcome: locked, lock: r.Lock}
	}
	r.Lock = &l
	return r, answer{}
}

// commit turns the lock of the transaction start into a version. key is the record's key.
func commit(r record, key string, start, at Timestamp) (record, answer) {
	switch was := r.committed(start); {
	case was > 0:
		return r, answer{outcome: committed, at: was}
	case !r.heldBy(start) && start < r.Safe && !r.Aborted.has(start):
		return r, answer{outcome: unknown, at: r.Safe}
	case !r.heldBy(start): // rolled back
		return r, answer{outcome: aborted}
	case at < r.Lock.MinCommit:
		return r, answer{outcome: tooEarly, at: r.Lock.MinCommit}
	}
	l := r.Lock
	r.Lock = nil
	r.Writes = slices.Concat([]write{{
		Commit: at, Start: start, Kind: l.Kind, Value: l.Value, Primary: l.Primary == key && !l.Alone}}, r.Writes)
	return trim(r), answer{outcome: committed, at: at}
}

// commitAtOnce is a prewrite and the commit in one step. The timestamp at must be issued in
// the request that writes the record: a snapshot above it that was read before would change.
func commitAtOnce(r record, key string, l lock, at Timestamp) (record, answer) {
	locked, a := prewrite(r, l)
	if a.outcome != done {
		return r, a
	}
	return commit(locked, key, l.Start, at)
}

// rollback removes the lock of the transaction start, and refuses it from now on.
func rollback(r record, start Timestamp) (record, answer) {
	if at := r.committed(start); at > 0 {
		return r, answer{outcome: committed, at: at}
	}
	if r.heldBy(start) {
		r.Lock = nil
	}
	if start >= r.Safe {
		r.Aborted = r.Aborted.with(start)
	}
	return r, answer{outcome: aborted}
}

// A question asks for the fate of the transaction that has the lock.
type question struct {
	lock *lock     // found anywhere; its primary is asked
	now  Timestamp // the oracle's time
	// push is a reader's snapshot: if the transaction is alive, it can commit only above
	// push, unless the answer is starving. 0 changes nothing.
	push Timestamp
}

// check answers a question at the primary of its lock, and rolls the transaction back
// there if the lock has expired. Both are one step, so that no heartbeat and no commit can
// happen in between.
func check(r record, key string, q question) (record, answer) {
	start := q.lock.Start
	switch at := r.committed(start); {
	case at > 0:
		return r, answer{outcome: committed, at: at}
	case r.Aborted.has(start):
		return r, answer{outcome: aborted}
	case r.heldBy(start):
		return checkHeld(r, key, q)
	case start < r.Safe:
		return r, answer{outcome: aborted} // prewrite refuses it from now on
	case q.now < q.lock.Expires:
		return r, answer{outcome: missing, lock: q.lock}
	}
	return rollback(r, start)
}

func checkHeld(r record, key string, q question) (record, answer) {
	switch {
	case q.lock.Primary != key || r.Lock.Primary != key:
		return r, answer{outcome: notPrimary, lock: r.Lock}
	case q.now >= r.Lock.Expires:
		return rollback(r, q.lock.Start)
	case q.push > 0 && q.push >= r.Lock.MinCommit && r.Lock.starves(q.now):
		return r, answer{outcome: starving, lock: r.Lock}
	case q.push > 0 && q.push >= r.Lock.MinCommit:
		r.Lock = r.Lock.pushed(q.push, q.now)
	}
	return r, answer{outcome: alive, lock: r.Lock}
}

// heartbeat extends the primary lock of the transaction start until expires.
func heartbeat(r record, key string, start, expires Timestamp) (record, answer) {
	switch {
	case !r.heldBy(start):
		return r, answer{outcome: aborted}
	case r.Lock.Primary != key:
		return r, answer{outcome: notPrimary, lock: r.Lock}
	case r.Lock.Expires < expires:
		longer := *r.Lock
		longer.Expires = expires
		r.Lock = &longer
	}
	return r, answer{outcome: alive, lock: r.Lock}
}

// read returns the value in the snapshot at. For a lock that could commit in it, the answer
// is locked, except for those of passed: transactions that will commit later.
func read(r record, at Timestamp, passed map[Timestamp]bool) answer {
	switch {
	case at < r.Safe:
		return answer{outcome: tooOld, at: r.Safe}
	case r.Lock != nil && r.Lock.Start <= at && r.Lock.Kind != lockOnly && !passed[r.Lock.Start]:
		return answer{outcome: locked, lock: r.Lock}
	}
	for _, w := range r.Writes {
		if w.Commit <= at && (w.Kind == put || w.Kind == remove) {
			return answer{value: w.Value, found: w.Kind == put, at: w.Commit}
		}
	}
	return answer{}
}

// validate checks that a key that the transaction start has read is unchanged just before
// the commit timestamp at. It ignores the transaction's own lock.
func validate(r record, start, at Timestamp, passed map[Timestamp]bool) answer {
	for _, w := range r.Writes {
		if w.Commit > start && w.Commit <= at && w.Kind != lockOnly {
			return answer{outcome: conflict, at: w.Commit}
		}
	}
	switch {
	case r.heldBy(start):
		return answer{}
	case start < r.Safe:
		return answer{outcome: tooOld, at: r.Safe}
	}
	if a := read(r, at, passed); a.outcome != done {
		return a
	}
	return answer{}
}

// Bounds of one record.
const (
	maxVersions = 64
	maxBytes    = 256 << 10 // of all values
)

// trim raises the safe point of a record that is too large. It keeps commits that other
// locks may depend on, without their values, until collect.
func trim(r record) record {
	count, bytes, safe := 0, 0, r.Safe
	for _, w := range r.Writes {
		count, bytes = count+1, bytes+len(w.Value)
		if w.Kind != status && (count > maxVersions || bytes > maxBytes) {
			return drop(r, safe, true)
		}
		safe = w.Commit
	}
	return r
}

// drop sets the safe point to safe, and drops versions that no snapshot from it on can see.
// If decisions is set, it keeps the commits of primaries.
func drop(r record, safe Timestamp, decisions bool) record {
	kept := make([]write, 0, len(r.Writes))
	for i, seen := 0, false; i < len(r.Writes); i++ {
		w := r.Writes[i]
		data := w.Kind == put || w.Kind == remove
		switch {
		case w.Commit > safe, data && !seen && (w.Kind == put || decisions):
			kept = append(kept, w)
		case w.Primary && decisions:
			w.Kind, w.Value = status, nil
			kept = append(kept, w)
		}
		seen = seen || data && w.Commit <= safe
	}
	r.Safe = max(r.Safe, safe)
	r.Writes, r.Aborted = kept, r.Aborted.from(r.Safe)
	return r
}

// collect drops versions that no snapshot from safe on can see. Before it runs, every lock
// of a transaction that began before safe must be resolved, in all records: collect also
// drops the commits that decide their fate.
func collect(r record, safe Timestamp) (record, answer) {
	if r.Lock != nil && r.Lock.Start < safe {
		return r, answer{outcome: locked, lock: r.Lock}
	}
	return drop(r, safe, false), answer{}
}
