package history

import (
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"strings"
)

// OpTransaction is a transaction over lists. Value of its Invoke is a JSON array of its
// [ListOp]s with the appends; Value of its OK adds the reads.
const OpTransaction = "transaction"

// RuleCycle: an order of the transactions explains all of their reads.
const RuleCycle Rule = "transaction order"

// A ListOp is one operation of a transaction on lists.
type ListOp struct {
	Key    string  `json:"key"`
	Append int64   `json:"append,omitempty"` // an element that no other append has, above zero
	Read   []int64 `json:"read,omitempty"`   // the read list, without the transaction's own appends
	Seen   bool    `json:"seen,omitempty"`   // it was read, perhaps as empty
}

// CheckSnapshotIsolation finds transactions over lists that no order of commits with
// snapshot isolation explains ([RuleCycle]): lost updates, fractured and dirty reads, long
// forks, and reads of the past. Write skew is allowed. It infers the order of a key's
// versions from the read lists, as Elle does (Kingsbury and Alvaro, 2020). Then it searches
// for a cycle of dependencies without two adjacent anti-dependencies (Cerone and Gotsman,
// 2018). It keeps all transactions in memory.
func CheckSnapshotIsolation(events iter.Seq2[Event, error]) (Verdict, error) {
	return checkTransactions(events, false)
}

// CheckSerializable finds transactions over lists that no serial order explains which
// keeps the order of those that did not overlap ([RuleCycle]). Otherwise it is like
// [CheckSnapshotIsolation].
func CheckSerializable(events iter.Seq2[Event, error]) (Verdict, error) {
	return checkTransactions(events, true)
}

func checkTransactions(events iter.Seq2[Event, error], serializable bool) (Verdict, error) {
	var v Verdict
	c := &listChecker{found: &v.Findings, serializable: serializable, appended: map[element]int{}, order: map[string][]int64{}, unread: map[string][]int{}}
	return walk(events, &v, c, OpTransaction)
}

type element struct {
	key   string
	value int64
}

// A listTxn is a transaction, or a point in time. Those that failed have no ops.
type listTxn struct {
	ops   []ListOp
	at    Ref
	point bool
	ended int   // index of the point in time when its commit was known; 0 if it is not
	edges []int // transactions that come after it
	antis []int // transactions that overwrite what it read
}

type listChecker struct {
	found        *Findings
	serializable bool
	txns         []*listTxn
	appended     map[element]int // by which transaction that may be committed
	order        map[string][]int64
	unread       map[string][]int // transactions with an append that is in no read list, by key
	last         int              // the last point in time, 1 + its index
}

// began adds a transaction after all that have ended.
func (c *listChecker) began(call Event) int {
	t := &listTxn{at: refOf(call)}
	id := len(c.txns)
	c.txns = append(c.txns, t)
	if c.last > 0 {
		c.txns[c.last-1].edges = append(c.txns[c.last-1].edges, id)
	}
	if err := json.Unmarshal([]byte(call.Value), &t.ops); err != nil {
		c.found.add(RuleCycle, "", t.at, t.at, "the transaction (%v) cannot be read: %v", t.at, err)
	}
	for i := range t.ops { // its reads are known from its end
		t.ops[i].Seen, t.ops[i].Read = false, nil
	}
	return id
}

func (c *listChecker) ended(_, end Event, id int) {
	t := c.txns[id]
	switch end.Kind {
	case Fail, Reject:
		t.ops = nil
		return
	case OK:
	default: // it may be committed at any time, with unknown reads
		return
	}
	t.ops = nil // Unmarshal would merge the elements
	if err := json.Unmarshal([]byte(end.Value), &t.ops); err != nil {
		c.found.add(RuleCycle, "", t.at, t.at, "what the transaction (%v) read cannot be read: %v", t.at, err)
	}
	for i, op := range t.ops {
		t.ops[i].Seen = op.Seen || len(op.Read) > 0
	}
	point := &listTxn{point: true} // it comes before all that begin from now on
	if c.last > 0 {
		c.txns[c.last-1].edges = append(c.txns[c.last-1].edges, len(c.txns))
	}
	t.edges = append(t.edges, len(c.txns))
	t.ended = len(c.txns)
	c.txns = append(c.txns, point)
	c.last = len(c.txns)
}

func (c *listChecker) stated(Event) {}

func (c *listChecker) finished() {
	c.appends()
	c.versions()
	for id, t := range c.txns {
		c.depend(id, t)
	}
	if cycle := c.cycle(); len(cycle) > 0 {
		var names []string
		for _, id := range cycle {
			if !c.txns[id].point {
				names = append(names, c.txns[id].at.String())
			}
		}
		first := c.txns[cycle[0]].at
		c.found.add(RuleCycle, "", first, first, "each of these transactions comes before the next, and the last before the first: %s", strings.Join(names, "; "))
	}
}

// appends records who appended each element.
func (c *listChecker) appends() {
	for id, t := range c.txns {
		for _, op := range t.ops {
			e := element{op.Key, op.Append}
			if other, twice := c.appended[e]; twice {
				c.found.add(RuleCycle, op.Key, c.txns[other].at, t.at, "%d was appended to %q twice (%v, %v)", op.Append, op.Key, c.txns[other].at, t.at)
			}
			if op.Append > 0 {
				c.appended[e] = id
			}
		}
	}
}

