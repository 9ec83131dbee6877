package percolator

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

// locked1 returns a record with the primary lock of a transaction that began at 5.
func locked1(t *testing.T) record {
	t.Helper()
	r, a := prewrite(record{}, lock{Start: 5, Primary: "a", Kind: put, Value: []byte("v"), Expires: 100})
	if a.outcome != done {
		t.Fatalf("prewrite answers %v", a.outcome)
	}
	return r
}

func TestHeartbeatExtendsTheLivingPrimaryAlone(t *testing.T) {
	r := locked1(t)
	longer, a := heartbeat(r, "a", 5, 200)
	if a.outcome != alive || longer.Lock.Expires != 200 || r.Lock.Expires != 100 {
		t.Errorf("it answers %v, expires at %d, and before at %d", a.outcome, longer.Lock.Expires, r.Lock.Expires)
	}
	if kept, _ := heartbeat(longer, "a", 5, 150); kept.Lock.Expires != 200 {
		t.Errorf("a late heartbeat shortened it to %d", kept.Lock.Expires)
	}
	if _, a := heartbeat(r, "b", 5, 200); a.outcome != notPrimary {
		t.Errorf("at a secondary it answers %v", a.outcome)
	}
	gone, _ := rollback(r, 5)
	if after, a := heartbeat(gone, "a", 5, 200); a.outcome != aborted || after.Lock != nil {
		t.Errorf("after a rollback it answers %v", a.outcome)
	}
}

func TestCheckAsksThePrimaryAndItsTime(t *testing.T) {
	r := locked1(t)
	ask := func(r record, key string, now Timestamp) (record, outcome) {
		r, a := check(r, key, question{lock: &lock{Start: 5, Primary: key, Expires: 100}, now: now})
		return r, a.outcome
	}
	if _, o := ask(r, "a", 99); o != alive {
		t.Errorf("before it expires: %v", o)
	}
	longer, _ := heartbeat(r, "a", 5, 200)
	if _, o := ask(longer, "a", 150); o != alive {
		t.Errorf("after a heartbeat: %v", o)
	}
	if gone, o := ask(r, "a", 100); o != aborted || !gone.Aborted.has(5) || gone.Lock != nil {
		t.Errorf("when it expires: %v, %+v", o, gone)
	}
	if _, o := ask(r, "b", 100); o != notPrimary {
		t.Errorf("if another key is its primary: %v", o)
	}
	if _, o := ask(record{}, "a", 99); o != missing {
		t.Errorf("before the primary arrived: %v", o)
	}
	gone, o := ask(record{}, "a", 100)
	if o != aborted || !gone.Aborted.has(5) {
		t.Errorf("if the primary never arrived: %v", o)
	}
	if _, a := prewrite(gone, lock{Start: 5, Primary: "a", Kind: put}); a.outcome != aborted {
		t.Errorf("a late prewrite answers %v", a.outcome)
	}
}

// TestReadersWaitOnce: the first reader after a wait pushes the commit above the snapshots of the others.
func TestReadersWaitOnce(t *testing.T) {
	r, begun := locked1(t), timestamp.Of(time.Unix(1, 0))
	r.Lock.Expires = begun.Add(time.Minute)
	ask := func(after time.Duration, snapshot Timestamp) outcome {
		next, a := check(r, "a", question{lock: r.Lock, now: begun.Add(after), push: snapshot})
		r = next
		return a.outcome
	}
	ask(0, begun)
	ask(freeDelay, begun.Add(freeDelay))
	early, late := begun.Add(freeDelay+time.Millisecond), begun.Add(2*freeDelay-time.Millisecond)
	if a, b := ask(2*freeDelay-time.Millisecond, early), ask(2*freeDelay-time.Millisecond, late); a != starving || b != starving {
		t.Errorf("during the wait they get %v and %v", a, b)
	}
	if a, b := ask(2*freeDelay, early), ask(2*freeDelay, late); a != alive || b != alive {
		t.Errorf("after it they get %v and %v", a, b)
	}
}

