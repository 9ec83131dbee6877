package crdt

import "github.com/interlock-dev/interlock/driver"

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
