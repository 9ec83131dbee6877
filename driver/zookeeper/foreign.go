package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
)

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

// withdraw removes c from the queue, and returns the error why.
func (d *Driver) withdraw(ctx context.Context, c *contender, why error) error {
	if err := d.Release(ctx, c.name, c.owner); err != nil {
		return errors.Join(why, err)
	}
	return why
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
