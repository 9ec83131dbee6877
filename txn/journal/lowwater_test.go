package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

// between is a store that runs a function once, between two pages of unfinished heads.
type between struct {
	*memory.Journal
	do func()
}

func (b *between) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	heads, err := b.Journal.Due(ctx, shard, behind, limit)
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return heads, err
}

// TestLowWaterMissesNone: a transaction counts even if it becomes due earlier during the
// listing by due times, which then misses it.
func TestLowWaterMissesNone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &between{Journal: memory.NewJournal()}
		j := open(t, store, &journal.Options{Shards: 1})
		began := time.Now()
		old, err := j.Begin(t.Context(), "old", "x", due.Add(time.Hour), says("begin")...)
		ok(t, err)
		time.Sleep(time.Hour)
		for i := range 2000 {
			ok(t, txntest.Second(j.Begin(t.Context(), fmt.Sprint(i), "x", due, says("begin")...)))
		}
		store.do = func() { ok(t, old.Append(t.Context(), due.Add(-time.Hour), says("helped")...)) }
		mark, err := j.LowWater(t.Context(), time.Now(), time.Minute)
		ok(t, err)
		if mark.After(began) {
			t.Errorf("%v, though one began at %v", mark, began)
		}
	})
}

// heads is a store that counts the listings of due transactions, and supports nothing
// else.
type heads struct {
	driver.Journal
	asked int
}

func (h *heads) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	h.asked++
	return h.Journal.Due(ctx, shard, behind, limit)
}

func (*heads) Read(context.Context, string, int64) (driver.Head, []driver.Record, error) {
	return driver.Head{}, nil, errors.New("a transaction was read")
}

// TestLowWaterCosts two requests for each shard and for each 200 that are unfinished.
func TestLowWaterCosts(t *testing.T) {
	store := &heads{Journal: memory.NewJournal()}
	j := open(t, store, &journal.Options{Shards: 3})
	in := make([]int, 3)
	for i := range 900 {
		log, err := j.Begin(t.Context(), fmt.Sprint(i), "x", due, says("begin")...)
		ok(t, err)
		if i%10 == 0 {
			ok(t, log.End(t.Context(), says("end")...))
		} else {
			in[log.Head().Shard]++
		}
	}
	want := 0
	for _, n := range in {
		want += 2 * (n/200 + 1)
	}
	_, err := j.LowWater(t.Context(), time.Now(), time.Minute)
	if err != nil || store.asked != want {
		t.Errorf("%d requests for %v unfinished, want %d: %v", store.asked, in, want, err)
	}
}

// TestLowWater: the mark is a margin before the oldest unfinished transaction, even after
// later appends to that, and never after now.
func TestLowWater(t *testing.T) {
	bubble(t, func(t *testing.T) {
		j := open(t, memory.NewJournal(), nil)
		low := func() time.Time {
			mark, err := j.LowWater(t.Context(), time.Now(), time.Minute)
			ok(t, err)
			return mark.Add(time.Minute)
		}
		same := func(what string, got, want time.Time) {
			t.Helper()
			if !got.Equal(want.Truncate(time.Millisecond)) {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		same("nothing there", low(), time.Now())
		first := time.Now()
		one, err := j.Begin(t.Context(), "1", "x", due, says("begin")...)
		ok(t, err)
		time.Sleep(time.Hour)
		second := time.Now()
		two, err := j.Begin(t.Context(), "2", "x", due, says("begin")...)
		ok(t, err)
		time.Sleep(time.Hour)
		ok(t, one.Append(t.Context(), due, says("more")...))
		same("the first is unfinished", low(), first)
		ok(t, one.End(t.Context(), says("end")...))
		same("the second is", low(), second)
		ok(t, two.End(t.Context(), says("end")...))
		same("none is", low(), time.Now())
		_, err = j.LowWater(t.Context(), time.Now(), 0)
		wantKind(t, err, interlock.Bug, nil)
	})
}

// TestMarkExcepts: old transactions do not hold the mark back; it excepts them, the
// oldest first, up to MaxExcept.
func TestMarkExcepts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		j := open(t, memory.NewJournal(), &journal.Options{Shards: 3})
		first := time.Now()
		for i := range journal.MaxExcept {
			ok(t, txntest.Second(j.Begin(t.Context(), fmt.Sprint("old", i), "x", due, says("begin")...)))
			time.Sleep(time.Second)
		}
		at := func(want time.Time, excepted int) journal.Mark {
			t.Helper()
			m, err := j.Mark(t.Context(), time.Now(), time.Minute, time.Hour)
			ok(t, err)
			if !m.Time.Equal(want.Add(-time.Minute).Truncate(time.Millisecond)) || len(m.Except) != excepted || !m.Pinned.Equal(first.Add(-time.Minute).Truncate(time.Millisecond)) {
				t.Errorf("%v, %d are excepted, pinned at %v; want %v, %d", m.Time, len(m.Except), m.Pinned, want, excepted)
			}
			return m
		}
		at(first, 0)
		time.Sleep(2 * time.Hour)
		m := at(time.Now(), journal.MaxExcept)
		if m.Unfinished != journal.MaxExcept || !m.Oldest.Equal(first) || m.Except[0] != "old0" {
			t.Errorf("%+v", m)
		}
		young := time.Now()
		ok(t, txntest.Second(j.Begin(t.Context(), "young", "x", due, says("begin")...)))
		time.Sleep(30 * time.Minute)
		at(young, journal.MaxExcept)
		time.Sleep(time.Hour) // now it is old, and beyond MaxExcept
		at(young, journal.MaxExcept)
		pinned, err := j.LowWater(t.Context(), time.Now(), time.Minute)
		if ok(t, err); !pinned.Equal(first.Add(-time.Minute).Truncate(time.Millisecond)) {
			t.Errorf("LowWater is %v", pinned)
		}
	})
}

