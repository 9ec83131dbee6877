// Package partition assigns keys to processes, one owner per key at a time. It cannot promise
// that only one process acts: an owner that was paused continues after its keys have moved.
// Each owner has a claim with a token, the epoch of the partition. A guard that rejects lower
// tokens (package guard/fence, one resource per key or row) protects the data.
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
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/process"
	"github.com/interlock-dev/interlock/observe"
)

// ErrDraining is the cause with which a partition's work ends when the partition is about to
// move. The claim is still held, and the work should return.
var ErrDraining = errors.New("the partition is about to move")

// A Member is a process in a group.
type Member struct {
	Identity string // unique in the group
	Address  string // where others reach it; may be empty
}

// A Location names the owner of a partition. If it has no owner, Epoch is 0 and Member empty.
type Location struct {
	Partition int
	Member
	Epoch interlock.Token
}

// A NotOwnerError means that this member does not own a key; At is the owner as far as it
// knows. It is Retryable, because ownership moves.
type NotOwnerError struct {
	Key string
	At  Location
}

// Error returns a message with the owner if there is one.
func (e *NotOwnerError) Error() string {
	if e.At.Epoch == 0 {
		return fmt.Sprintf("partition %d of %q has no owner at this moment", e.At.Partition, e.Key)
	}
	return fmt.Sprintf("partition %d of %q is owned by %s under epoch %d", e.At.Partition, e.Key, e.At.Identity, e.At.Epoch)
}

// ErrorKind returns [interlock.Retryable].
func (e *NotOwnerError) ErrorKind() interlock.ErrorKind { return interlock.Retryable }

// A LayoutError means that the group has another layout than the requested one. It is Definite:
// use [Group.Resize].
type LayoutError struct {
	Group        string
	Stored, Want Layout
}

// Error returns a message with both layouts.
func (e *LayoutError) Error() string {
	return fmt.Sprintf("group %q has %v, not %v; a running group is changed by Resize", e.Group, e.Stored, e.Want)
}

// ErrorKind returns [interlock.Definite].
func (e *LayoutError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Options configure a member; nil and the zero value are valid.
type Options struct {
	// Identity names this member, uniquely in the group; at most 200 bytes, escaped as in the
	// query of a URL. Empty means host name, process id and a random part.
	Identity string
	// Address is the address at which other members reach this one; they can read it. At most
	// 200 bytes, escaped likewise; empty means none.
	Address string
	// Work runs while this member owns a partition, beside the functions of [Group.Do]; nil
	// means none. Its context ends with [ErrDraining] when the partition is about to move, and
	// with the claim's cause when the claim is lost. The partition is released only after Work
	// has returned. If Work returns an error or ends its goroutine before that, the member
	// releases the partition; after a pause this or another member acquires it again.
	Work Work
	// Hooks receive events; nil logs failures, see package observe.
	Hooks *observe.Partition
}

const maxText = 200

func (o *Options) resolve() (Options, error) {
	r := *cmp.Or(o, &Options{})
	if r.Identity == "" {
		r.Identity = process.Name() + ":" + rand.Text()[:8]
	}
	r.Hooks = r.Hooks.WithDefaults()
	if len(url.QueryEscape(r.Identity)) > maxText || len(url.QueryEscape(r.Address)) > maxText {
		return r, failure.Bug("join group", "", "Identity and Address have at most %d bytes each, escaped as in a URL", maxText)
	}
	return r, nil
}

// names are the names of a group's locks. They share one brace, so on Redis they share a hash
// slot, and with it one order of tokens.
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

// isMember parses the name of a member's lock.
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

// isPartition parses the name of a partition's lock.
func (n names) isPartition(name string) (generation int64, i int, ok bool) {
	var rest string
	_, err := fmt.Sscanf(strings.TrimPrefix(name, n.group+"/partition/"), "%d/%d%s", &generation, &i, &rest)
	return generation, i, err != nil && rest == "" && n.partition(generation, i) == name
}

// isYield parses the name of a yield's lock.
func (n names) isYield(name string) (generation int64, i int, identity string, ok bool) {
	var escaped string
	if _, err := fmt.Sscanf(strings.TrimPrefix(name, n.group+"/yield/"), "%d/%d/%s", &generation, &i, &escaped); err != nil {
		return 0, 0, "", false
	}
	identity, err := url.QueryUnescape(escaped)
	return generation, i, identity, err == nil && n.yield(generation, i, identity) == name
}

// locksOf returns a member's locks. It disables hand-over inside the process, because the plan
// decides the next owner. The group itself reports lost partitions.
func locksOf(d driver.Fenced, o Options) (*lock.Fenced, error) {
	return lock.NewFenced(d, &lock.Options{Identity: o.Identity, Handovers: -1, Attempts: 1,
		Hooks: &observe.Lock{Log: o.Hooks.Log, Ended: func(observe.LockEnded) {}}})
}

// look returns the interval at which a member reads the service without an event.
func look(g interlock.Guarantees) time.Duration { return max(time.Second/4, patience(g)/3) }

// patience returns the bound of a request to the service: a member without a reply for a TTL is
// about to lose its claims.
func patience(g interlock.Guarantees) time.Duration { return cmp.Or(g.TTL, 30*time.Second) }
