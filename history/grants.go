package history

import "github.com/interlock-dev/interlock"

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