// TestForgetAll: it removes all transactions that ended before a time, in batches, and
// keeps unfinished ones. By an operator it leaves a record with the actor.
func TestForgetAll(t *testing.T) {
	bubble(t, func(t *testing.T) {
		j := open(t, memory.NewJournal(), nil)
		for i := range 25 {
			log, err := j.Begin(t.Context(), fmt.Sprint(i), "x", due, says("begin")...)
			ok(t, err)
			if i != 7 {
				ok(t, log.End(t.Context(), says("end")...))
			}
		}
		time.Sleep(time.Hour)
		removed, record, err := j.ForgetBy(t.Context(), time.Now().Add(-time.Minute), 10, "ada", "the disk is full")
		if ok(t, err); removed != 24 {
			t.Errorf("%d removed", removed)
		}
		log, entries, err := j.Open(t.Context(), record)
		ok(t, err)
		if log == nil || log.Head().Ended.IsZero() || len(entries) != 1 || !strings.Contains(string(entries[0].Data), `"by":"ada","reason":"the disk is full"`) {
			t.Fatalf("%v, %+v", log, entries)
		}
		heads, err := j.Heads(t.Context(), "", 100)
		if ok(t, err); len(heads) != 2 {
			t.Errorf("%d transactions are left", len(heads))
		}
		_, _, err = j.ForgetBy(t.Context(), time.Now(), 10, "ada", "")
		wantKind(t, err, interlock.Bug, nil)
		_, err = j.ForgetAll(t.Context(), time.Now(), 0)
		wantKind(t, err, interlock.Bug, nil)
		ended, stop := context.WithCancel(t.Context())
		stop()
		if _, err := j.ForgetAll(ended, time.Now(), 1); err == nil {
			t.Error("it does not end")
		}
	})
}

// TestForgetLooksOnce at each payload of an existing transaction: the cost of forgetting
// nothing does not grow with the table.
func TestForgetLooksOnce(t *testing.T) {
	eachTable(t, func(t *testing.T, db *databases.DB, table *journal.Table[driver.SQL]) {
		ok(t, table.Append(t.Context(), groupOfNobody("t"))[0])
		for _, id := range []string{"t", "nothing"} {
			ok(t, table.PutPayload(t.Context(), id, []byte("sum"), []byte("data")))
		}
		later := time.Now().Add(time.Hour)
		if n, err := table.Forget(t.Context(), later, 10); n != 0 || err != nil {
			t.Fatalf("%d forgotten, %v", n, err)
		}
		if p, err := table.Payload(t.Context(), "t", []byte("sum")); err != nil || string(p) != "data" {
			t.Errorf("the payload of a transaction is %q, %v", p, err)
		}
		young := databases.One[int64](t, db, `select count(*) from interlock_journal_payload where kept < 4000000000000000000`)
		if all := databases.One[int64](t, db, `select count(*) from interlock_journal_payload`); young != 0 || all != 1 {
			t.Errorf("%d payloads are left, %d of which are looked at again", all, young)
		}
	}, databases.Pgx, databases.Maria)
}

func groupOfNobody(id string) []driver.Append {
	return []driver.Append{{Transaction: id, Records: []driver.Record{{Kind: "begin"}}, Due: due}}
}
