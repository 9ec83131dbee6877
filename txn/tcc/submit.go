package tcc

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
)

// Submit is [Engine.Run] for requests that can arrive more than once. An id runs once, in all
// processes together: the first Submit records the requests in the journal and tries the branches,
// and every other Submit waits for its decision. The run does not depend on ctx. If ctx ends, Submit
// returns an Uncertain error and the run continues; repeat the Submit to get its decision.
//
// If the process of the run dies, the owner of the shard cancels the transaction after
// Options.Hold. Submit costs one forced write more than Run. Call [Engine.Close] before
// the journal is closed.
func (m *Engine) Submit(ctx context.Context, kind, id string, branches ...Branch) (Outcome, error) {
	r := &run{engine: m, id: id, kind: protocol + ":" + kind, began: m.coordinator.Now()}
	if err := r.prepare(kind, branches); err != nil {
		return Outcome{}, err
	}
	for {
		o, err := r.attach(ctx)
		if !errors.Is(err, ErrNone) {
			return o, failure.Uncommitted(err)
		}
		done, err := r.launch(ctx)
		switch {
		case errors.Is(err, journal.ErrExists):
			continue
		case err != nil:
			return Outcome{}, err
		}
		select {
		case c := <-done:
			return c.outcome, c.err
		case <-ctx.Done():
			return Outcome{}, &interlock.Error{Op: "submit transaction", Name: id, Kind: interlock.Uncertain, Err: context.Cause(ctx)}
		}
	}
}

// conclusion is the result of a run.
type conclusion struct {
	outcome Outcome
	err     error
}

// launch opens the transaction and runs it under the engine's context. The channel receives the
// conclusion.
func (r *run) launch(ctx context.Context) (<-chan conclusion, error) {
	m := r.engine
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil, failure.Bug("submit transaction", r.id, "%w", interlock.ErrClosed)
	}
	m.work.Add(1)
	m.mu.Unlock()
	var err error
	r.opening = opened(rand.Text(), r.until(), r.tries)
	if r.log, err = m.coordinator.Journal().Begin(ctx, r.id, r.kind, r.until(), r.opening...); err != nil {
		m.work.Done()
		return nil, err
	}
	done := make(chan conclusion, 1)
	go func() {
		defer m.work.Done()
		ctx, stop := m.detached(ctx)
		defer stop()
		o, err := r.conclude(ctx)
		done <- conclusion{o, err}
	}()
	return done, nil
}

// detached returns a context with the values of ctx that ends when the engine is closed.
func (m *Engine) detached(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(m.life, func() { cancel(context.Cause(m.life)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Close rejects further calls of [Engine.Submit] and waits for the runs under way. When ctx ends, it
// cancels those that remain, and waits for their decisions. An engine whose Submit was never called
// needs no Close.
func (m *Engine) Close(ctx context.Context) {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { m.end(interlock.ErrClosed) })
	defer stop()
	m.work.Wait()
	m.end(interlock.ErrClosed)
}

// expire cancels an open transaction. A nil error means that it is decided.
func (m *Engine) expire(ctx context.Context, t coordinator.Transaction[machine], reason string) error {
	err := t.Log.Append(ctx, m.coordinator.Now(), record(recordDecide, string(Cancel), deciding{Reason: reason}))
	if errors.Is(err, journal.ErrConflict) { // only a decision can have come first
		return nil
	}
	if err == nil {
		m.decided(t.Head.Transaction, t.Head.Type, Cancel, reason)
		m.coordinator.Nudge(t.Head.Transaction)
	}
	return err
}

// expire cancels a transaction whose run has not decided in time. Before that time, when it is due, it
// returns false.
func (d *drive) expire() (decided bool, err error) {
	if d.Now().Before(d.m.until) {
		return false, nil
	}
	const reason = "its run has not decided in time"
	if err := d.append([]journal.Entry{record(recordDecide, string(Cancel), deciding{Reason: reason})}); err != nil {
		return false, err
	}
	d.engine.decided(d.ID(), d.Head().Type, Cancel, reason)
	return true, nil
}

// A transaction of [Engine.Submit] is in the journal from its beginning: an open record, and a tried
// record with the request of each branch. The append of its decision has a held record for each
// branch.

// opening is the data of an open record.
type opening struct {
	Until int64  `json:"until"` // milliseconds since 1970; afterwards the owner of the shard cancels
	Run   string `json:"run"`   // random, so that two runs never write the same record
}

// holding is the data of a held record.
type holding struct {
	Hold    json.RawMessage `json:"hold,omitempty"`    // as in trying
	Refused bool            `json:"refused,omitempty"` // as in trying
}

// opened returns the records of the first append.
func opened(run string, until time.Time, tries []try) []journal.Entry {
	entries := []journal.Entry{record(recordOpen, "", opening{Until: until.UnixMilli(), Run: run})}
	for _, t := range tries {
		entries = append(entries, record(recordTried, t.branch, trying{Resource: t.resource, Request: t.request}))
	}
	return entries
}

// concluded returns the records of the append of a decision.
func concluded(d Decision, reason string, tries []try) []journal.Entry {
	var entries []journal.Entry
	for _, t := range tries {
		entries = append(entries, record(recordHeld, t.branch, holding{Hold: t.hold, Refused: t.refused}))
	}
	return append(entries, record(recordDecide, string(d), deciding{Reason: reason}))
}

func (m *machine) open(e journal.Entry) error {
	var o opening
	if err := json.Unmarshal(e.Data, &o); err != nil {
		return err
	}
	if m.opened || len(m.members) > 0 {
		return errOrder
	}
	m.opened, m.until = true, time.UnixMilli(o.Until)
	return nil
}

// held applies the outcome of the try of a branch.
func (m *machine) held(e journal.Entry) error {
	var h holding
	if err := json.Unmarshal(e.Data, &h); err != nil {
		return err
	}
	b := m.find(e.Step)
	if !m.opened || b == nil || b.hold != nil || b.fate != pending {
		return errOrder
	}
	b.hold = h.Hold
	if h.Refused {
		b.fate = refused
	}
	return nil
}
