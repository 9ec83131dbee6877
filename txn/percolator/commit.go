package percolator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
)

// A batch contains the cells of one atomic operation of a store.
type batch struct {
	place place
	cells []*cell
}

// Commit writes all or nothing. It blocks until the primary is committed. Keys of other
// stores are committed in the background, or earlier by any reader. If it returns an error
// other than Uncertain, nothing was written. A transaction without writes sends no request.
// Commits of one process that write the same keys take turns; none waits more than a second for another.
func (tx *Tx) Commit(ctx context.Context) error {
	unlock, _, err := tx.lock(ctx)
	if err != nil {
		return err
	}
	if err = tx.commit(ctx, unlock); err != nil {
		unlock()
	}
	return err
}

// lock waits until no other commit of this process uses a key of tx, because at most one of
// them can succeed, as the latches for local transactions of TiDB do. Only speed depends on
// it: after maxTurn it unlocks, so that a slow function does not delay others for long.
func (tx *Tx) lock(ctx context.Context) (unlock func(), waited bool, err error) {
	if tx.ended {
		return nil, false, failed("commit", "", interlock.Bug, ErrDone)
	}
	end, waited, err := tx.db.turns.lock(ctx, slices.Sorted(maps.Keys(tx.writes)))
	if err != nil {
		return nil, waited, failed("commit", "", interlock.Definite, err)
	}
	timer := time.AfterFunc(maxTurn, end)
	return func() { timer.Stop(); end() }, waited, nil
}

// commit calls finished after all keys are committed: until then, the next transaction
// would wait for the rest. If it returns an error, it does not call it.
func (tx *Tx) commit(ctx context.Context, finished func()) error {
	if tx.ended {
		return failed("commit", "", interlock.Bug, ErrDone)
	}
	c := &committer{tx: tx, batches: tx.batches(), finished: finished}
	tx.ended = true
	if len(tx.writes) == 0 {
		finished()
		return nil
	}
	c.primary = c.batches[0].cells[0].key
	if written, err := c.onePhase(ctx); written || err != nil {
		if err == nil {
			finished()
		}
		return err
	}
	defer every(ctx, tx.db.options.TTL/3, c.beat)()
	if err := c.prewrite(ctx); err != nil {
		c.rollback(ctx)
		return failure.Uncommitted(err)
	}
	return c.commit(ctx)
}

// batches groups the keys by store, in order; the first key of all is the primary.
func (tx *Tx) batches() []batch {
	var all []batch
	open := map[string]int{} // identity of a store to its last batch
	for _, key := range slices.Sorted(maps.Keys(tx.writes)) {
		c, at, err := tx.cell("", key)
		if err != nil {
			panic(err) // write found the place
		}
		p := tx.db.places[at]
		i, ok := open[p.id]
		if !ok || len(all[i].cells) == driver.MaxSwaps {
			i = len(all)
			open[p.id] = i
			all = append(all, batch{place: p})
		}
		all[i].cells = append(all[i].cells, c)
	}
	return all
}

// committer commits one transaction.
type committer struct {
	tx      *Tx
	batches []batch
	primary string
	// finished is called after all keys are committed.
	finished func()
}

