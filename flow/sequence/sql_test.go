package sequence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestDatabases runs each test by each client.
func TestDatabases(t *testing.T) {
	t.Parallel()
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, test := range map[string]func(t *testing.T, db *databases.DB){
			"poison becomes a dead letter":               testPoison,
			"two processes deliver once and in order":    testTwoProcesses,
			"a key that comes back is looked at":         testComesBack,
			"holes are split, closed, listed, purged":    testHoles,
			"a key begins where it is set":               testBegin,
			"what a delivery costs":                      testCosts,
			"errors say what was wrong":                  testErrors,
			"odd names are data":                         testNames,
			"holes of several processes do not deadlock": testFillAndOpen,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, withTables(t, open(t)))
			})
		}
	})
}

// inDatabase returns a sequencer on db with a short or a very long wait.
func inDatabase(t *testing.T, db driver.Beginner[driver.SQL], j *journal, wait time.Duration) *sequence.Sequencer[driver.SQL] {
	t.Helper()
	return over(t, sequence.InTx(db, sequence.Table{}), record, j, sequence.Options{Wait: wait})
}

// testTwoProcesses: each offers all events but the fifth of the same keys, in its own order. The
// missing one is passed over once.
func testTwoProcesses(t *testing.T, db *databases.DB) {
	const keys, each = 3, 12
	var all sync.WaitGroup
	for seed := range uint64(2) {
		var j journal
		s := inDatabase(t, db.Again(t), &j, 50*time.Millisecond)
		r := rand.New(rand.NewPCG(seed, 9))
		all.Go(func() {
			todo := slices.DeleteFunc(slices.Concat(events(keys, each), events(keys, each)), func(e sequence.Event) bool { return e.Seq == 5 })
			bring(t, s, r, 4*keys, todo)
			testbed.Eventually(t, "nothing is held", bound, func() bool { return s.Load() == sequence.Load{} })
		})
	}
	all.Wait()
	for k := range keys {
		key := string(rune('a' + k))
		last, seen := int64(0), map[int64]bool{}
		for word := range strings.SplitSeq(effects(t, db), ", ") {
			var seq int64
			if n, _ := fmt.Sscanf(word, key+" 0:%d", &seq); n == 0 {
				continue
			}
			if late := strings.HasSuffix(word, "late"); seen[seq] || !late && seq <= last {
				t.Errorf("key %s: %s after %d", key, word, last)
			} else if !late {
				last = seq
			}
			seen[seq] = true
		}
		if len(seen) != each-1 || seen[5] || last != each {
			t.Errorf("key %s: delivered %v", key, seen)
		}
	}
}

// testComesBack: a key moves to another process and back, as with a partition. The first process waits
// for no event that the other one delivered, even if the key was halted for it.
func testComesBack(t *testing.T, db *databases.DB) {
	var first, second journal
	a := inDatabase(t, db, &first, time.Hour)
	b := inDatabase(t, db.Again(t), &second, time.Hour)
	offers(t, a, "k", "1=delivered 2=delivered")
	offers(t, b, "k", "3=delivered")
	offers(t, a, "k", "4=delivered") // not held
	if got := first.take(); strings.Contains(got, "gap") {
		t.Errorf("told %s", got)
	}
	halting := over(t, sequence.InTx(db.Again(t), sequence.Table{}), record, &first,
		sequence.Options{Wait: time.Millisecond, Halt: true})
	offers(t, halting, "k", "6=held")
	testbed.Eventually(t, "the key is halted", bound, func() bool { return strings.Contains(first.take(), "halted") })
	offers(t, halting, "k", "7=refused")
	offers(t, b, "k", "5=delivered")
	offers(t, halting, "k", "7=held 8=delivered") // 7 with 6, together
	if got := effects(t, db); got != "k 0:1, k 0:2, k 0:3, k 0:4, k 0:5, k 0:6, k 0:7, k 0:8" {
		t.Errorf("effects: %s", got)
	}
}

