package fence_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/observe"
)

// TestStore on memory; the suite of driver.Fence tests servers.
func TestStore(t *testing.T) {
	f := memory.NewSpace().Fence()
	get := func(key string) string {
		value, _ := f.Get(key)
		return string(value)
	}
	store := fence.NewStore(f)
	ctx := t.Context()
	put := func(value string) driver.Write { return driver.Write{Key: "k", Value: []byte(value)} }

	ok(t, store.Enter(ctx, grant(2, bound), "r"))
	ok(t, store.Enter(ctx, grant(2, bound), "r", put("two")))
	wantStale(t, store.Enter(ctx, grant(1, bound), "r", put("one")), token(2), token(1))
	wantStale(t, store.EnterOnce(ctx, grant(2, bound), "r", put("again")), token(2), token(2))
	expired, lost := grant(9, -time.Second), grant(9, bound)
	lost.end(interlock.ErrLost)
	wantKind(t, store.Enter(ctx, expired, "r", put("nine")), interlock.Definite, interlock.ErrExpired)
	wantKind(t, store.Enter(ctx, lost, "r", put("nine")), interlock.Definite, interlock.ErrLost)
	absurd := grant(3, bound)
	absurd.token = math.MaxInt64
	wantKind(t, store.Enter(ctx, absurd, "r", put("most")), interlock.Definite, interlock.ErrImplausibleToken)
	absurd.token = 0
	wantKind(t, store.Enter(ctx, absurd, "r", put("none")), interlock.Bug, nil)
	wantKind(t, store.Enter(ctx, grant(3, bound), "", put("none")), interlock.Bug, interlock.ErrName)
	if m, err := store.Show(ctx, "r"); err != nil || m.Token != token(2) || m.Source != grant(2, 0).Owner() || get("k") != "two" {
		t.Errorf("mark %+v, %v; value %q", m, err, get("k"))
	}

	for _, blank := range [][2]string{{"", "ops"}, {"restored", " "}} {
		_, err := store.Rebase(ctx, "r", token(1), blank[0], blank[1])
		wantKind(t, err, interlock.Bug, nil)
	}
	old, err := store.Rebase(ctx, "r", token(1), "restored", "ops")
	if err != nil || old.Token != token(2) {
		t.Errorf("it replaced %+v, %v", old, err)
	}
	ok(t, store.Enter(ctx, grant(1, bound), "r", put("one")))
	if get("k") != "one" {
		t.Errorf("value %q", get("k"))
	}
	want := memory.Rebase{From: token(2), To: token(1), Reason: "restored", By: "ops"}
	all := f.Rebases("r")
	if len(all) == 1 {
		all[0].At = time.Time{}
	}
	if len(all) != 1 || all[0] != want {
		t.Errorf("recorded: %+v, want %+v", all, want)
	}
}

// TestStoreRefusesWhatIsOver: an ended claim is refused even with a valid token,
// and an invalid call changes nothing.
func TestStoreRefusesWhatIsOver(t *testing.T) {
	f := memory.NewSpace().Fence()
	store, ctx := fence.NewStore(f), t.Context()
	put := driver.Write{Key: "k", Value: []byte("late")}
	for _, cause := range []error{interlock.ErrReleased, interlock.ErrLost, interlock.ErrSessionEnded} {
		over := grant(1, bound)
		over.end(cause)
		wantKind(t, store.Enter(ctx, over, "r", put), interlock.Definite, cause)
		wantKind(t, store.EnterOnce(ctx, over, "r", put), interlock.Definite, cause)
	}
	_, err := store.Show(ctx, "")
	wantKind(t, err, interlock.Bug, interlock.ErrName)
	_, err = store.Rebase(ctx, "", 0, "why", "ops")
	wantKind(t, err, interlock.Bug, interlock.ErrName)
	_, err = store.Rebase(ctx, "r", -1, "why", "ops")
	wantKind(t, err, interlock.Bug, nil)
	if m, err := store.Show(ctx, "r"); err != nil || m.Token != 0 || len(f.Rebases("r")) > 0 {
		t.Errorf("something was done: %+v, %v, %+v", m, err, f.Rebases("r"))
	}
	if _, ok := f.Get("k"); ok {
		t.Error("a claim that is over wrote")
	}
}

// TestStoreOrdersClaims: many claims enter, read and write, and the final value is that
// of the highest; a claim enters any number of times, or once.
func TestStoreOrdersClaims(t *testing.T) {
	const claims = 40
	f := memory.NewSpace().Fence()
	store := fence.NewStore(f)
	var running sync.WaitGroup
	for i := range claims {
		running.Go(func() {
			c := grant(1+i*7%claims, bound)
			err := store.Enter(t.Context(), c, "r")
			if err == nil {
				err = store.Enter(t.Context(), c, "r", driver.Write{Key: "k", Value: []byte(c.Owner())})
			}
			if err != nil && !errors.Is(err, interlock.ErrStaleToken) {
				t.Error(err)
			}
		})
	}
	running.Wait()
	highest := grant(claims, bound)
	if value, _ := f.Get("k"); string(value) != highest.Owner() {
		t.Errorf("written by %q, want %q", value, highest.Owner())
	}
	wantStale(t, store.EnterOnce(t.Context(), highest, "r"), highest.token, highest.token)
	next := grant(claims+1, bound)
	ok(t, store.EnterOnce(t.Context(), next, "r"))
	wantStale(t, store.EnterOnce(t.Context(), next, "r"), next.token, next.token)
}

// bypassed is a store that reports each written key as bypassed.
type bypassed struct{ driver.Fence }

func (b bypassed) Enter(ctx context.Context, r driver.Raise, writes ...driver.Write) error {
	for _, w := range writes {
		r.Bypassed(w.Key)
	}
	return b.Fence.Enter(ctx, r, writes...)
}

func TestBypassingWritesAreCounted(t *testing.T) {
	var told []observe.FenceBypassed
	store := fence.NewStore(bypassed{memory.NewSpace().Fence()}).WithHooks(&observe.Fence{
		Bypassed: func(e observe.FenceBypassed) { told = append(told, e) }})
	c := grant(2, bound)
	ok(t, store.Enter(t.Context(), c, "r"))
	ok(t, store.Enter(t.Context(), c, "r", driver.Write{Key: "k"}))
	want := observe.FenceBypassed{Resource: "r", Key: "k", Owner: c.Owner(), Token: c.Token()}
	if len(told) != 1 || told[0] != want {
		t.Errorf("told %+v, want %+v", told, want)
	}
}
