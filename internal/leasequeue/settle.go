package leasequeue

import (
	"context"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Settle records outcomes; see [driver.QueueConsumer].
func (c *Consumer) Settle(ctx context.Context, settlements []driver.Settlement) []error {
	answers := make([]error, len(settlements))
	places := make(map[*Grant]int, len(settlements)) // in grants and settled
	grants := make([]*Grant, 0, len(settlements))
	settled := make([]Settled, 0, len(settlements))
	var outcomes []driver.Settlement // of all
	for i, s := range settlements {
		g, ok := s.Claim.(*Grant)
		if !ok || g.consumer != c {
			answers[i] = &interlock.Error{Op: "settle", Name: s.ID, Kind: interlock.Bug, Err: errForeign}
			continue
		}
		if outcomes == nil {
			outcomes = make([]driver.Settlement, 0, len(settlements)+len(s.Later))
		}
		from := len(outcomes)
		for m := range s.All() {
			one := s
			one.Received, one.Later = m, nil
			outcomes = append(outcomes, one)
		}
		these := slices.Clip(outcomes[from:])
		if at, ok := places[g]; ok {
			settled[at].Outcomes = append(settled[at].Outcomes, these...)
		} else {
			places[g] = len(grants)
			grants, settled = append(grants, g), append(settled, Settled{Held: g.Held, Outcomes: these})
		}
	}
	if len(grants) == 0 {
		return answers
	}
	lost, err := c.record(ctx, grants, settled)
	for i, s := range settlements {
		g, _ := s.Claim.(*Grant)
		switch {
		case answers[i] != nil:
		case err != nil:
			answers[i] = err
		case slices.Contains(lost, g.Held):
			answers[i] = &interlock.Error{Op: "settle", Name: s.ID, Kind: interlock.Definite, Err: interlock.ErrLost}
		}
	}
	return answers
}

// record calls Store.Settle, once at a time.
func (c *Consumer) record(ctx context.Context, grants []*Grant, settled []Settled) (lost []Held, err error) {
	select {
	case c.settling <- struct{}{}:
	case <-ctx.Done():
		return nil, &interlock.Error{Op: "settle", Name: c.name, Kind: interlock.Retryable, Err: context.Cause(ctx)}
	}
	defer func() { <-c.settling }()
	c.mu.Lock()
	for i, g := range grants {
		s := &settled[i]
		s.Finished, s.Kept = g.unsettled <= len(s.Outcomes), g.kept
	}
	c.mu.Unlock()
	if lost, err = c.store.Settle(ctx, settled); err == nil {
		c.counted(grants, settled, lost)
	}
	return lost, err
}

// counted applies recorded outcomes to the leases.
func (c *Consumer) counted(grants []*Grant, settled []Settled, lost []Held) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, g := range grants {
		s := &settled[i]
		g.unsettled -= len(s.Outcomes)
		g.kept = g.kept || slices.ContainsFunc(s.Outcomes, keeps)
		switch {
		case slices.Contains(lost, g.Held):
			c.drop(g, interlock.ErrLost)
		case s.Finished:
			c.drop(g, interlock.ErrReleased)
		}
	}
}

// keeps reports whether the message stays.
func keeps(s driver.Settlement) bool { return s.Outcome != driver.Ack && s.Outcome != driver.Dead }
