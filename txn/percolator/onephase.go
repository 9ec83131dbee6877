package percolator

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// onePhase commits a transaction whose keys are all in the oracle's store by one write, in which
// the oracle issues the commit timestamp. So every snapshot above it is read after the
// write. It returns false if nothing was written and locks have to be placed. The caller's
// cancellation does not end it: it finds out the outcome within cleanTimeout.
func (c *committer) onePhase(ctx context.Context) (bool, error) {
	b, oracle := c.batches[0], c.tx.db.oracle
	if len(c.batches) > 1 || len(b.cells) == driver.MaxSwaps || !oracle.Commits(b.place.store) || !c.tx.comparesReads() {
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
