package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/journal"
)

// lasting is a store with slow requests, some of which hang.
type lasting struct {
	*slow
	takes time.Duration
	hangs func(size int) <-chan struct{} // nil never
}

func (l lasting) Append(ctx context.Context, appends []driver.Append) []error {
	time.Sleep(l.takes)
	if l.hangs != nil {
		if released := l.hangs(len(appends)); released != nil {
			<-released
		}
	}
	return l.slow.Append(ctx, appends)
}

// TestGroupsAreLarge: appends of clients that append repeatedly form groups of about ten,
// because no small request is sent during a larger one.
func TestGroupsAreLarge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const clients, each, most = 32, 100, 315
		store := lasting{slow: newSlow(), takes: 10 * time.Millisecond}
		j := open(t, store, nil)
		var work sync.WaitGroup
		for i := range clients {
			work.Go(func() {
				log, err := j.Begin(t.Context(), fmt.Sprint("t", i), "", due, says("begin")...)
				for n := 1; n < each && err == nil; n++ {
					// The time between two appends differs for each client.
					time.Sleep(time.Duration(i*n%7) * 100 * time.Microsecond)
					err = log.Append(t.Context(), due, says("more")...)
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		work.Wait()
		if len(store.groups) > most {
			t.Errorf("%d requests, at most %d: %v", len(store.groups), most, store.groups)
		}
	})
}

// TestLargeRequestThatHangs: a single append does not wait for others for longer than a
// request takes.
func TestLargeRequestThatHangs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		released := make(chan struct{})
		store := lasting{slow: newSlow(), takes: time.Millisecond, hangs: func(size int) <-chan struct{} {
			if size > 5 {
				return released
			}
			return nil
		}}
		j := open(t, store, nil)
		begin := func(id string) {
			if _, err := j.Begin(t.Context(), id, "", due, says("begin")...); err != nil {
				t.Error(err)
			}
		}
		var work sync.WaitGroup
		for i := range 20 {
			work.Go(func() { begin(fmt.Sprint("t", i)) })
			synctest.Wait()
		}
		time.Sleep(time.Second) // two have returned; the others hang in one request
		for i := range 3 {
			from := time.Now()
			begin(fmt.Sprint("single", i))
			if took := time.Since(from); took > 3*time.Millisecond {
				t.Errorf("number %d took %v", i, took)
			}
		}
		close(released)
		work.Wait()
	})
}

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