// versions derives the order of a key's appends from the longest read list.
func (c *listChecker) versions() {
	read := map[string]int{} // the last transaction that read the key
	for id, t := range c.txns {
		for _, op := range t.ops {
			if op.Seen {
				read[op.Key] = id
			}
			if len(op.Read) > len(c.order[op.Key]) {
				c.order[op.Key] = op.Read
			}
		}
	}
	for id, t := range c.txns {
		for _, op := range t.ops {
			if op.Append > 0 && !slices.Contains(c.order[op.Key], op.Append) {
				c.unread[op.Key] = append(c.unread[op.Key], id)
				if t.ended > 0 && read[op.Key] > t.ended {
					c.found.add(RuleCycle, op.Key, t.at, t.at, "%d was appended to %q (%v), and nobody has read it", op.Append, op.Key, t.at)
				}
			}
			if !slices.Equal(op.Read, c.order[op.Key][:len(op.Read)]) {
				c.found.add(RuleCycle, op.Key, t.at, t.at, "%q was read as %v (%v), and as %v", op.Key, op.Read, t.at, c.order[op.Key])
			}
			for _, value := range op.Read {
				if _, ok := c.appended[element{op.Key, value}]; !ok {
					c.found.add(RuleCycle, op.Key, t.at, t.at, "%d was read of %q (%v), which nobody committed", value, op.Key, t.at)
				}
			}
		}
	}
}

// depend adds the edges of a transaction's reads and appends.
func (c *listChecker) depend(id int, t *listTxn) {
	last := map[string]int{} // the place of its last append, by key
	for _, op := range t.ops {
		if op.Seen {
			c.read(id, op)
		}
		if op.Append > 0 {
			last[op.Key] = c.wrote(id, op, last[op.Key])
		}
	}
}

func (c *listChecker) read(id int, op ListOp) {
	n := len(op.Read)
	if n > 0 {
		c.edge(op.Key, op.Read[n-1], id) // it read what this one wrote
	}
	next, to := c.next(op.Key, n), &c.txns[id].antis
	if slices.Contains(next, id) { // then the others are overwriters of its own append, too
		to = &c.txns[id].edges
	}
	for _, other := range next {
		if other != id {
			*to = append(*to, other)
		}
	}
}

// wrote returns the place of an append, which is behind the transaction's last one. An append
// that is in no read list comes after those that are.
func (c *listChecker) wrote(id int, op ListOp, last int) (at int) {
	order, by := c.order[op.Key], c.txns[id].at
	at = slices.Index(order, op.Append)
	if at < 0 {
		at = len(order)
	} else if slices.Contains(order[at+1:], op.Append) {
		c.found.add(RuleCycle, op.Key, by, by, "%d was appended to %q once (%v), and read twice in one list", op.Append, op.Key, by)
	}
	if at < last {
		c.found.add(RuleCycle, op.Key, by, by, "%d was appended to %q (%v) after others of the transaction, and read before them", op.Append, op.Key, by)
	}
	if at > 0 {
		c.edge(op.Key, order[at-1], id)
	}
	return at
}

func (c *listChecker) edge(key string, value int64, to int) {
	if from, ok := c.appended[element{key, value}]; ok && from != to {
		c.txns[from].edges = append(c.txns[from].edges, to)
	}
}

// next returns the transactions whose appends may be the next after the first n elements of a list.
func (c *listChecker) next(key string, n int) []int {
	if order := c.order[key]; n < len(order) {
		if id, ok := c.appended[element{key, order[n]}]; ok {
			return []int{id}
		}
		return nil
	}
	return c.unread[key]
}

// targets returns the nodes after a node. A node is twice the index of a transaction, plus
// one if an anti-dependency led to it: with snapshot isolation no other one follows that.
func (c *listChecker) targets(node int) (to []int) {
	t := c.txns[node/2]
	for _, id := range t.edges {
		to = append(to, 2*id)
	}
	if node%2 == 0 || c.serializable {
		for _, id := range t.antis {
			to = append(to, 2*id+1)
		}
	}
	return to
}

// cycle returns the transactions of a short cycle of dependencies; none if there is none.
func (c *listChecker) cycle() []int {
	left := make([]int, 2*len(c.txns)) // nodes that come before each
	for node := range left {
		for _, to := range c.targets(node) {
			left[to]++
		}
	}
	var free []int
	for node, n := range left {
		if n == 0 {
			free = append(free, node)
		}
	}
	for len(free) > 0 { // in topological order
		node := free[len(free)-1]
		free = free[:len(free)-1]
		left[node] = -1
		for _, to := range c.targets(node) {
			if left[to]--; left[to] == 0 {
				free = append(free, to)
			}
		}
	}
	var shortest []int
	for node, n := range left { // the rest are in a cycle, or after one
		if n > 0 {
			if way := c.way(node); len(way) > 0 && (shortest == nil || len(way) < len(shortest)) {
				shortest = way
			}
			if len(shortest) > 0 && node > 2000 {
				break // one cycle is enough
			}
		}
	}
	return shortest
}

// way returns the shortest path from a node back to it, by breadth-first search.
func (c *listChecker) way(from int) (cycle []int) {
	before := map[int]int{}
	for queue := []int{from}; len(queue) > 0; queue = queue[1:] {
		for _, to := range c.targets(queue[0]) {
			if to == from {
				for node := queue[0]; node != from; node = before[node] {
					cycle = append(cycle, node/2)
				}
				slices.Reverse(cycle)
				return append([]int{from / 2}, cycle...)
			}
			if _, seen := before[to]; !seen {
				before[to] = queue[0]
				queue = append(queue, to)
			}
		}
	}
	return nil
}

// FormatListOps returns the Value of a transaction.
func FormatListOps(ops []ListOp) string {
	text, err := json.Marshal(ops)
	if err != nil {
		panic(fmt.Sprint("history: ", err)) // numbers and strings always marshal
	}
	return string(text)
}
