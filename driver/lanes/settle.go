package lanes

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Settle records outcomes; see [driver.QueueConsumer]. An outcome is recorded when a commit of
// its partition has succeeded.
func (c *Consumer[A]) Settle(ctx context.Context, settlements []driver.Settlement) []error {
	answers := make([]error, len(settlements))
	c.writeDeadLetters(ctx, settlements, answers)
	parts, back := c.complete(settlements, answers)
	if len(parts) == 0 {
		return answers
	}
	errs := c.Commit(ctx, parts)
	for _, a := range parts {
		back = back || errs[a] != nil
	}
	if !back {
		return answers
	}
	c.Update(func() {
		for i := range settlements {
			s := &settlements[i]
			if answers[i] != nil {
				continue
			}
			a := s.Claim.(A)
			if err := errs[a]; err != nil {
				answers[i] = c.Problem("settle", s.ID, interlock.Kind(err), err)
			} else if s.Outcome != driver.Ack && s.Outcome != driver.Dead {
				a.base().Offsets.GiveBack(s, time.Now())
			}
		}
	})
	return answers
}

// writeDeadLetters writes dead letters. They are durable before their messages count as completed. It skips those that are
// completed: an earlier call has written them, and its commit failed.
func (c *Consumer[A]) writeDeadLetters(ctx context.Context, settlements []driver.Settlement, answers []error) {
	var dead []driver.Settlement
	var of []int
	for i := range settlements {
		s := &settlements[i]
		switch a, ok := s.Claim.(A); {
		case s.Outcome != driver.Dead || !ok:
		case !a.Valid(): // a partition that is given up commits outcomes until it is removed
			answers[i] = c.Problem("settle", s.ID, interlock.Definite, interlock.ErrLost)
		default:
			for m := range s.All() {
				if c.isDelivered(a, m) {
					one := *s
					one.Received, one.Later = m, nil
					dead, of = append(dead, one), append(of, i)
				}
			}
		}
	}
	if len(dead) > 0 {
		for n, err := range c.DeadLetters(ctx, dead) {
			answers[of[n]] = cmp.Or(answers[of[n]], err)
		}
	}
}

// isDelivered reports whether a message is in the hands of the consumer.
func (c *Consumer[A]) isDelivered(a A, m *driver.Received) bool {
	c.Mu.Lock()
	defer c.Mu.Unlock()
	o := a.base().Offsets
	i, found := o.find(m.Place)
	return found && o.pending[i].delivered
}

// complete notes what was handled, and returns the assignments to commit. back reports whether there
// is more to note then.
func (c *Consumer[A]) complete(settlements []driver.Settlement, answers []error) (parts []A, back bool) {
	c.Update(func() {
		var last A // settlements of an assignment come together
		for i := range settlements {
			s := &settlements[i]
			if answers[i] != nil {
				continue
			}
			a, ok := s.Claim.(A)
			if !ok {
				answers[i] = c.Problem("settle", s.ID, interlock.Bug, errors.New("this consumer did not receive the message"))
				continue
			}
			if a != last {
				if !c.IsAssigned(a) {
					answers[i] = c.Problem("settle", s.ID, interlock.Definite, interlock.ErrLost)
					continue
				}
				if last = a; !slices.Contains(parts, a) {
					parts = append(parts, a)
				}
			}
			if s.Outcome == driver.Ack || s.Outcome == driver.Dead {
				for m := range s.All() {
					a.base().Offsets.Complete(m.Place)
				}
			} else {
				back = true
			}
		}
		for _, a := range parts {
			a.base().Offsets.Sweep()
		}
	})
	return parts, back
}
