package crdt

import (
	"errors"
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A GCounter counts up. The zero value is 0.
type GCounter struct{ l driver.Lattice }

// Add counts n operations of a replica and returns the delta. It is a Bug if n is negative, or if
// the replica's count exceeds [MaxCount].
func (c *GCounter) Add(replica string, n int64) (delta GCounter, err error) {
	const op = "add to counter"
	if err = checkReplica(op, replica); err != nil {
		return delta, err
	}
	delta.l, err = raised(op, c.l, "+"+replica, n)
	c.Merge(delta)
	return delta, err
}

// Value returns the sum over all replicas.
func (c *GCounter) Value() int64 { return sum(c.l, "+") }

// Merge joins other into c.
func (c *GCounter) Merge(other GCounter) { c.l.Join(other.l) }

func (c *GCounter) kind() kind             { return gCounter }
func (c *GCounter) state() *driver.Lattice { return &c.l }
func (c *GCounter) check() error           { return checkCounts(c.l, "+") }
func (c *GCounter) changed()               {}

// A PNCounter counts up and down. The zero value is 0.
type PNCounter struct{ l driver.Lattice }

// Add adds n, which may be negative, for a replica and returns the delta. It is a Bug if the
// additions or the subtractions of the replica exceed [MaxCount].
func (c *PNCounter) Add(replica string, n int64) (delta PNCounter, err error) {
	const op = "add to counter"
	if err = checkReplica(op, replica); err != nil {
		return delta, err
	}
	sign := "+"
	if n < 0 {
		sign, n = "-", -n // the lowest int64 stays negative, and is rejected
	}
	delta.l, err = raised(op, c.l, sign+replica, n)
	c.Merge(delta)
	return delta, err
}

// Value returns the sum over all replicas.
func (c *PNCounter) Value() int64 { return sum(c.l, "+") - sum(c.l, "-") }

// Merge joins other into c.
func (c *PNCounter) Merge(other PNCounter) { c.l.Join(other.l) }

func (c *PNCounter) kind() kind             { return pnCounter }
func (c *PNCounter) state() *driver.Lattice { return &c.l }
func (c *PNCounter) check() error           { return checkCounts(c.l, "+-") }
func (c *PNCounter) changed()               {}

// A Bounded is a counter that is never below zero, such as the stock of an item (bounded counter,
// escrow: O'Neil, "The Escrow Transactional Method", 1986; Balegas, Serra, Duarte, Ferreira,
// Shapiro, Rodrigues and Preguiça, "Extending Eventually Consistent Cloud Databases for Enforcing
// Numeric Invariants", 2015). Each replica has a share of the units, and takes only from that,
// without asking the others. The zero value is 0.
//
// This requires the rules for replicas in the package comment, and that an operation is stored before its
// effects. A [Share] does both.
type Bounded struct{ l driver.Lattice }

// A ShortError means that the share of a replica is too small. Another replica can Move units to it. It is
// Definite.
type ShortError struct {
	Replica    string
	Want, Have int64
}

// Error returns a message with the numbers.
func (e *ShortError) Error() string {
	return fmt.Sprintf("replica %q has a share of %d, needs %d", e.Replica, e.Have, e.Want)
}

// ErrorKind returns [interlock.Definite].
func (e *ShortError) ErrorKind() interlock.ErrorKind { return interlock.Definite }

// Add adds n new units to a replica's share and returns the delta.
func (b *Bounded) Add(replica string, n int64) (Bounded, error) {
	return b.raise("add units", replica, "+"+replica, n)
}

// Take takes n units from a replica's share and returns the delta. If there are fewer, the error has a
// [ShortError] and nothing changes.
func (b *Bounded) Take(replica string, n int64) (Bounded, error) {
	return b.raise("take units", replica, "-"+replica, n)
}

// Move moves n units from one share to another and returns the delta. It is an operation of replica from.
// If there are fewer, the error has a [ShortError] and nothing changes.
func (b *Bounded) Move(from, to string, n int64) (Bounded, error) {
	const op = "move units"
	if err := checkReplica(op, to); err != nil {
		return Bounded{}, err
	}
	if from == to {
		return Bounded{}, bug(op, from, errors.New("source and destination are the same replica"))
	}
	return b.raise(op, from, ">"+from+"\x00"+to, n)
}

// raise adds n to a field of a replica. Each delta has all operations of the replica, so that none is
// stored without the others, and all known additions. So no state has a subtraction without its
// additions, and Value is never negative.
func (b *Bounded) raise(op, replica, field string, n int64) (delta Bounded, err error) {
	if err = checkReplica(op, replica); err != nil {
		return delta, err
	}
	if have := b.Share(replica); field[0] != '+' && n > have {
		return delta, problem(op, "", interlock.Definite, &ShortError{Replica: replica, Want: n, Have: have})
	}
	if delta.l, err = raised(op, b.l, field, n); err != nil {
		return Bounded{}, err
	}
	for f, value := range b.l.Max {
		if f[0] == '+' || f == "-"+replica || strings.HasPrefix(f, ">"+replica+"\x00") {
			delta.l.Join(driver.Lattice{Max: map[string]string{f: value}})
		}
	}
	b.Merge(delta)
	return delta, nil
}

// Share returns how many units a replica can take. In the replica's own state it is exact, except for
// units that others have moved to it since. In other states it may be out of date.
func (b *Bounded) Share(replica string) int64 {
	share := count(b.l, "+"+replica) - count(b.l, "-"+replica)
	for field := range b.l.Max {
		if field[0] == '>' {
			from, to, _ := strings.Cut(field[1:], "\x00")
			switch replica {
			case from:
				share -= count(b.l, field)
			case to:
				share += count(b.l, field)
			}
		}
	}
	return max(0, share)
}

// Value returns the known units in all shares; it is never negative.
func (b *Bounded) Value() int64 { return sum(b.l, "+") - sum(b.l, "-") }

// Merge joins other into b.
func (b *Bounded) Merge(other Bounded) { b.l.Join(other.l) }

func (b *Bounded) kind() kind             { return bounded }
func (b *Bounded) state() *driver.Lattice { return &b.l }
func (b *Bounded) check() error           { return checkCounts(b.l, "+->") }
func (b *Bounded) changed()               {}
