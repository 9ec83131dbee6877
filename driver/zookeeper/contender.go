package zookeeper

import (
	"context"
	"maps"
	"path"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/hints"
)

// contender is one owner's attempt at one name under one session. The driver's mutex guards all
// fields but over and those that never change: identity, id, lock, session, asked and stale.
type contender struct {
	identity
	id      string // its random part, by which its node is found
	lock    string // the node of the lock
	session *session
	asked   time.Time // by the clock of Options
	events  driver.Events

	state   state
	node    string // its own, once it is known; empty before
	czxid   int64  // the transaction that created it; 0 unless the answer to its request had it
	version int32  // of its node, as far as known
	// unconfirmed: its node may say that it does not hold, so it holds only after takeTurn.
	unconfirmed bool
	declared    bool // no further request is needed for its node to say so
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

func (d *Driver) knows(id identity) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.contenders[id] != nil
}

// register returns the owner's contender, a new one if there is none under s.
func (d *Driver) register(s *session, r driver.Request) (*contender, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fail.Closed(opAcquire, r.Name)
	}
	if s.ended {
		return nil, again(r.Name, interlock.ErrSessionEnded)
	}
	id := identity{r.Name, r.Owner}
	old := d.contenders[id]
	if old != nil && old.session == s && old.state < dropped {
		old.events = r.Events
		old.place = driver.Place{Ahead: -1} // and report it again
		return old, nil
	}
	c := &contender{
		identity: id,
		id:       newID(),
		lock:     d.layout.lock(r.Name),
		session:  s,
		asked:    d.options.Now().UTC(),
		events:   r.Events,
		place:    driver.Place{Ahead: -1},
		changed:  make(chan struct{}, 1),
	}
	if old != nil && !old.gone() {
		c.stale = old.ids()
	}
	d.contenders[id] = c
	return c, nil
}

// dropEvents ends the events of an owner whose Acquire returns an error, even if
// its place is granted later.
func (d *Driver) dropEvents(id identity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.contenders[id]; c != nil {
		c.events = driver.Events{}
	}
}

// endClaim ends the claim in this process and counts a call of Release, until
// [Driver.returned]. The contender stays known until ZooKeeper has confirmed; nil means that
// there is nothing to confirm.
func (d *Driver) endClaim(name, owner string) (*contender, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, fail.Closed(opRelease, name)
	}
	c := d.contenders[identity{name, owner}]
	if c == nil {
		return nil, nil
	}
	c.over.Store(true)
	c.granted, c.state, c.events = false, leaving, driver.Events{}
	c.wake()
	if c.gone() {
		d.forget(c)
		return nil, nil
	}
	c.releasing++
	return c, nil
}

// returned records the end of a call of Release.
func (d *Driver) returned(c *contender) {
	d.mu.Lock()
	defer d.mu.Unlock()
	c.releasing--
}

// forget removes a contender. The driver's mutex is held.
func (d *Driver) forget(c *contender) {
	delete(c.session.nodes.own, c.node)
	if d.contenders[c.identity] == c {
		delete(d.contenders, c.identity)
	}
}

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

// nodes are the nodes that a session has a watch on, and the contenders and calls of
// Watch that their changes concern. It does no I/O. The driver's mutex is held in all
// methods.
type nodes struct {
	own     map[string]*contender          // by the path of its node
	ahead   map[string]map[*contender]bool // contenders that wait for the deletion of the node at this path
	watched map[string]bool                // such paths that have a watch
	hints   map[*subscription]bool
	// lists are the paths whose children a call of Watch watches: true once the watch is set.
	lists map[string]*bool

	successions map[string]*succession // by the path of the lock's node
	lockWatches int                    // watches of theirs
}

func newNodes() nodes {
	return nodes{own: map[string]*contender{}, ahead: map[string]map[*contender]bool{},
		watched: map[string]bool{}, hints: map[*subscription]bool{}, lists: map[string]*bool{}, successions: map[string]*succession{}}
}

// event wakes the contenders and subscriptions that a change of a node concerns. A watch fires
// once: rewatch reports that the node of one of our contenders must be watched again.
func (n *nodes) event(ev zk.Event) (rewatch bool) {
	if c := n.own[ev.Path]; c != nil {
		if ev.Type == zk.EventNodeDeleted {
			c.nodeDeleted()
		} else {
			c.unwatched = true // another client wrote into it; maintain sets the watch again
			rewatch = true
		}
	}
	n.unwatch(ev.Path)
	delete(n.lists, ev.Path)
	if ev.Type != zk.EventNodeChildrenChanged {
		n.forgetLock(ev.Path)
	}
	changed := ev.Path
	if ev.Type == zk.EventNodeDataChanged { // a contender may have been confirmed: the lock has another holder
		changed = path.Dir(ev.Path)
	}
	for sub := range n.hints {
		sub.paths.Add(changed)
	}
	return rewatch
}

// unwatch records that path has no watch, and wakes the contenders that wait for it.
func (n *nodes) unwatch(path string) {
	delete(n.watched, path)
	for c := range n.ahead[path] {
		c.wake()
	}
}

// join registers c to be woken when the node at path is deleted. watched reports whether the
// path has a watch; otherwise the caller sets one.
func (n *nodes) join(c *contender, path string) (watched bool) {
	if n.ahead[path] == nil {
		n.ahead[path] = map[*contender]bool{}
	}
	n.ahead[path][c] = true
	watched = n.watched[path]
	n.watched[path] = true
	return watched
}

