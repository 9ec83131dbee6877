package history

import (
	"fmt"
	"iter"
	"os"

	"github.com/interlock-dev/interlock"
)

// CheckFiles merges the histories in the files and checks their tokens.
func CheckFiles(paths ...string) (Report, error) { return InFiles(CheckTokens, paths...) }

// InFiles merges the histories in the files and runs a checker on them, such as [CheckUpdates].
func InFiles[R any](check func(iter.Seq2[Event, error]) (R, error), paths ...string) (none R, err error) {
	readers := make([]*Reader, 0, len(paths))
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return none, fmt.Errorf("check history: %w", err)
		}
		defer f.Close()
		r, err := NewReader(f)
		if err != nil {
			return none, fmt.Errorf("%s: %w", path, err)
		}
		readers = append(readers, r)
	}
	return check(Merge(readers...))
}

// CheckTokens judges the tokens of a history by the rules of this package. It takes one pass, in
// linear time. It needs memory for the resources, the calls without a known end, and up to 1,024
// grants of each name.
//
// It raises no false alarm:
//   - One call comes before another only if it had returned before the other was
//     invoked; calls that overlap may have happened in either order.
//   - A call without a known end may have been accepted: a guard may have seen its
//     token, but nothing is judged against it.
//   - A resource is not judged during a rebase of its mark, nor after a rebase with
//     an unknown outcome. The token of a completed rebase is the floor, unless
//     another completed at the same time.
//
// It finds a token granted twice if at most 1,024 grants of the name are in between.
// It does not judge an access that ends during a rebase, even if the rebase fails.
//
// The history must contain all calls that presented tokens to the resources. Their
// marks before the run are [State] events with [OpMark]; otherwise a rejection seems
// to have no reason. Such a mark is a floor too. The error is that of events, or
// reports the end of a call that was not open.
func CheckTokens(events iter.Seq2[Event, error]) (Report, error) {
	c := &checker{names: map[string]*name{}, resources: map[string]*resource{}}
	v, err := walk(events, &Verdict{}, c, OpAcquire, OpEnter, OpRead, OpWrite, OpRebase)
	c.report.Events = v.Events
	return c.report, err
}

type checker struct {
	report    Report
	names     map[string]*name
	resources map[string]*resource
}

// A call is an open call. floor is the highest mark that had returned at its invocation.
type call struct {
	start Event
	floor mark
	epoch int // resource.rebased when it was invoked
}

func (c *checker) began(e Event) call {
	k := call{start: e}
	switch e.Op {
	case OpAcquire:
		k.floor = c.name(e.Key).asked(e.Owner)
	case OpRebase:
		k.epoch = entry(c.resources, e.Key).rebase(e.Token)
	default:
		k.floor, k.epoch = entry(c.resources, e.Key).asked(e.Token)
	}
	return k
}

func (c *checker) ended(_, e Event, k call) {
	switch k.start.Op {
	case OpAcquire:
		c.endAcquire(k, e)
	case OpRebase:
		c.endRebase(k, e)
	default:
		c.endAccess(k, e)
	}
}

func (c *checker) stated(e Event) {
	switch {
	case e.Kind != State: // a grant without a call
		c.granted(c.name(e.Key), e, mark{})
	case e.Op == OpMark:
		entry(c.resources, e.Key).before(mark{token: e.Token, op: "mark of token", at: refOf(e)})
	}
}

func (c *checker) finished() {}

// maxRecent bounds the remembered grants of each name.
const maxRecent = 1024

// A name is the known state of one lock.
type name struct {
	top    mark // the first grant with the highest token of those that returned
	judged bool

	// recent keeps the first grant of each token, for RuleOneOwner. order is a
	// ring of its tokens, with the oldest at next once it is full.
	recent map[interlock.Token]mark
	order  []interlock.Token
	next   int

	// unsure keeps the floor of an owner's attempt with an unknown outcome: a later attempt may
	// find its grant.
	unsure map[string]mark
}

func (c *checker) name(key string) *name {
	n := entry(c.names, key)
	if n.recent == nil {
		n.recent, n.unsure = map[interlock.Token]mark{}, map[string]mark{}
	}
	return n
}

// asked records that owner requests the name, and returns its floor.
func (n *name) asked(owner string) mark {
	if floor, again := n.unsure[owner]; again {
		return floor
	}
	return n.top
}

func (c *checker) endAcquire(k call, e Event) {
	n, owner := c.name(k.start.Key), k.start.Owner
	switch e.Kind {
	case Grant, HandOver, OK:
		if e.Owner == "" {
			e.Owner = owner
		}
		e.Key = k.start.Key
		c.granted(n, e, k.floor)
		delete(n.unsure, owner)
	case Info:
		c.report.Unknown++
		if _, again := n.unsure[owner]; !again && owner != "" {
			n.unsure[owner] = k.floor
		}
	}
}

// granted judges a grant. A repeated attempt may find its owner's grant. A hand-over always has
// a new token. floor is zero if the time of the request is not known.
func (c *checker) granted(n *name, e Event, floor mark) {
	if e.Token <= 0 {
		return // an advisory lock
	}
	if !n.judged {
		n.judged = true
		c.report.Names++
	}
	c.report.Grants++
	g := mark{token: e.Token, owner: e.Owner, at: refOf(e)}
	if floor.token > g.token {
		c.report.add(RuleGrantOrder, e.Key, floor.at, g.at,
			"%q was granted with token %d (%v) after a grant with token %d (%v) had returned",
			e.Key, g.token, g.at, floor.token, floor.at)
	} else if first, twice := n.first(g.token, floor); twice && (e.Kind == HandOver || !sameOwner(first, g)) {
		c.report.add(RuleOneOwner, e.Key, first.at, g.at,
			"token %d of %q was granted to %q (%v) and again to %q (%v)",
			g.token, e.Key, first.owner, first.at, g.owner, g.at)
	}
	n.remember(g)
}

// first returns the first remembered grant with token.
func (n *name) first(token interlock.Token, floor mark) (mark, bool) {
	if floor.token == token {
		return floor, true
	}
	if m, ok := n.recent[token]; ok {
		return m, true
	}
	return n.top, n.top.token == token
}

func (n *name) remember(g mark) {
	if g.token > n.top.token {
		n.top = g
	}
	if _, ok := n.recent[g.token]; ok {
		return
	}
	n.recent[g.token] = g
	if len(n.order) < maxRecent {
		n.order = append(n.order, g.token)
		return
	}
	delete(n.recent, n.order[n.next])
	n.order[n.next] = g.token
	n.next = (n.next + 1) % maxRecent
}

// sameOwner returns false if an owner is not known: then the grants differ.
func sameOwner(a, b mark) bool { return a.owner != "" && a.owner == b.owner }

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
