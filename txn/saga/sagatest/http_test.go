package sagatest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/saga"
)

// overHTTP makes scenes whose participant is behind a server, in real time: the order
// saga on a world, whose effects are those of act.
func overHTTP(t *testing.T, act func(ctx context.Context, w *World, undo bool) error) func() Scene[int] {
	t.Helper()
	var world atomic.Pointer[World]
	server := httptest.NewServer(branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
		return nil, act(ctx, world.Load(), branch.From(ctx).Operation == branch.Undo)
	}))
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		server.Close()
	})
	post := func(ctx context.Context, n int) error {
		input, err := json.Marshal(n)
		if err == nil {
			_, err = branchhttp.Caller{Client: client}.Post(ctx, server.URL, branch.From(ctx), input)
		}
		return err
	}
	step := func(name string) action {
		return saga.Step(name, func(ctx context.Context, n int) (string, error) { return "", post(ctx, n) }).Timeout(5 * time.Second)
	}
	undo := func(ctx context.Context, n int, _ *string) error { return post(ctx, n) }
	return func() Scene[int] {
		w := &World{}
		world.Store(w)
		return Scene[int]{Snapshot: w.Snapshot, RealTime: true, Saga: saga.Define("order", step("a").Undo("una", undo),
			saga.Parallel(step("b").Undo("unb", undo), step("c").Undo("unc", undo)), step("p").Pivot(), step("z"))}
	}
}

// TestRealTime: participants over HTTP have the same findings.
func TestRealTime(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		act  func(ctx context.Context, w *World, undo bool) error
		want string
	}{
		"guarded": {func(ctx context.Context, w *World, undo bool) error {
			key := branch.From(ctx).Branch
			if undo {
				return w.Undo(ctx, func(v Values) error { v.Add(key, -1); return nil })
			}
			_, err := Effect(ctx, w, func(v Values) (int, error) { return v.Add(key, 1), nil })
			return err
		}, "[]"},
		"unguarded": {func(ctx context.Context, w *World, undo bool) error {
			n := 1
			if undo {
				n = -1
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.values = w.draft()
			w.values.Add(branch.From(ctx).Branch, n)
			return nil
		}, "[action not idempotent:a undo needs the output:a undo not idempotent:a late action accepted:a" +
			" action not idempotent:b undo needs the output:b undo not idempotent:b late action accepted:b" +
			" action not idempotent:c undo needs the output:c undo not idempotent:c late action accepted:c" +
			" pivot not repeatable:p action not idempotent:z]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, runs := explored(t, overHTTP(t, c.act))
			var got []string
			for _, f := range found {
				got = append(got, fmt.Sprintf("%s:%s", f.Kind, f.Step))
				t.Log(f)
			}
			if text := "[" + strings.Join(got, " ") + "]"; text != c.want || runs < 25 {
				t.Errorf("in %d runs found\n%s, want\n%s", runs, text, c.want)
			}
		})
	}
}
