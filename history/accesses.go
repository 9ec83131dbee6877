package history

import "github.com/interlock-dev/interlock"

// A resource is the known state of one guarded resource.
type resource struct {
	// top is the highest floor without pending rebases: an access that returned since
	// the last completed rebase, or that rebase.
	top       mark
	presented interlock.Token // the highest token that any call presented
	judged    bool

	// rebasing counts rebases that may still happen; meanwhile nothing is judged. rebased counts
	// completed ones. A call during which it changed may be on either side of one, so it is not
	// judged and sets no floor.
	rebasing int
	rebased  int
}

func (r *resource) present(t interlock.Token) { r.presented = max(r.presented, t) }

// asked records that an access under token t begins, and returns its floor.
func (r *resource) asked(t interlock.Token) (floor mark, epoch int) {
	r.present(t)
	return r.top, r.rebased
}

// before records the mark that the resource had before the run. After a
// completed rebase, it sets no floor.
func (r *resource) before(m mark) {
	r.present(m.token)
	if r.rebased == 0 {
		r.raise(m)
	}
}

func (r *resource) raise(m mark) {
	if m.token > r.top.token {
		r.top = m
	}
}

// rebase records that a rebase may happen from now on.
func (r *resource) rebase(t interlock.Token) (epoch int) {
	r.present(t)
	r.rebasing++
	return r.rebased
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
	if r := entry(c.resources, key); !r.judged {
		r.judged = true
		c.report.Resources++
	}
}

func (c *checker) accepted(k call, e Event) {
	r, s := entry(c.resources, k.start.Key), k.start
	if r.rebased != k.epoch {
		return
	}
	m := mark{token: s.Token, op: s.Op + " under token", at: refOf(e)}
	stale := k.floor.token > m.token || s.Strict && k.floor.token == m.token
	if stale && r.rebasing == 0 {
		c.report.add(RuleAccessOrder, s.Key, k.floor.at, m.at,
			"%s of %q under token %d (%v) was accepted, though a %s %d (%v) had returned before it began",
			s.Op, s.Key, m.token, m.at, k.floor.op, k.floor.token, k.floor.at)
	}
	r.raise(m)
}

func (c *checker) rejected(k call, e Event) {
	r, s := entry(c.resources, k.start.Key), k.start
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

// endRebase sets the floor to the token of a completed rebase, unless another
// completed meanwhile: either may have been the last.
func (c *checker) endRebase(k call, e Event) {
	r := entry(c.resources, k.start.Key)
	switch e.Kind {
	case Info: // it may still happen
	case OK:
		r.top = mark{}
		if r.rebased == k.epoch {
			r.top = mark{token: k.start.Token, op: "rebase to token", at: refOf(e)}
		}
		r.rebased++
		r.rebasing--
	default:
		r.rebasing--
	}
}
