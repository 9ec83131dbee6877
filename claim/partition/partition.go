// Package partition assigns keys to processes, one owner per key at a time. It cannot
// promise that only one process acts: an owner that was paused goes on after its keys have
// moved. Each owner has a claim with a token, the epoch of the partition. A guard that
// rejects lower tokens (package guard/fence, one resource per key or row) protects the data.
//
//	g, err := partition.Join(ctx, d, values, "orders", partition.Layout{Partitions: 64}, &partition.Options{Address: "10.0.0.7:8080"})
//	...
//	err = g.Do(ctx, "order/42", func(ctx context.Context, c interlock.Claim) error {
//		return fence.Tx(ctx, db, marks, c, "order/42", ship)
//	})
//	var elsewhere *partition.NotOwnerError
//	if errors.As(err, &elsewhere) {
//		// forward to elsewhere.At.Address, or use package route
//	}
//
// A Layout maps keys to partitions. Each partition is a fenced lock. All members compute the
// same plan of owners from the locks that the service shows; a plan moves as few partitions
// as possible. Before a partition moves, its owner drains it: it accepts no new work, waits
// for running work, and then releases the lock.
//
// The layout is a value in the same service. Each new owner reads it after it has acquired
// its lock, so no key has owners by two layouts. DESIGN.md has the argument.
package partition

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/observe"
)

// ErrDraining is the cause with which a partition's work ends when the partition
// is to move: it still holds its claim, and should come to an end.
var ErrDraining = errors.New("the partition is about to move")

// A Member is a process that takes part.
type Member struct {
	Identity string // unique in the group
	Address  string // where others reach it; may be empty
}

// A Location says who owns a partition. Epoch is 0 and Member empty while nobody
// does.
type Location struct {
	Partition int
	Member
	Epoch interlock.Token
}

// A NotOwnerError tells that a key belongs to another member, as far as is known
// here. It is Retryable: ownership moves.
type NotOwnerError struct {
	Key string
	At  Location
}

// Error names the owner where there is one.
func (e *NotOwnerError) Error() string {
	if e.At.Epoch == 0 {
		return fmt.Sprintf("nobody owns partition %d of %q at this moment", e.At.Partition, e.Key)
	}
	return fmt.Sprintf("partition %d of %q is owned by %s under epoch %d", e.At.Partition, e.Key, e.At.Identity, e.At.Epoch)
}

// ErrorKind is [interlock.Retryable].
func (e *NotOwnerError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A LayoutError tells that a group has another layout than the one that was
// asked for. It is Definite: use [Group.Resize].
type LayoutError struct {
	Group        string
	Stored, Want Layout
}

// Error shows both.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("group %q has %v, not %v; a running group is changed by Resize", e.Group, e.Stored, e.Want)
}

// ErrorKind is [interlock.Definite].
func (e *LayoutError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Options of a member; nil and the zero value work.
type Options struct {
	// Identity names this member, uniquely in the group; at most 200 bytes.
	// Empty means host name, process id and a random part.
	Identity string
	// Address is where other members reach this one; they receive it. At most
	// 200 bytes; empty means nowhere.
	Address string
	// Work runs while a partition is owned, beside what [Group.Do] runs; nil
	// means that there is none. Its context ends with [ErrDraining] when the
	// partition is to move, and with the claim's cause when the claim is lost.
	// The partition is not released before it has returned. If it returns
	// before that with an error, the partition is released and taken again, here
	// or elsewhere, after a pause.
	Work Work
	// Hooks receive what happens; nil logs failures, see package observe.
	Hooks *observe.Partition
}

const maxText = 200

func (o *Options) resolve() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Identity == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown-host"
		}
		r.Identity = fmt.Sprintf("%.100s:%d:%s", host, os.Getpid(), rand.Text()[:8])
	}
	r.Hooks = r.Hooks.WithDefaults()
	if len(r.Identity) > maxText || len(r.Address) > maxText {
		return r, failure.Bug("join group", "", "Identity and Address have at most %d bytes", maxText)
	}
	return r, nil
}

// service is what a group needs of a lock driver.
type service interface {
	driver.Fenced
	driver.Inspector
	driver.Watcher
}

