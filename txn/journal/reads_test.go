package journal_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
	"github.com/interlock-dev/interlock/txn/journal"
)

// gated holds back statements and counts them.
type gated struct {
	driver.BeginnerAt[driver.SQL]
	gate   chan struct{}
	broken int // the number of the request that fails, from 1

	mu    sync.Mutex
	begun int
}

func (g *gated) BeginAt(ctx context.Context, level driver.Isolation) (driver.Tx[driver.SQL], error) {
	g.mu.Lock()
	g.begun++
	broken := g.begun == g.broken
	g.mu.Unlock()
	<-g.gate
	if broken {
		return nil, &interlock.Error{Op: "begin", Kind: interlock.Retryable, Err: errors.New("not now")}
	}
	return g.BeginnerAt.BeginAt(ctx, level)
}

func (g *gated) requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begun
}

// TestReadsTravelTogether: transactions that are opened while another read is under way are read
// by one request, each as if it was read alone. What does not exist, a caller that leaves, and a
// group that fails, fail nobody.
func TestReadsTravelTogether(t *testing.T) {
	databases.Each(t, func(t *testing.T, begin func(testing.TB) *databases.DB) {
		db := begin(t)
		db.Do(t, journal.NewTable(db, "").Create)
		alone := open(t, journal.NewTable(db, ""), nil)
		for i := range 20 {
			log, err := alone.Begin(t.Context(), fmt.Sprint("t", i), "order", due, says("begin", "sent")...)
			ok(t, err)
			if i%2 == 0 {
				ok(t, log.End(t.Context(), says("done", "end")...))
			}
		}
		if n := readTogether(t, &gated{BeginnerAt: db, gate: make(chan struct{})}, alone); n != 3 {
			t.Errorf("%d requests, want the first, a group, and what two of the group want", n)
		}
		readTogether(t, &gated{BeginnerAt: db, gate: make(chan struct{}), broken: 2}, alone)
	})
}

// readTogether compares what is read together with what is read alone, and returns the number of requests.
func readTogether(t *testing.T, store *gated, alone *journal.Journal) int {
	j := open(t, journal.NewTable[driver.SQL](store, ""), &journal.Options{Requests: 1})
	var work sync.WaitGroup
	look := func(id string) {
		work.Go(func() {
			log, entries, err := j.Open(t.Context(), id)
			want, records, wrong := alone.Open(t.Context(), id)
			if fmt.Sprint(err) != fmt.Sprint(wrong) || !reflect.DeepEqual(entries, records) || (log == nil) != (want == nil) || log != nil && !reflect.DeepEqual(log.Head(), want.Head()) {
				t.Errorf("%q: %v, %v, %v; alone %v, %v, %v", id, log, entries, err, want, records, wrong)
			}
		})
	}
	look("t0")
	testbed.Eventually(t, "it is under way", 20*time.Second, func() bool { return store.requests() == 1 })
	look("t0")
	for i := range 20 {
		look(fmt.Sprint("t", i))
		look(fmt.Sprint("none", i))
	}
	testbed.Eventually(t, "they wait", 20*time.Second, func() bool { return journal.Readings(j) == 41 })
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := j.Open(cancelled, "t1"); err == nil {
		t.Error("it was read in a context that had ended")
	}
	close(store.gate)
	work.Wait()
	return store.requests()
}
