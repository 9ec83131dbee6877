package zookeeper

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
)

// node is the node of a contender, in the form of any known client.
type node struct {
	name   string // below the lock's node
	id     string // the client's random part
	family family
	number int32 // the server's: the order of service
}

// family is the form in which a client writes its contenders.
type family int

const (
	curator  family = iota // _c_UUID-lock-N: Curator, and ours
	goclient               // _c_HEX-lock-N: go-zookeeper/zk
	kazoo                  // HEX__lock__N, HEX__rlock__N
)

func (f family) String() string {
	return [...]string{"curator", "go-zookeeper", "kazoo"}[f]
}

// readNode parses the name of a contender's node. ok is false for nodes of other recipes below
// the same node, which are not part of the queue.
func readNode(name string) (n node, ok bool) {
	m := nodeForm.FindStringSubmatch(name)
	if m == nil {
		return node{}, false
	}
	number, err := strconv.ParseInt(m[3], 10, 32)
	if err != nil {
		return node{}, false
	}
	n = node{name: name, id: m[1], number: int32(number)}
	switch {
	case m[2] != "-lock-":
		n.family = kazoo
	case !strings.Contains(m[1], "-"):
		n.family = goclient
	}
	return n, true
}

// queue is the contenders of one lock, the holder first. It depends only on the names of the
// nodes.
type queue []node

// queueOf sorts contenders by their numbers. The numbers wrap from 2^31-1 to -2^31, so they are
// compared by their difference: contenders of one queue are never half the range apart.
func queueOf(children []string) queue {
	var q queue
	for _, name := range children {
		if n, ok := readNode(name); ok {
			q = append(q, n)
		}
	}
	slices.SortFunc(q, func(a, b node) int { return int(a.number - b.number) })
	return q
}

// find returns the index of the contender with this id; -1 if there is none.
func (q queue) find(id string) int {
	return slices.IndexFunc(q, func(n node) bool { return n.id == id })
}

// foreign returns the first contender of a client that does not see our nodes.
func (q queue) foreign() (node, bool) {
	i := slices.IndexFunc(q, func(n node) bool { return n.family == kazoo })
	if i < 0 {
		return node{}, false
	}
	return q[i], true
}

// FamilyError means that other clients use the lock with nodes of another form. They do
// not see ours, and would hold the lock at the same time. It is Definite.
type FamilyError struct {
	Name string // of the lock
	Node string // one of theirs
}

// Error names the node and the remedy.
func (e *FamilyError) Error() string {
	return "the node " + e.Node + " belongs to kazoo, which does not see our nodes: create its locks with " +
		`extra_lock_patterns=["lock-"] and set Options.TolerateKazoo, or use another name`
}

// refuse returns an error if the queue has clients that do not see our nodes.
func (d *Driver) refuse(name string, q queue) error {
	n, found := q.foreign()
	if !found || d.options.TolerateKazoo {
		return nil
	}
	return fail.New(opAcquire, name, interlock.Definite, &FamilyError{Name: name, Node: n.name})
}

// ownerOf returns the owner of a node. For another client that is the client's name, the node,
// and its data if that is short and readable.
func ownerOf(n node, data []byte) string {
	if r, ok := readRecord(data); ok && n.family == curator {
		return string(r.Owner)
	}
	const most = 100
	text := string(data)
	if len(text) == 0 || len(text) > most || !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl) {
		return fmt.Sprintf("%v %s", n.family, n.name)
	}
	return fmt.Sprintf("%v %s (%s)", n.family, n.name, text)
}