// each runs fn for batches in parallel, and returns the first error in their order.
func each(batches []batch, fn func(b batch) error) error {
	errs := make([]error, len(batches))
	var running sync.WaitGroup
	for i, b := range batches[1:] {
		running.Go(func() { errs[i+1] = fn(b) })
	}
	errs[0] = fn(batches[0])
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// expires returns the expiry of a lock that is placed or renewed now, in the oracle's time.
func (tx *Tx) expires() Timestamp {
	return tx.start.Add(boottime.Now().Sub(tx.begun) + tx.db.options.TTL)
}

func (c *committer) lock(key string, expires Timestamp) lock {
	w := c.tx.writes[key]
	return lock{Start: c.tx.start, Primary: c.primary, Store: c.batches[0].place.id, Kind: w.Kind,
		Value: w.Value, Expires: expires, Alone: len(c.batches) == 1}
}

func (c *committer) prewrite(ctx context.Context) error {
	expires := c.tx.expires()
	place := func(r record, key string) (record, answer) { return prewrite(r, c.lock(key, expires)) }
	return each(c.batches, func(b batch) error {
		for {
			answers, err := b.place.apply(ctx, b.cells, true, place)
			if err != nil {
				return err
			}
			waits, err := c.refused(ctx, b, answers)
			if err != nil || !waits {
				return err
			}
		}
	})
}

// refused resolves the locks that block a batch, and reports whether to try it again. A
// transaction does not wait for a living one: each may hold locks that the other needs.
func (c *committer) refused(ctx context.Context, b batch, answers []answer) (again bool, err error) {
	for i, a := range answers {
		cell := b.cells[i]
		switch a.outcome {
		case done:
		case locked:
			fate, err := c.tx.db.resolve(ctx, cell.key, a.lock, 0)
			if err != nil {
				return false, err
			}
			if fate.outcome == alive {
				return false, because("commit", cell.key, a)
			}
			again, cell.fresh = true, false
		default:
			return false, because("commit", cell.key, a)
		}
	}
	return again, nil
}

// commit decides the transaction at the primary.
func (c *committer) commit(ctx context.Context) error {
	first := batch{c.batches[0].place, c.batches[0].cells[:1]}
	if len(c.batches) == 1 {
		first = c.batches[0]
	}
	for {
		at, err := c.tx.db.now(ctx)
		if err == nil && at.Sub(c.tx.start) >= MaxAge {
			err = failed("commit", c.primary, interlock.Retryable, fmt.Errorf("%w: it began %v ago", ErrTooOld, at.Sub(c.tx.start)))
		}
		if err == nil && c.tx.db.options.Serializable {
			err = c.validate(ctx, at)
		}
		if err != nil {
			c.rollback(ctx)
			return failure.Uncommitted(err)
		}
		a, err := c.decide(ctx, first, at)
		switch {
		case err != nil:
			return failed("commit", c.primary, interlock.Uncertain, err) // nothing is cleaned up
		case a.outcome == committed:
			c.finish(ctx, a.at)
			return nil
		case a.outcome == unknown:
			return failed("commit", c.primary, interlock.Uncertain, errCollected)
		case a.outcome != tooEarly:
			c.rollback(ctx)
			return because("commit", c.primary, a)
		}
	}
}

// decide commits the primary. Once the request may have been sent, the caller's
// cancellation does not end it: it finds out the outcome within cleanTimeout.
func (c *committer) decide(ctx context.Context, first batch, at Timestamp) (answer, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanTimeout, errNoTime)
	defer cancel()
	answers, err := first.place.apply(ctx, first.cells, true, c.commitAt(at))
	if err != nil {
		return answer{}, err
	}
	return answers[0], nil
}

func (c *committer) commitAt(at Timestamp) step {
	return func(r record, key string) (record, answer) { return commit(r, key, c.tx.start, at) }
}

// finish commits the other keys in the background. If that fails, readers do it.
func (c *committer) finish(ctx context.Context, at Timestamp) {
	if len(c.batches) == 1 {
		c.finished()
		return
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanTimeout, errNoTime)
	c.tx.db.pending.Store(ctx, nil)
	go func() {
		defer c.finished()
		defer cancel()
		defer c.tx.db.pending.Delete(ctx)
		_ = each(c.batches, func(b batch) error {
			_, err := b.place.apply(ctx, b.cells, false, c.commitAt(at))
			return err
		})
	}()
}

// rollback removes the locks of an uncommitted transaction, the primary first: after that it
// cannot commit. If that fails, readers do it.
func (c *committer) rollback(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanTimeout, errNoTime)
	defer cancel()
	undo := func(b batch) error {
		if !slices.ContainsFunc(b.cells, func(c *cell) bool { return c.sent }) {
			return nil // no late prewrite can arrive
		}
		_, err := b.place.apply(ctx, b.cells, false, func(r record, _ string) (record, answer) { return rollback(r, c.tx.start) })
		return err
	}
	if undo(c.batches[0]) == nil && len(c.batches) > 1 {
		_ = each(c.batches[1:], undo)
	}
}

// beat renews the primary lock, unless it is gone. The local clock decides only when to
// send; the lock expires by the oracle's time.
func (c *committer) beat(ctx context.Context) (again bool) {
	a, err := c.batches[0].place.one(ctx, c.primary, func(r record, key string) (record, answer) {
		return heartbeat(r, key, c.tx.start, c.tx.expires())
	})
	return err != nil || a.outcome != notPrimary
}

