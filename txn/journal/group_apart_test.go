package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

// picky is a store that refuses a whole group if a type in it is bad.
type picky struct {
	*slow
	err error
}

func (p picky) Append(ctx context.Context, appends []driver.Append) []error {
	for _, a := range appends {
		if a.Type == "bad" {
			p.slow.Append(ctx, nil) // counts
			return repeat(len(appends), p.err)
		}
	}
	return p.slow.Append(ctx, appends)
}

// TestRefusedApart: the store's refusal of one member fails no other member, and finding
// that member costs few requests.
func TestRefusedApart(t *testing.T) {
	for name, err := range map[string]error{
		"definite": &interlock.Error{Op: "append", Kind: interlock.Definite, Err: errors.New("value out of range")},
		"held":     &interlock.Error{Op: "append", Kind: interlock.Retryable, Err: interlock.ErrHeld},
	} {
		runBubble(t, name, func(t *testing.T) {
			store := picky{newSlow(), err}
			gate := make(chan struct{})
			store.gate = gate
			j := open(t, store, &journal.Options{Requests: 1})
			var work sync.WaitGroup
			for i := range 65 {
				kind := "good"
				if i == 40 {
					kind = "bad"
				}
				work.Go(func() {
					_, err := j.Begin(t.Context(), fmt.Sprint("t", i), kind, due, says("begin")...)
					if kind == "good" && err != nil || kind == "bad" && interlock.Kind(err) != interlock.Kind(store.err) {
						t.Errorf("%d: %v", i, err)
					}
				})
			}
			synctest.Wait() // one is sent, the others form a group
			close(gate)
			work.Wait()
			if n := len(store.groups); n > 50 {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// TestBadTextIsRefusedAtTheEdge: before anything is sent, by the rule of all stores.
func TestBadTextIsRefusedAtTheEdge(t *testing.T) {
	store := newSlow()
	j := open(t, store, nil)
	for _, bad := range []string{"a\xff", "a\x00b", strings.Repeat("x", 256)} {
		_, err := j.Begin(t.Context(), bad, "", due, says("begin")...)
		wantKind(t, err, interlock.Bug, interlock.ErrName)
		_, err = j.Begin(t.Context(), bad, "", due, journal.Entry{Kind: "begin", Data: make([]byte, 5000)})
		wantKind(t, err, interlock.Bug, interlock.ErrName)
		_, err = j.Begin(t.Context(), "t", bad, due, says("begin")...)
		wantKind(t, err, interlock.Bug, interlock.ErrName)
		_, err = j.Begin(t.Context(), "t", "", due, journal.Entry{Kind: "begin", Step: bad})
		wantKind(t, err, interlock.Bug, interlock.ErrName)
		_, _, err = j.Open(t.Context(), bad)
		if len(bad) < 256 {
			wantKind(t, err, interlock.Bug, interlock.ErrName)
		}
	}
	if len(store.groups) > 0 {
		t.Errorf("%d requests were sent", len(store.groups))
	}
}

// TestBadIDHurtsNobody: of 300 concurrent begins, only those with a bad id fail.
func TestBadIDHurtsNobody(t *testing.T) {
	databases.Each(t, func(t *testing.T, openDB func(testing.TB) *databases.DB) {
		db := openDB(t)
		table := journal.NewTable(db, "")
		db.Do(t, table.Create)
		j := open(t, table, nil)
		_, err := j.Begin(t.Context(), "first", "order", due, says("begin")...) // the shards are known then
		ok(t, err)
		var work sync.WaitGroup
		for i := range 300 {
			id := fmt.Sprint("t", i)
			if i%60 == 7 {
				id += "\xff"
			}
			work.Go(func() {
				_, err := j.Begin(t.Context(), id, "order", due, says("begin")...)
				if bad := i%60 == 7; bad != errors.Is(err, interlock.ErrName) || !bad && err != nil {
					t.Errorf("%q: %v", id, err)
				}
			})
		}
		work.Wait()
	}, databases.Pgx, databases.Maria)
}
