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
	byGrant := map[*Grant]*Settled{}
	var order []*Grant
	for i, s := range settlements {
		g, ok := s.Claim.(*Grant)
		if !ok || g.consumer != c {
			answers[i] = &interlock.Error{Op: "settle", Name: s.ID, Kind: interlock.Bug, Err: errForeign}
			continue
		}
		if byGrant[g] == nil {
			byGrant[g] = &Settled{Held: g.Held}
			order = append(order, g)
		}
		for m := range s.All() {
			one := s
			one.Received, one.Later = m, nil
			byGrant[g].Outcomes = append(byGrant[g].Outcomes, one)
		}
	}
	if len(order) == 0 {
		return answers
	}
	lost, err := c.record(ctx, order, byGrant)
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
func (c *Consumer) record(ctx context.Context, order []*Grant, byGrant map[*Grant]*Settled) (lost []Held, err error) {
	select {
	case c.settling <- struct{}{}:
	case <-ctx.Done():
		return nil, &interlock.Error{Op: "settle", Name: c.name, Kind: interlock.Retryable, Err: context.Cause(ctx)}
	}
	defer func() { <-c.settling }()
	lost, err = c.store.Settle(ctx, c.count(order, byGrant))
	c.counted(order, byGrant, lost, err)
	return lost, err
}

// count returns the outcomes by lease, and marks leases without further messages.
func (c *Consumer) count(order []*Grant, byGrant map[*Grant]*Settled) (all []Settled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range order {
		s := byGrant[g]
		s.Finished, s.Kept = g.unsettled <= len(s.Outcomes), g.kept
		all = append(all, *s)
	}
	return all
}

// counted applies recorded outcomes to the leases.
func (c *Consumer) counted(order []*Grant, byGrant map[*Grant]*Settled, lost []Held, err error) {
	if err != nil {
		return
	}
	for _, g := range order {
		if slices.Contains(lost, g.Held) {
			c.lose(g)
			continue
		}
		c.mu.Lock()
		g.unsettled -= len(byGrant[g].Outcomes)
		g.kept = g.kept || slices.ContainsFunc(byGrant[g].Outcomes, keeps)
		c.mu.Unlock()
		if byGrant[g].Finished {
			c.drop(g)
			g.finish(interlock.ErrReleased)
		}
	}
}

// keeps reports whether the message stays.
func keeps(s driver.Settlement) bool { return s.Outcome != driver.Ack && s.Outcome != driver.Dead }
