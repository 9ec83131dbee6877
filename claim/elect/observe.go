package elect

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/process"
)

// Leader describes a leadership. The zero Leader means that there is no leader.
type Leader struct {
	Identity string
	Owner    string          // the identity, and a part unique to this leadership
	Token    interlock.Token // 0 if a client of another layout leads without a token
	Since    time.Time       // when it was granted, by the backend's clock; zero if not known
	Data     []byte          // from Term.Proclaim; nil without Options.Values
	Nominee  string          // the nominated successor; empty if none
}

func (l Leader) equal(o Leader) bool {
	return l.Owner == o.Owner && l.Token == o.Token && l.Nominee == o.Nominee && bytes.Equal(l.Data, o.Data)
}

// Observe calls each with the current leader, and then after every change. The zero Leader
// means that there is no leader. Observe may skip a very short leadership and its end. With
// Options.Values a leader is reported only after its first record, which it writes before its
// function is called.
//
// It blocks until ctx ends, and returns the cause of ctx. It returns interlock.ErrClosed after
// Close, and an error of the backend that a retry cannot fix. While the backend is unreachable
// it calls nothing. If the driver does not implement driver.Watcher and driver.Inspector, it
// returns an [*interlock.UnmetError].
func (e *Election) Observe(ctx context.Context, name string, each func(Leader)) error {
	const op = "observe"
	if err := e.check(op, name); err != nil {
		return err
	}
	view, err := lock.ViewOf(e.driver)
	if err != nil {
		return err
	}
	o := &observer{election: e, name: name, each: each, view: view, hint: make(chan struct{}, 1), failed: make(chan error, 2)}
	e.mu.Lock()
	if err := context.Cause(e.ctx); err != nil {
		e.mu.Unlock()
		return e.driverName.New(op, name, interlock.Bug, err)
	}
	e.watches.Add(1) // Close waits only after it has ended e.ctx
	e.mu.Unlock()
	defer e.watches.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer context.AfterFunc(e.ctx, func() { cancel(context.Cause(e.ctx)) })()
	return o.run(ctx, cancel)
}

// observer is one call of Observe.
type observer struct {
	election *Election
	name     string
	each     func(Leader)
	view     lock.View

	hint   chan struct{} // look again; capacity 1
	failed chan error    // a watch ended permanently

	mu    sync.Mutex
	ready bool // the locks are watched
	known bool // value was read
	value driver.Value
}

func (o *observer) run(ctx context.Context, cancel context.CancelCauseFunc) error {
	var watches sync.WaitGroup
	defer watches.Wait()
	defer cancel(nil)
	watches.Go(func() {
		o.watch(ctx, func() error { return o.view.Watch(ctx, o.name, o.changed) })
	})
	if values := o.election.options.Values; values != nil {
		watches.Go(func() {
			o.watch(ctx, func() error { return values.Watch(ctx, recordName(o.name), o.read) })
		})
	}
	return o.follow(ctx)
}

// watch repeats a watch until ctx ends or a retry cannot help.
func (o *observer) watch(ctx context.Context, watch func() error) {
	for n := 1; ; n = min(n+1, attempts) {
		err := watch()
		if ctx.Err() != nil {
			return
		}
		if err != nil && !worthRepeating(err) {
			o.failed <- err
			return
		}
		if !retries.Wait(ctx, n) {
			return
		}
	}
}

func (o *observer) changed(name string) {
	if name != "" && name != o.name {
		return
	}
	o.mu.Lock()
	o.ready = true
	o.mu.Unlock()
	hints.Signal(o.hint)
}

func (o *observer) read(v driver.Value) {
	o.mu.Lock()
	o.known, o.value = true, v
	o.mu.Unlock()
	hints.Signal(o.hint)
}

// follow reads the state after each event, and when the lease of the observed holder would
// expire, which causes no event.
func (o *observer) follow(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	var last Leader
	yielded := false
	for failed := 0; ; {
		select {
		case <-ctx.Done():
			return o.election.driverName.New("observe", o.name, interlock.Definite, context.Cause(ctx))
		case err := <-o.failed:
			return err
		case <-o.hint:
		case <-timer.C:
		}
		if !o.complete() {
			continue
		}
		state, err := o.view.Lock(ctx, o.name)
		timer.Reset(o.lookAgain(state, &failed, err))
		switch {
		case err != nil && ctx.Err() == nil && !worthRepeating(err):
			return err
		case err != nil:
			continue
		}
		l, err := o.leader(state)
		if err != nil {
			return o.election.driverName.New("observe", o.name, interlock.Definite, err)
		}
		if !yielded || !l.equal(last) {
			o.each(l)
		}
		last, yielded = l, true
	}
}

// idle is the interval at which an observer reads the state without any event.
const idle = 5 * time.Minute

// lookAgain returns the delay until the next read without an event.
func (o *observer) lookAgain(state driver.LockState, failed *int, err error) time.Duration {
	if err != nil {
		*failed = min(*failed+1, attempts)
		return retries.Delay(*failed, 0.5)
	}
	*failed = 0
	switch ttl := o.election.driver.Guarantees().TTL; {
	case state.Holder == nil:
		return idle
	case state.Holder.Expires > 0:
		return state.Holder.Expires + 5*time.Millisecond
	case ttl > 0: // the last moment of a lease may be shown as none
		return min(ttl, idle)
	}
	return idle
}

// complete reports whether every watched thing has been read once.
func (o *observer) complete() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ready && (o.known || o.election.options.Values == nil)
}

// leader combines the holder of the lock and its record. With Values, a holder of an election
// that has not written its record yet is not a leader.
func (o *observer) leader(state driver.LockState) (Leader, error) {
	h := state.Holder
	if h == nil {
		return Leader{}, nil
	}
	l := Leader{Identity: process.IdentityOf(h.Owner), Owner: h.Owner, Token: h.Token, Since: h.Since}
	if h.Foreign {
		l.Identity = h.Owner
	}
	o.mu.Lock()
	v := o.value
	o.mu.Unlock()
	switch {
	case o.election.options.Values == nil || h.Foreign:
		return l, nil
	case v.Token.Counter() != h.Token.Counter():
		return Leader{}, nil
	}
	r, err := decode(v)
	if err != nil {
		return Leader{}, fmt.Errorf("read the leader's data: %w", err)
	}
	l.Data, l.Nominee = r.Data, r.Nominee
	return l, nil
}