func TestRepeatedStepsFindTheCommit(t *testing.T) {
	r, _ := commit(locked1(t), "a", 5, 6)
	steps := map[string]func() (record, answer){
		"prewrite": func() (record, answer) { return prewrite(r, lock{Start: 5, Primary: "a", Kind: put}) },
		"commit":   func() (record, answer) { return commit(r, "a", 5, 7) },
		"rollback": func() (record, answer) { return rollback(r, 5) },
		"check": func() (record, answer) {
			return check(r, "a", question{lock: &lock{Start: 5, Primary: "a"}, now: 1000})
		},
	}
	for name, step := range steps {
		if after, a := step(); a.outcome != committed || a.at != 6 || !reflect.DeepEqual(after, r) {
			t.Errorf("%s answers %v at %d, and leaves %+v", name, a.outcome, a.at, after)
		}
	}
}

func TestForUpdateConflictsAndChangesNothing(t *testing.T) {
	r, _ := commit(locked1(t), "a", 5, 6)
	r, _ = prewrite(r, lock{Start: 7, Primary: "a", Kind: lockOnly})
	if a := read(r, 8, nil); string(a.value) != "v" {
		t.Errorf("under the lock it is %q, %v", a.value, a.outcome)
	}
	if _, a := prewrite(r, lock{Start: 8, Primary: "a", Kind: put}); a.outcome != locked {
		t.Errorf("a writer beside it gets %v", a.outcome)
	}
	r, _ = commit(r, "a", 7, 9)
	if _, a := prewrite(r, lock{Start: 8, Primary: "a", Kind: put}); a.outcome != conflict || a.at != 9 {
		t.Errorf("a writer that began before gets %v", a.outcome)
	}
	if a := validate(r, 6, 20, nil); a.outcome != done {
		t.Errorf("a reader from before cannot commit: %v", a.outcome)
	}
}

func TestARecordStaysSmall(t *testing.T) {
	var r record
	write := func(start Timestamp, k kind, value []byte) {
		t.Helper()
		var a answer
		if r, a = prewrite(r, lock{Start: start, Primary: "a", Kind: k, Value: value, Alone: start%2 == 0}); a.outcome != done {
			t.Fatalf("prewrite at %d answers %v", start, a.outcome)
		}
		if r, a = commit(r, "a", start, start+1); a.outcome != committed {
			t.Fatalf("commit at %d answers %v", start, a.outcome)
		}
	}
	write(1, put, []byte("first"))
	for n := range Timestamp(2 * maxVersions) {
		write(10+3*n, lockOnly, nil)
	}
	if a := read(r, 1<<20, nil); string(a.value) != "first" {
		t.Fatalf("after many locks the value is %q", a.value)
	}
	last := Timestamp(0)
	for n := range Timestamp(2 * maxVersions) {
		last = 1000 + 3*n
		write(last, put, bytes.Repeat([]byte{1}, 1+int(n)))
	}
	values := 0
	for _, w := range r.Writes {
		switch {
		case w.Kind == put:
			values++
		case !w.Primary:
			t.Fatalf("nothing depends on %+v", w)
		}
	}
	if values != maxVersions {
		t.Errorf("it has %d values", values)
	}
	if a := read(r, 500, nil); a.outcome != tooOld || a.at != r.Safe {
		t.Errorf("an old snapshot gets %v", a.outcome)
	}
	if a := read(r, r.Safe, nil); !a.found {
		t.Error("there is nothing at the safe point")
	}
	if _, a := prewrite(r, lock{Start: 500, Primary: "a", Kind: put}); a.outcome != tooOld {
		t.Errorf("an old writer gets %v", a.outcome)
	}
	if _, a := check(r, "a", question{lock: &lock{Start: 1003, Primary: "a"}}); a.outcome != committed || a.at != 1004 {
		t.Errorf("an old commit on which others depend is %v at %d", a.outcome, a.at)
	}
	if _, a := commit(r, "a", 10, 12); a.outcome != unknown {
		t.Errorf("an old commit on which none depends is %v", a.outcome)
	}
	if a := validate(r, 1001, last, nil); a.outcome != conflict && a.outcome != tooOld {
		t.Errorf("a transaction that began below the safe point can commit: %v", a.outcome)
	}
	for range 9 {
		last += 3
		write(last, put, bytes.Repeat([]byte{1}, maxBytes/4))
	}
	if total := len(r.encode()); total > 3*maxBytes {
		t.Errorf("it has %d bytes", total)
	}
	r, _ = collect(r, last+2)
	if len(r.Writes) != 1 || r.Writes[0].Start != last {
		t.Errorf("after collection it has %d versions", len(r.Writes))
	}
	write(last+3, remove, nil)
	if r, _ = collect(r, last+5); !r.empty() {
		t.Errorf("a deleted key keeps %+v", r)
	}
}