// every calls fn at intervals until it returns false or the caller calls stop, which waits
// for fn. The cancellation of ctx does not end it.
func every(ctx context.Context, interval time.Duration, fn func(ctx context.Context) bool) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if !fn(ctx) {
				return
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

// onePhase commits a transaction whose keys are all in the oracle's store by one write, in which
// the oracle issues the commit timestamp. So every snapshot above it is read after the
// write. It returns false if nothing was written and locks have to be placed, which fails once ctx has
// ended. A later end of ctx does not end it: it finds out the outcome within cleanTimeout.
func (c *committer) onePhase(ctx context.Context) (bool, error) {
	b, oracle := c.batches[0], c.tx.db.oracle
	if ctx.Err() != nil || len(c.batches) > 1 || len(b.cells) == driver.MaxSwaps || !oracle.Commits(b.place.store) || !c.tx.comparesReads() {
		return false, nil
	}
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanTimeout, errNoTime)
	defer cancel()
	if b.place.refresh(ctx, b.cells) != nil {
		return false, nil // the prewrite repeats it
	}
	at, err := oracle.Commit(ctx, c.changes)
	if at > 0 {
		return true, nil
	}
	for _, cell := range b.cells {
		cell.fresh = false
	}
	if err == nil {
		return false, nil
	}
	if _, err = c.tx.db.now(ctx); err == nil { // from now on the write cannot arrive
		var a answer
		if a, err = c.decide(ctx, b, 0); err == nil && a.outcome != unknown {
			return a.outcome == committed, nil
		}
		err = cmp.Or(err, errCollected)
	}
	return false, failed("commit", c.primary, interlock.Uncertain, err)
}

// comparesReads reports whether a write that compares the revisions of its keys validates
// all reads that have to be.
func (tx *Tx) comparesReads() bool {
	if !tx.db.options.Serializable {
		return true
	}
	for key := range tx.reads {
		if _, ok := tx.writes[key]; !ok {
			return false
		}
	}
	return len(tx.ranges) == 0
}

// changes returns the swaps that commit all keys at a timestamp; none if locks have to be placed.
func (c *committer) changes(at Timestamp) []driver.Swap {
	if at.Sub(c.tx.start) >= MaxAge {
		return nil
	}
	var swaps []driver.Swap
	for _, cell := range c.batches[0].cells {
		r, a := commitAtOnce(cell.record, cell.key, c.lock(cell.key, at), at)
		if a.outcome != committed {
			return nil
		}
		swaps = append(swaps, driver.Swap{Key: dataPrefix + cell.key, Revision: cell.revision, Value: r.encode()})
	}
	return swaps
}

// validate checks that no other transaction changed what this one read before the commit
// timestamp at. It runs after the last prewrite: a transaction that locks a key later
// commits above at, and one that did before shows its lock. If two see each other's locks,
// the older one continues.
func (c *committer) validate(ctx context.Context, at Timestamp) error {
	passed := map[Timestamp]bool{}
	keys := slices.Sorted(maps.Keys(c.tx.reads))
	for i, p := range c.tx.db.places {
		var cells []*cell
		for _, key := range keys {
			if at, err := c.tx.db.place("validate", key); err == nil && at == i {
				cells = append(cells, &cell{key: key})
			}
		}
		for part := range slices.Chunk(cells, driver.MaxSwaps) {
			if err := persist(ctx, func() error { return p.load(ctx, part) }); err != nil {
				return err
			}
			for _, cell := range part {
				if err := c.unchanged(ctx, p, cell, at, passed); err != nil {
					return err
				}
			}
		}
		for _, r := range c.tx.ranges {
			err := c.tx.db.each(ctx, i, r, func(cell *cell) (bool, error) { return true, c.unchanged(ctx, p, cell, at, passed) })
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// unchanged validates one record.
func (c *committer) unchanged(ctx context.Context, p place, read *cell, at Timestamp, passed map[Timestamp]bool) error {
	for {
		if !read.fresh {
			if err := persist(ctx, func() error { return p.load(ctx, []*cell{read}) }); err != nil {
				return err
			}
		}
		a := validate(read.record, c.tx.start, at, passed)
		if a.outcome == done {
			return nil
		}
		if a.outcome != locked {
			return because("commit", read.key, a)
		}
		push := at
		if a.lock.Start < c.tx.start {
			push = 0
		}
		fate, err := c.tx.db.resolve(ctx, read.key, a.lock, push)
		switch {
		case err != nil:
			return err
		case fate.outcome != alive:
			read.fresh = false
		case push == 0:
			return because("commit", read.key, a)
		default:
			passed[a.lock.Start] = true
		}
	}
}