// testHoles compares the table with memory over random moves.
func testHoles(t *testing.T, db *databases.DB) {
	memory, store := &sequence.Memory{}, sequence.InTx[driver.SQL](db, sequence.Table{})
	hole := sequence.Hole{Key: "a", Epoch: 3, From: 1, To: 9}
	ok(t, store.Advance(t.Context(), sequence.Move{Stream: "test", Key: "a", To: sequence.Position{Epoch: 3, Seq: 9}, Hole: &hole}, noSQL))
	ok(t, memory.Advance(t.Context(), sequence.Move{Stream: "test", Key: "a", To: sequence.Position{Epoch: 3, Seq: 9}, Hole: &hole}, nothing))
	for _, seq := range []int64{5, 5, 1, 9, 7, 10, 6, 8, 2} {
		at := sequence.Position{Epoch: 3, Seq: seq}
		got, err := store.Fill(t.Context(), "test", "a", at, noSQL)
		want, wantErr := memory.Fill(t.Context(), "test", "a", at, nothing)
		if got != want || errors.Is(err, sequence.ErrNoHole) != errors.Is(wantErr, sequence.ErrNoHole) || (err == nil) != (wantErr == nil) {
			t.Errorf("fill %v: %+v, %v; memory: %+v, %v", at, got, err, want, wantErr)
		}
		var open []sequence.Hole
		db.Do(t, func(ctx context.Context, tx driver.SQL) error {
			holes, err := sequence.Table{}.Open(ctx, tx, "test", 100)
			for _, h := range holes {
				if time.Since(h.Opened).Abs() > time.Hour {
					t.Errorf("opened %v", h.Opened)
				}
				open = append(open, h.Hole)
			}
			return err
		})
		if want := memory.Holes("test", "a"); fmt.Sprint(open) != fmt.Sprint(want) {
			t.Errorf("after %v: open %v, want %v", at, open, want)
		}
	}
	db.Do(t, func(ctx context.Context, tx driver.SQL) error {
		if err := (sequence.Table{}).WriteOff(ctx, tx, "test", sequence.Hole{Key: "a", Epoch: 3, From: 3, To: 5}); !errors.Is(err, sequence.ErrNoHole) {
			t.Errorf("no such hole: %v", err)
		}
		return sequence.Table{}.WriteOff(ctx, tx, "test", sequence.Hole{Key: "a", Epoch: 3, From: 3, To: 4})
	})
	if s := where(t, db, "a"); s != (sequence.State{Position: sequence.Position{Epoch: 3, Seq: 9}}) {
		t.Errorf("%+v", s)
	}
	for _, c := range []struct {
		older time.Duration
		limit int
		want  int64
	}{{time.Hour, 100, 0}, {0, 3, 3}, {0, 100, 5}} {
		db.Do(t, func(ctx context.Context, tx driver.SQL) error {
			n, err := sequence.Table{}.Purge(ctx, tx, "test", c.older, c.limit)
			if n != c.want {
				t.Errorf("purged %d, want %d", n, c.want)
			}
			return err
		})
	}
}

func noSQL(context.Context, driver.SQL) error { return nil }

func nothing(context.Context, struct{}) error { return nil }

func testBegin(t *testing.T, db *databases.DB) {
	at := sequence.Position{Epoch: 2, Seq: 100}
	begin := func(ctx context.Context, tx driver.SQL) error {
		return sequence.Table{}.Begin(ctx, tx, "test", "a", at)
	}
	db.Do(t, begin)
	if err := db.Try(t.Context(), begin); !errors.Is(err, sequence.ErrConflict) {
		t.Errorf("begun again: %v", err)
	}
	var j journal
	offers(t, inDatabase(t, db, &j, time.Hour), "a", "2:100=duplicate 1:500=stale 2:101=delivered")
	for _, at := range []sequence.Position{{}, {Epoch: -1}, {Seq: -1}} {
		wantKind(t, db.Try(t.Context(), func(ctx context.Context, tx driver.SQL) error {
			return sequence.Table{}.Begin(ctx, tx, "test", "b", at)
		}), interlock.Bug, nil)
	}
}

// testCosts counts statements: one for each delivery, and none for a duplicate.
func testCosts(t *testing.T, db *databases.DB) {
	c := &databases.Counted{BeginnerAt: db}
	var j journal
	s := over(t, sequence.InTx[driver.SQL](c, sequence.Table{}),
		func(context.Context, driver.SQL, sequence.Delivery) error { return nil }, &j, sequence.Options{})
	first := "3 statements, 1 commits" // a read and, on MariaDB, a row to lock
	if db.Dialect == driver.Postgres {
		first = "2 statements, 1 commits"
	}
	for _, step := range []struct{ offers, want string }{
		{"1=delivered", first},
		{"2=delivered", "1 statements, 1 commits"},
		{"1=duplicate", "0 statements, 0 commits"},
		{"4=held 5=held 6=held", "1 statements, 0 commits"}, // checks whether another process has 3
		{"5=repeated", "0 statements, 0 commits"},
		{"3=delivered", "2 statements, 2 commits"}, // the event, and then the three together
	} {
		c.Reset()
		offers(t, s, "a", step.offers)
		if got := fmt.Sprintf("%d statements, %d commits", c.Statements.Load(), c.Commits.Load()); got != step.want {
			t.Errorf("%s: %s, want %s", step.offers, got, step.want)
		}
	}
}

