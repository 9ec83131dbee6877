package zookeeper

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/hints"
)

// contender is one owner's attempt at one name under one session. All fields
// but over are guarded by the driver's mutex.
type contender struct {
	identity
	id      string // its random part, by which its node is found
	lock    string // the node of the lock
	session *session
	events  driver.Events

	state state
	node  string // its own, once it is known; empty before
	czxid int64  // the transaction that created it; 0 unless the answer to its request had it
	// unsure: the answer to a request that creates its node was lost.
	unsure bool
	// creating is closed when a request that creates the node is over, even if
	// no caller waits for it; nil if there is none.
	creating chan struct{}
	scale    scale           // the creating request relied on it
	token    interlock.Token // once the node was read
	first    bool            // its node was first in the queue
	granted  bool            // Acquire has returned the grant
	place    driver.Place    // while it waits
	// unwatched: its node has no watch, or the watch has fired for another event than
	// the deletion.
	unwatched bool
	// stale are the random parts of this owner's nodes under sessions that expired
	// here. ZooKeeper may still have the nodes.
	stale []string
	// releasing counts the calls of Release under way.
	releasing int
	// over: the claim was lost or released, whatever time the session has left.
	over atomic.Bool
	// changed wakes the waiting Acquire; its buffer holds one signal.
	changed chan struct{}
}

type state int

const (
	asking   state = iota // its node is not known, or was not read
	waiting               // in the queue
	holding               // first in the queue
	dropped               // ZooKeeper no longer has its node
	outdated              // its session ended
	leaving               // Release was called
)

func (c *contender) wake() { hints.Signal(c.changed) }

// grant returns the result of Acquire. The driver's mutex is held.
func (c *contender) grant() driver.Grant {
	c.granted, c.events.Waiting = true, nil // a holder has no place
	return driver.Grant{Lease: lease{c}, Token: c.token}
}

// queue reports the waiter's place, if that is new. The driver's mutex is held.
func (c *contender) queue(p driver.Place) {
	if p == c.place {
		return
	}
	c.place = p
	if c.events.Waiting != nil {
		c.events.Waiting(p)
	}
}

// setNode records its node. The driver's mutex is held.
func (c *contender) setNode(node string) {
	c.node, c.unsure = node, false
	if !c.session.ended {
		c.session.nodes.own[node] = c
	}
}

// nodeDeleted records that its node was deleted. The driver's mutex is held.
func (c *contender) nodeDeleted() {
	delete(c.session.nodes.own, c.node)
	c.node, c.czxid = "", 0
	if c.state == leaving {
		return
	}
	c.reportLost(interlock.ErrLost)
	c.state = dropped
	c.wake()
	hints.Signal(c.session.checkNow) // the whole session may have ended
}

// sessionEnded records that its session has ended, and reports that to a holder if notify is
// set. The driver's mutex is held.
func (c *contender) sessionEnded(notify bool) {
	if notify {
		c.reportLost(interlock.ErrSessionEnded)
	}
	if c.state != leaving {
		c.state = outdated
	}
	c.wake()
}

// reportLost reports the loss to a holder that was granted and not yet lost.
// The driver's mutex is held, so that it cannot follow a Release.
func (c *contender) reportLost(cause error) {
	c.over.Store(true)
	if c.granted && c.events.Lost != nil {
		c.events.Lost(cause)
	}
	c.granted = false
}

// gone reports whether ZooKeeper has no node of it. The driver's mutex is held.
func (c *contender) gone() bool {
	if len(c.stale) > 0 || c.creating != nil {
		return false
	}
	return c.session.revoked || c.node == "" && !c.unsure
}

// ids lists the random parts of every node that ZooKeeper may have of it.
func (c *contender) ids() []string { return append([]string{c.id}, c.stale...) }

// lease is the lease of one claim: that of its session, until the claim is over.
type lease struct{ c *contender }

// Remaining implements driver.Lease.
func (l lease) Remaining() time.Duration {
	if l.c.over.Load() {
		return 0
	}
	return l.c.session.term.Remaining()
}

// Contender identifies the node of a claim in ZooKeeper.
type Contender struct {
	Path    string // of its node
	Session int64  // the node's ephemeral owner
	Czxid   int64  // the transaction that created it
}

// Contender returns the node of a claim that this driver holds, for transactions
// of your own that check it. ok is false if owner does not hold name as far as
// this driver knows. It does not block.
func (d *Driver) Contender(name, owner string) (at Contender, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.contenders[identity{name, owner}]
	if c == nil || c.state != holding || !c.granted {
		return Contender{}, false
	}
	czxid := c.token.Counter() - c.scale.Base + c.scale.Anchor
	return Contender{Path: c.node, Session: c.session.id, Czxid: czxid}, true
}

// below returns the last segment of a path.
func below(path string) string { return path[strings.LastIndexByte(path, '/')+1:] }
