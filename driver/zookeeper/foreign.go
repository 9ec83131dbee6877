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

// FamilyError says that a lock is also used by clients whose nodes have another
// form, who do not see ours and would hold it beside us. It is Definite.
type FamilyError struct {
	Name string // of the lock
	Node string // one of theirs
}

// Error tells what can be done.
func (e *FamilyError) Error() string {
	return "the node " + e.Node + " is of kazoo, which does not see ours: give its locks " +
		`extra_lock_patterns=["lock-"] and set Options.TolerateKazoo, or use another name`
}

// refuse is an error if clients stand in line who do not see us.
func (d *Driver) refuse(name string, q queue) error {
	n, there := q.foreign()
	if !there || d.options.TolerateKazoo {
		return nil
	}
	return &interlock.Error{Op: opAcquire, Driver: driverName, Name: name, Kind: interlock.Definite,
		Err: &FamilyError{Name: name, Node: n.name}}
}

// withdraw takes c out of a line where it must not stand.
func (d *Driver) withdraw(ctx context.Context, c *contender, why error) error {
	if err := d.Release(ctx, c.name, c.owner); err != nil {
		return errors.Join(why, err)
	}
	return why
}

// ownerOf is who stands behind a node: for another client its name, its node
// and what it wrote there, if that is short and readable.
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
