package history

import "github.com/interlock-dev/interlock"

// A resource is what is known of one guarded resource.
type resource struct {
	top       mark            // the first accepted access with the highest token of those that returned
	presented interlock.Token // the highest token that any call presented
	judged    bool

	// rebasing counts rebases that may still happen. epoch changes with the
	// beginning and the end of each: an access that saw it change may stand on
	// either side of the rebase, and is neither judged nor a measure.
	rebasing int
	epoch    int
}

func (c *checker) resource(key string) *resource {
	r := c.resources[key]
	if r == nil {
		r = &resource{}
		c.resources[key] = r
	}
	return r
}

func (r *resource) present(t interlock.Token) { r.presented = max(r.presented, t) }

// asked is told that an access under token t begins, and returns its floor.
func (r *resource) asked(t interlock.Token) (floor mark, epoch int) {
	r.present(t)
	return r.top, r.epoch
}

// rebase is told that a rebase begins (+1) or has ended (−1).
func (r *resource) rebase(change int) {
	r.rebasing += change
	r.epoch++
	r.top = mark{}
}

func (c *checker) endAccess(k call, e Event) {
	switch {
	case e.Kind == Info:
		c.report.Unknown++
	case e.Kind == Fail:
	case k.start.Token <= 0:
		c.report.Unclaimed++
	case e.Kind == Reject:
		c.judge(k.start.Key)
		c.report.Rejected++
		c.rejected(k, e)
	case e.Kind == OK:
		c.judge(k.start.Key)
		c.report.Accepted++
		c.accepted(k, e)
	}
}

func (c *checker) judge(key string) {
	if r := c.resource(key); !r.judged {
		r.judged = true
		c.report.Resources++
	}
}

func (c *checker) accepted(k call, e Event) {
	r, s := c.resource(k.start.Key), k.start
	if r.rebasing > 0 || r.epoch != k.epoch {
		return
	}
	m := mark{token: s.Token, op: s.Op, at: refOf(e)}
	if k.floor.token > m.token {
		c.report.add(RuleAccessOrder, s.Key, k.floor.at, m.at,
			"%s of %q under token %d (%v) was accepted, though a %s under token %d (%v) had returned before it began",
			s.Op, s.Key, m.token, m.at, k.floor.op, k.floor.token, k.floor.at)
	}
	if m.token > r.top.token {
		r.top = m
	}
}

func (c *checker) rejected(k call, e Event) {
	r, s := c.resource(k.start.Key), k.start
	stale := e.Seen > s.Token || s.Strict && e.Seen == s.Token
	switch {
	case !stale:
		c.report.add(RuleRejection, s.Key, refOf(s), refOf(e),
			"%s of %q under token %d (%v) was refused (%v), but the guard had seen only %d",
			s.Op, s.Key, s.Token, refOf(s), refOf(e), e.Seen)
	case e.Seen > r.presented:
		c.report.add(RuleRejection, s.Key, refOf(s), refOf(e),
			"%s of %q under token %d (%v) was refused (%v) for token %d, which nobody had presented",
			s.Op, s.Key, s.Token, refOf(s), refOf(e), e.Seen)
	}
}

func (c *checker) endRebase(k call, e Event) {
	if e.Kind == Info {
		return // it may still happen
	}
	c.resource(k.start.Key).rebase(-1)
}