func testErrors(t *testing.T, db *databases.DB) {
	var j journal
	s := over(t, sequence.InTx[driver.SQL](db, sequence.Table{Name: "missing"}), record, &j, sequence.Options{})
	_, err := s.Offer(t.Context(), event("a", 1))
	wantKind(t, err, interlock.Definite, nil)
	if !strings.Contains(err.Error(), "--only sequence") {
		t.Error(err)
	}
	long := over(t, sequence.InTx[driver.SQL](db, sequence.Table{Name: strings.Repeat("x", 60)}), record, &j, sequence.Options{})
	_, err = long.Offer(t.Context(), event("a", 1))
	wantKind(t, err, interlock.Bug, interlock.ErrName)
	var table sequence.Table
	ctx, tx := t.Context(), db.Begun(t, driver.SessionIsolation)
	_, noStream := table.Open(ctx, tx, "", 1)
	_, noLimit := table.Open(ctx, tx, "test", 0)
	_, noAge := table.Purge(ctx, tx, "test", -1, 1)
	_, none := table.Purge(ctx, tx, "test", 0, 0)
	_, noKey := table.Position(ctx, tx, "test", "")
	for _, err := range []error{noStream, noLimit, noAge, none, noKey, table.WriteOff(ctx, tx, "test", sequence.Hole{})} {
		wantKind(t, err, interlock.Bug, nil)
	}
	ok(t, tx.Rollback(ctx))
}

