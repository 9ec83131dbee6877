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
	lost, err = c.store.Settle(ctx, settled)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		for i, g := range grants {
			g.doubt = g.doubt || settled[i].Finished
		}
		return nil, err
	}
	return c.counted(grants, settled, lost), nil
}

// counted applies recorded outcomes to the leases, and returns those that are lost. The mutex is held.
func (c *Consumer) counted(grants []*Grant, settled []Settled, gone []Held) (lost []Held) {
	for i, g := range grants {
		s := &settled[i]
		g.unsettled -= len(s.Outcomes)
		g.kept = g.kept || slices.ContainsFunc(s.Outcomes, keeps)
		switch {
		case slices.Contains(gone, g.Held):
			if c.lose(g) {
				lost = append(lost, g.Held)
			}
		case s.Finished:
			c.drop(g, interlock.ErrReleased)
		}
	}
	return lost
}

// lose ends a grant whose lease is gone, and reports whether it is lost. While it lasts, no other consumer
// has it: then a Settle whose answer was lost has freed the group. The mutex is held.
func (c *Consumer) lose(g *Grant) bool {
	if g.freed = g.freed || g.doubt && g.lease.Remaining() > 0; g.freed {
		c.drop(g, interlock.ErrReleased)
		return false
	}
	c.drop(g, interlock.ErrLost)
	return true
}

// keeps reports whether the message stays.
func keeps(s driver.Settlement) bool { return s.Outcome != driver.Ack && s.Outcome != driver.Dead }