// stepOut undoes join.
func (n *nodes) stepOut(c *contender, path string) {
	delete(n.ahead[path], c)
	if len(n.ahead[path]) == 0 {
		delete(n.ahead, path)
	}
}

// miss makes every call of Watch read all that it watches.
func (n *nodes) miss() {
	for sub := range n.hints {
		sub.paths.Miss()
	}
}

// wake makes every call of Watch check the session.
func (n *nodes) wake() {
	for sub := range n.hints {
		sub.paths.Wake()
	}
}

// maintain works at every heartbeat on contenders without a caller: it repeats unconfirmed
// releases, and sets watches that have fired.
func (s *session) maintain() {
	beat := time.NewTicker(min(s.pace.heartbeat, time.Second))
	defer beat.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.d.maintainNow:
		case <-beat.C:
		}
		for _, c := range s.left() {
			// a failure is repeated at the next heartbeat
			_ = s.d.clear(s.ctx, s, c)
		}
		for _, c := range s.unwatched() {
			s.watchAgain(s.ctx, c)
		}
	}
}

// left lists the contenders whose release is not confirmed and that no call of Release clears.
// A second deletion of a node would be refused, with every deletion in the same request.
func (s *session) left() []*contender {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var all []*contender
	for _, c := range s.d.contenders {
		if c.state == leaving && c.creating == nil && c.releasing == 0 {
			all = append(all, c)
		}
	}
	return all
}

func (s *session) unwatched() []*contender {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	var all []*contender
	for _, c := range s.nodes.own {
		if c.unwatched {
			all = append(all, c)
		}
	}
	return all
}

// watchAgain watches the node of a contender whose watch has fired, or was not set.
func (s *session) watchAgain(ctx context.Context, c *contender) {
	s.d.mu.Lock()
	node, unwatched := c.node, c.unwatched
	c.unwatched = false
	s.d.mu.Unlock()
	if node == "" || !unwatched {
		return
	}
	stat, err := s.watchOwn(ctx, c.name, node)
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	switch {
	case c.node != node: // an event was handled meanwhile
	case err != nil:
		c.unwatched = true
	case stat == nil:
		c.nodeDeleted()
	}
}

// watchOwn reads the state of a node and watches for its deletion; nil if there is none.
func (s *session) watchOwn(ctx context.Context, name, path string) (*zk.Stat, error) {
	return ask(ctx, s, opAcquire, name, func(c *zk.Conn) (*zk.Stat, error) {
		exists, stat, _, err := c.ExistsW(path)
		if !exists {
			return nil, err
		}
		return stat, err
	})
}

// A succession shows without a list of the queue that a new node is first in it: its number
// follows that of our last node, which was first, and is deleted. The servers number all nodes
// below a lock's node, and start again if that is deleted and created again. So it has a watch:
// the event arrives before the answer to any later request.
type succession struct {
	parent int64 // the transaction that created the lock's node; 0 while it has no watch
	number int32 // of our last node that was first, and is deleted
}

// mostSuccessions bounds those of a session, and twice the watches for them.
const mostSuccessions = 4096

// departed records that c's node, which was first in the queue, is deleted.
func (n *nodes) departed(c *contender, own node, czxid int64) {
	e := n.successions[c.lock]
	if czxid == 0 {
		return
	}
	if e == nil {
		if len(n.successions) >= mostSuccessions {
			maps.DeleteFunc(n.successions, func(_ string, e *succession) bool { return e.parent == 0 })
		}
		e = &succession{}
		n.successions[c.lock] = e
	}
	if czxid > e.parent { // not of an earlier node of the lock
		e.number = own.number
	}
}

// followed returns the succession of c's lock if c's node continues it; nil if not.
func (n *nodes) followed(c *contender) *succession {
	own, ok := readNode(below(c.node))
	if e := n.successions[c.lock]; ok && e != nil && own.number == e.number+1 {
		return e
	}
	return nil
}

// forgetLock ends the succession of a lock whose node has changed.
func (n *nodes) forgetLock(path string) {
	if e := n.successions[path]; e != nil && e.parent != 0 {
		n.lockWatches--
	}
	delete(n.successions, path)
}

// isExpectedFirst reports whether the next node is likely to need no list of the queue.
func (d *Driver) isExpectedFirst(e entry) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := e.s.nodes.successions[e.c.lock]
	return last != nil && last.parent != 0
}

// watchLock sets the watch of a succession that c, which is first, continues. A failure costs
// only that the queue is listed again. A lock's node that is older than c's node is its parent.
func (d *Driver) watchLock(ctx context.Context, s *session, c *contender) {
	d.mu.Lock()
	e, czxid, full := s.nodes.followed(c), c.czxid, s.nodes.lockWatches >= mostSuccessions/2
	d.mu.Unlock()
	if e == nil || e.parent != 0 || full {
		return
	}
	stat, err := s.watchOwn(ctx, c.name, c.lock)
	if err != nil || stat == nil || stat.Czxid >= czxid {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s.nodes.successions[c.lock] == e && e.parent == 0 {
		e.parent = stat.Czxid
		s.nodes.lockWatches++
	}
}
