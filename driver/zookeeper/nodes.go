package zookeeper

import "github.com/go-zookeeper/zk"

// nodes are the nodes that a session has a watch on, and the contenders and calls of
// Watch that their changes concern. It does no I/O. The driver's mutex is held in all
// methods.
type nodes struct {
	own     map[string]*contender          // by the path of its node
	ahead   map[string]map[*contender]bool // contenders that wait for the node at this path to go
	watched map[string]bool                // paths that such a watch stands on
	hints   map[*subscription]bool
}

func newNodes() nodes {
	return nodes{own: map[string]*contender{}, ahead: map[string]map[*contender]bool{},
		watched: map[string]bool{}, hints: map[*subscription]bool{}}
}

// event wakes what a change of a node concerns. A watch fires once. It reports that the
// node of one of our contenders has to be watched again.
func (n *nodes) event(ev zk.Event) (rewatch bool) {
	if c := n.own[ev.Path]; c != nil {
		if ev.Type == zk.EventNodeDeleted {
			c.nodeDeleted()
		} else {
			c.unwatched = true // another client wrote into it: maintain watches it again
			rewatch = true
		}
	}
	n.unwatch(ev.Path)
	for sub := range n.hints {
		sub.paths.Add(ev.Path)
	}
	return rewatch
}

// unwatch notes that no watch stands on path: the contenders behind it look again.
func (n *nodes) unwatch(path string) {
	delete(n.watched, path)
	for c := range n.ahead[path] {
		c.wake()
	}
}

// join has c woken when the node at path goes. watched reports that a watch
// stands on it; otherwise the caller sets one.
func (n *nodes) join(c *contender, path string) (watched bool) {
	if n.ahead[path] == nil {
		n.ahead[path] = map[*contender]bool{}
	}
	n.ahead[path][c] = true
	watched = n.watched[path]
	n.watched[path] = true
	return watched
}

// stepOut is the opposite of join.
func (n *nodes) stepOut(c *contender, path string) {
	delete(n.ahead[path], c)
	if len(n.ahead[path]) == 0 {
		delete(n.ahead, path)
	}
}

// miss has every call of Watch look at all that it watches.
func (n *nodes) miss() {
	for sub := range n.hints {
		sub.paths.Miss()
	}
}

// wake has every call of Watch look at the session.
func (n *nodes) wake() {
	for sub := range n.hints {
		sub.paths.Wake()
	}
}
