package zookeeper

import (
	"context"
	"maps"
)

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
