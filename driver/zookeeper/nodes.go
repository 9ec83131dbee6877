package zookeeper

import "github.com/go-zookeeper/zk"

// nodes are the nodes that a session has a watch on, and the contenders and calls of
// Watch that their changes concern. It does no I/O. The driver's mutex is held in all
// methods.
type nodes struct {
	own     map[string]*contender          // by the path of its node
	ahead   map[string]map[*contender]bool // contenders that wait for the deletion of the node at this path
	watched map[string]bool                // such paths that have a watch
	hints   map[*subscription]bool

	successions map[string]*succession // by the path of the lock's node
	lockWatches int                    // watches of theirs
}

func newNodes() nodes {
	return nodes{own: map[string]*contender{}, ahead: map[string]map[*contender]bool{},
		watched: map[string]bool{}, hints: map[*subscription]bool{}, successions: map[string]*succession{}}
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
	if ev.Type != zk.EventNodeChildrenChanged {
		n.forgetLock(ev.Path)
	}
	for sub := range n.hints {
		sub.paths.Add(ev.Path)
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