func TestCollectionWaitsForLocks(t *testing.T) {
	r := locked1(t)
	if same, a := collect(r, 6); a.outcome != locked || !reflect.DeepEqual(same, r) {
		t.Errorf("it answers %v", a.outcome)
	}
	if _, a := collect(r, 5); a.outcome != done {
		t.Errorf("up to the lock it answers %v", a.outcome)
	}
}

func TestEncodedRecord(t *testing.T) {
	r, _ := commit(locked1(t), "a", 5, 6)
	r, _ = rollback(r, 9)
	r, _ = prewrite(r, lock{Start: 12, Primary: "b", Store: "s", Kind: remove, Expires: 20, MinCommit: 15, FirstPush: 16, LastPush: 17, Alone: true})
	r, _ = rollback(r, 1)
	text := r.encode()
	if got, err := decode(text); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v became %+v, %v", r, got, err)
	}
	for n := range text {
		if _, err := decode(text[:n]); !errors.Is(err, errFormat) {
			t.Errorf("%d of %d bytes are read: %v", n, len(text), err)
		}
	}
	for _, bad := range []string{"x", `{"format":1}`, string(text) + "x", "\x02\x00\x10", "\x02\x00\x00\xff\xff\xff\x0f"} {
		if _, err := decode([]byte(bad)); !errors.Is(err, errFormat) {
			t.Errorf("%q is read: %v", bad, err)
		}
	}
}

// TestCostOfHotRecord bounds the cost of one step on a key with 64 versions of 8 bytes.
func TestCostOfHotRecord(t *testing.T) {
	r := hotRecord(t, 8)
	text := r.encode()
	if len(text) > 1100 || len(r.Writes) != maxVersions {
		t.Errorf("a record of %d versions has %d bytes", len(r.Writes), len(text))
	}
	if testbed.Race {
		return // the race detector changes the count
	}
	start := r.newest().Add(time.Millisecond)
	if n := testing.AllocsPerRun(100, func() {
		r, _ := decode(text)
		written(t, r, start, text[:8]).encode()
	}); n > 5 {
		t.Errorf("a step allocates %v times", n)
	}
}

// hotRecord returns a record with the maximum number of versions, 2 ms apart, with values
// of size bytes.
func hotRecord(tb testing.TB, size int) record {
	tb.Helper()
	at := timestamp.Of(time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC))
	var r record
	for range 2 * maxVersions {
		at = at.Add(2 * time.Millisecond)
		r = written(tb, r, at, make([]byte, size))
	}
	return r
}

// written returns r after a transaction that began at start wrote a value.
func written(tb testing.TB, r record, start Timestamp, value []byte) record {
	tb.Helper()
	r, _ = prewrite(r, lock{Start: start, Primary: "account", Store: "ABCDEFGHIJKLMNOPQRSTUVWXYZ", Kind: put, Value: value,
		Expires: start.Add(3 * time.Second), Alone: true})
	r, a := commit(r, "account", start, start.Add(time.Millisecond))
	if a.outcome != committed {
		tb.Fatalf("a commit answers %v", a.outcome)
	}
	return r
}

func FuzzDecode(f *testing.F) {
	f.Add(record{}.encode())
	f.Add(hotRecord(f, 1).encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		again, err := decode(r.encode())
		if err != nil || !reflect.DeepEqual(r, again) {
			t.Errorf("%+v became %+v: %v", r, again, err)
		}
	})
}