func testNames(t *testing.T, db *databases.DB) {
	var j journal
	s := inDatabase(t, db, &j, time.Hour)
	names := []string{`it's "\`, "A", "a", "a ", "\u00e4", "a\u0308", "?", "$1", strings.Repeat("x", 512)}
	for _, name := range names {
		offers(t, s, name, "1=delivered")
	}
	again := inDatabase(t, db, &j, time.Hour)
	for _, name := range names {
		offers(t, again, name, "1=duplicate 2=delivered")
	}
}

// testFillAndOpen: late events and new holes of the same key, from several processes, do not deadlock.
func testFillAndOpen(t *testing.T, db *databases.DB) {
	store := sequence.InTx[driver.SQL](db, sequence.Table{})
	ok(t, store.Advance(t.Context(), sequence.Move{Stream: "test", Key: "a", To: sequence.Position{Seq: 20},
		Hole: &sequence.Hole{Key: "a", From: 1, To: 20}}, noSQL))
	var all sync.WaitGroup
	for w := range int64(2) {
		own := sequence.InTx(db.Again(t), sequence.Table{})
		all.Go(func() {
			for seq := w + 1; seq <= 20; seq += 2 {
				if _, err := own.Fill(t.Context(), "test", "a", sequence.Position{Seq: seq}, noSQL); err != nil {
					t.Errorf("fill %d: %v", seq, err)
				}
			}
		})
	}
	all.Go(func() {
		for seq := int64(20); seq < 40; seq += 2 {
			err := store.Advance(t.Context(), sequence.Move{Stream: "test", Key: "a", From: sequence.Position{Seq: seq},
				To: sequence.Position{Seq: seq + 2}, Hole: &sequence.Hole{Key: "a", From: seq + 1, To: seq + 2}}, noSQL)
			if err != nil {
				t.Errorf("open at %d: %v", seq, err)
			}
		}
	})
	all.Wait()
	if s := where(t, db, "a"); s.Seq != 40 || s.Holes != 10 {
		t.Errorf("%+v", s)
	}
}

// testPoison: an event that its handler always rejects becomes a dead letter and blocks
// no later event; it is replayed as late, or discarded.
func testPoison(t *testing.T, db *databases.DB) {
	var j journal
	same := func(tx driver.SQL) driver.SQL { return tx }
	poison := &interlock.Error{Op: "handle", Kind: interlock.Definite, Err: errors.New("no such customer: \x00")}
	away := errors.New("the database is away")
	var fail error
	handler := func(ctx context.Context, tx driver.SQL, d sequence.Delivery) error {
		if err := record(ctx, tx, d); err != nil {
			return err
		}
		if d.Seq == 2 || d.Seq == 4 {
			return fail
		}
		return nil
	}
	stream := "test"
	letters := func(want int) (all []sequence.DeadLetter) {
		t.Helper()
		db.Do(t, func(ctx context.Context, sql driver.SQL) (err error) {
			all, err = sequence.Table{}.DeadLetters(ctx, sql, stream, 10)
			return err
		})
		if len(all) != want {
			t.Fatalf("%d letters: %+v", len(all), all)
		}
		return all
	}
	buried := sequence.WithDeadLetters(sequence.Table{}, stream, same, handler, &sequence.Poison{Attempts: 3})
	s := over(t, sequence.InTx[driver.SQL](db, sequence.Table{}), buried, &j, sequence.Options{Wait: time.Hour})
	offers(t, s, "a", "1=delivered")
	fail = away
	for range 5 {
		if _, err := s.Offer(t.Context(), event("a", 2)); !errors.Is(err, away) {
			t.Fatal(err)
		}
	}
	letters(0) // it is not the event's fault
	fail = poison
	for range 3 {
		if _, err := s.Offer(t.Context(), event("a", 2)); !errors.Is(err, poison) {
			t.Fatal(err)
		}
	}
	offers(t, s, "a", "2=delivered 3=delivered 2=duplicate")
	for range 3 {
		if _, err := s.Offer(t.Context(), event("a", 4)); !errors.Is(err, poison) {
			t.Fatal(err)
		}
	}
	offers(t, s, "a", "4=delivered 5=delivered")
	if got := effects(t, db); got != "a 0:1, a 0:3, a 0:5" {
		t.Errorf("effects: %s", got)
	}
	all := letters(2)
	if l := all[0]; l.Key != "a" || l.Seq != 2 || l.Attempts != 3 || l.Error != strings.ReplaceAll(poison.Error(), "\x00", "\uFFFD") || where(t, db, "a").Holes != 2 {
		t.Errorf("%+v, %+v", l, where(t, db, "a"))
	}
	if err := sequence.Replay(t.Context(), db, sequence.Table{}, stream, all[0], same, handler); !errors.Is(err, poison) {
		t.Errorf("%v", err)
	}
	for range 4 { // a replay is no delivery: it makes no dead letter
		if err := sequence.Replay(t.Context(), db, sequence.Table{}, stream, all[0], same, buried); !errors.Is(err, poison) {
			t.Errorf("%v", err)
		}
	}
	letters(2)
	fail = nil
	if err := sequence.Replay(t.Context(), db, sequence.Table{}, stream, all[0], same, handler); err != nil {
		t.Error(err)
	}
	if err := sequence.Replay(t.Context(), db, sequence.Table{}, stream, all[0], same, handler); !errors.Is(err, sequence.ErrNoHole) {
		t.Errorf("%v", err)
	}
	db.Do(t, func(ctx context.Context, sql driver.SQL) error {
		return sequence.Table{}.Discard(ctx, sql, stream, "a", sequence.Position{Seq: 4})
	})
	letters(0)
	if got := effects(t, db); got != "a 0:1, a 0:3, a 0:5, a 0:2 late" || where(t, db, "a").Holes != 0 {
		t.Errorf("effects: %s, %+v", got, where(t, db, "a"))
	}
	closed(t, s)
	fail = poison
	again := over(t, sequence.InTx[driver.SQL](db, sequence.Table{}), buried, &j, sequence.Options{Wait: time.Hour})
	offers(t, again, "a", "2=duplicate 4=duplicate 6=delivered")
	closed(t, again)
	invalid := sequence.WithDeadLetters(sequence.Table{}, stream, same, handler, &sequence.Poison{Attempts: -1})
	offers(t, over(t, sequence.InTx[driver.SQL](db, sequence.Table{}), invalid, &j, sequence.Options{Wait: time.Hour}), "a", "7=delivered")
	letters(0)
	// The event arrives again at another process, which handles it.
	once := func() *sequence.Sequencer[driver.SQL] {
		h := sequence.WithDeadLetters(sequence.Table{}, stream, same, handler, &sequence.Poison{Attempts: 1})
		return over(t, sequence.InTx[driver.SQL](db, sequence.Table{}), h, &j, sequence.Options{Wait: time.Hour})
	}
	one := once()
	offers(t, one, "b", "1=delivered")
	if _, err := one.Offer(t.Context(), event("b", 2)); !errors.Is(err, poison) {
		t.Fatal(err)
	}
	offers(t, one, "b", "2=delivered")
	letters(1)
	fail = nil
	offers(t, once(), "b", "2=late")
	letters(0)
}