// needs says which driver can carry a group, or why d cannot.
func needs(d driver.Fenced) (service, error) {
	var unmet []string
	if _, ok := d.(driver.Inspector); !ok {
		unmet = append(unmet, "a group has to see who owns what, and this driver does not show locks")
	}
	if _, ok := d.(driver.Watcher); !ok {
		unmet = append(unmet, "a group needs a driver that watches locks, and this one does not")
	}
	if s, ok := d.(service); ok {
		return s, nil
	}
	return nil, &interlock.UnmetError{Driver: d.Guarantees().Driver, Unmet: unmet}
}

// names are those of a group's locks. They share one brace, so that on Redis
// they share a hash slot, and with it one order of tokens.
type names struct{ group string }

func newNames(group string) (names, error) {
	if group == "" || len(group) > maxText/2 || strings.ContainsAny(group, "{}") {
		return names{}, &interlock.Error{Op: "join group", Name: group, Kind: interlock.Bug,
			Err: fmt.Errorf("%w: a group's has 1 to %d bytes and no braces", interlock.ErrName, maxText/2)}
	}
	return names{"{" + group + "}"}, nil
}

func (n names) all() string    { return n.group + "/" }
func (n names) layout() string { return n.group + "/layout" }
func (n names) turn() string   { return n.group + "/turn" }
func (n names) member(m Member) string {
	return n.group + "/member/" + url.QueryEscape(m.Identity) + "/" + url.QueryEscape(m.Address)
}
func (n names) yield(generation int64, i int, identity string) string {
	return fmt.Sprintf("%s/yield/%d/%d/%s", n.group, generation, i, url.QueryEscape(identity))
}
func (n names) partition(generation int64, i int) string {
	return fmt.Sprintf("%s/partition/%d/%d", n.group, generation, i)
}

// isMember reads a member's lock name.
func (n names) isMember(name string) (m Member, ok bool) {
	rest, ok := strings.CutPrefix(name, n.group+"/member/")
	if !ok {
		return m, false
	}
	identity, address, ok := strings.Cut(rest, "/")
	var errs [2]error
	m.Identity, errs[0] = url.QueryUnescape(identity)
	m.Address, errs[1] = url.QueryUnescape(address)
	return m, ok && errs == [2]error{} && n.member(m) == name
}

// isPartition reads a partition's lock name.
func (n names) isPartition(name string) (generation int64, i int, ok bool) {
	var rest string
	_, err := fmt.Sscanf(strings.TrimPrefix(name, n.group+"/partition/"), "%d/%d%s", &generation, &i, &rest)
	return generation, i, err != nil && rest == "" && n.partition(generation, i) == name
}

// isYield reads the name of a yield.
func (n names) isYield(name string) (generation int64, i int, identity string, ok bool) {
	var escaped string
	if _, err := fmt.Sscanf(strings.TrimPrefix(name, n.group+"/yield/"), "%d/%d/%s", &generation, &i, &escaped); err != nil {
		return 0, 0, "", false
	}
	identity, err := url.QueryUnescape(escaped)
	return generation, i, identity, err == nil && n.yield(generation, i, identity) == name
}

// identityOf is the member part of a lock's owner, to which package lock adds a
// part of its own.
func identityOf(owner string) string {
	if i := strings.LastIndexByte(owner, '/'); i >= 0 {
		return owner[:i]
	}
	return owner
}

// locksOf makes a member's locks. Nothing is handed over inside the process: the
// plan decides who is next. The group reports that a partition is lost.
func locksOf(d driver.Fenced, o Options) (*lock.Fenced, error) {
	return lock.NewFenced(d, &lock.Options{Identity: o.Identity, Handovers: -1, Attempts: 1,
		Hooks: &observe.Lock{Log: o.Hooks.Log, Ended: func(observe.LockEnded) {}}})
}

// look is how often a member looks at the service although no event came.
func look(g interlock.Guarantees) time.Duration { return max(time.Second/4, patience(g)/3) }

// patience is how long a question to the service may take: a member without an answer
// for a TTL is about to lose what it has.
func patience(g interlock.Guarantees) time.Duration { return cmp.Or(g.TTL, 30*time.Second) }
