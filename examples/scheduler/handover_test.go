package main

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestHandOverOnEtcd measures how long there is no leader when a leadership is handed
// over, past a candidate that is first in the queue. On etcd no weakness needs to be
// accepted.
func TestHandOverOnEtcd(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("runs a server: not with -short")
	}
	url := "etcd://" + testbed.Etcd(t).Addr()
	type turn struct {
		identity string
		term     *elect.Term
		at       time.Time
	}
	turns, resign := make(chan turn), make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	campaign := func(identity string) {
		b, err := open(ctx, url, ttl)
		testbed.OK(t, err)
		e, err := elect.New(b.locks, &elect.Options{Identity: identity, Values: b.values})
		testbed.OK(t, err)
		done := make(chan error, 1)
		go func() {
			done <- e.Run(ctx, "billing", func(ctx context.Context, term *elect.Term) error {
				select {
				case turns <- turn{identity, term, time.Now()}:
				case <-ctx.Done():
					return nil
				}
				select {
				case <-resign:
				case <-ctx.Done():
				}
				return nil
			})
		}()
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil && ctx.Err() == nil {
				t.Errorf("%s: %v", identity, err)
			}
			shut(e)
			b.close()
		})
	}
	next := func() turn {
		t.Helper()
		select {
		case l := <-turns:
			return l
		case <-time.After(patience):
			t.Fatal("no candidate is elected")
			return turn{}
		}
	}
	campaign("first")
	leader := next()
	for _, identity := range []string{"in between", "successor"} {
		campaign(identity)
		testbed.Eventually(t, identity+" waits", patience, func() bool {
			err := leader.term.HandOver(ctx, identity)
			if err != nil && interlock.Kind(err) != interlock.Retryable {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	released := time.Now()
	resign <- struct{}{}
	if leader = next(); leader.identity != "successor" {
		t.Fatalf("%q leads", leader.identity)
	}
	t.Logf("there was no leader for %v", leader.at.Sub(released))
}
