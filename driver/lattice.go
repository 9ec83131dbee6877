package driver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
)

// Limits of a [Lattice]. The scripts of stores compute exactly up to 2^53.
const (
	MaxDot     = 1 << 53 // the highest number of a replica's dots
	MaxField   = 1100    // bytes of a field: two names and a separator
	MaxReplica = 255     // bytes of a replica's id
)

// A Dot identifies one addition to a set: the N-th of its replica, counted from 1.
type Dot struct {
	Replica string
	N       int64
}

// A Lattice is the state of a conflict-free replicated data type: a join-semilattice. Its Join
// is commutative, associative and idempotent, so states and their deltas may be lost, repeated
// and reordered. Package flow/crdt builds data types on it. The zero value is empty.
//
// It is a product of two lattices: the greatest value for each field, and an observed-remove
// set without tombstones. Sources: Bieniusa, Zawirski, Preguiça, Shapiro, Baquero, Balegas and
// Duarte, "An Optimized Conflict-free Replicated Set", 2012; Almeida, Shoker and Baquero,
// "Delta State Replicated Data Types", 2018.
type Lattice struct {
	// Max maps each field to its greatest value, compared byte by byte.
	Max map[string]string
	// Dots maps each addition that is not removed to its element.
	Dots map[Dot]string
	// Seen maps each replica to its dots that were added, including removed ones. It contains
	// every dot of Dots.
	Seen map[string]Ranges
}

// Join merges other into l and leaves other unchanged. Both must have passed Check.
func (l *Lattice) Join(other Lattice) {
	for field, value := range other.Max {
		if have, ok := l.Max[field]; !ok || value > have {
			put(&l.Max, field, value)
		}
	}
	for _, d := range l.SeenBy(other) {
		if _, present := other.Dots[d]; !present {
			delete(l.Dots, d)
		}
	}
	for d, element := range other.Dots {
		if have, present := l.Dots[d]; !present && !l.Seen[d.Replica].Contains(d.N) || present && element > have {
			put(&l.Dots, d, element)
		}
	}
	for replica, r := range other.Seen {
		put(&l.Seen, replica, l.Seen[replica].Union(r))
	}
}

// SeenBy returns the dots of l that other has seen. Its time is linear in the number of dots of
// l, or of dots that other has seen, whichever is smaller.
func (l Lattice) SeenBy(other Lattice) (dots []Dot) {
	count := int64(0)
	for _, ranges := range other.Seen {
		for _, r := range ranges {
			count = min(count+r.Last-r.First+1, MaxDot) // more than any number of dots
		}
	}
	if count > int64(len(l.Dots)) {
		for d := range l.Dots {
			if other.Seen[d.Replica].Contains(d.N) {
				dots = append(dots, d)
			}
		}
		return dots
	}
	for replica, ranges := range other.Seen {
		for _, r := range ranges {
			for n := r.First; n <= r.Last; n++ {
				if _, ok := l.Dots[Dot{replica, n}]; ok {
					dots = append(dots, Dot{replica, n})
				}
			}
		}
	}
	return dots
}

// put sets a key and creates the map if it is nil.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// Clone returns a copy that shares no memory with l.
func (l Lattice) Clone() Lattice {
	var c Lattice
	c.Join(l)
	return c
}

// Check returns an error if l, received from elsewhere, is invalid.
func (l Lattice) Check() error {
	for field, value := range l.Max {
		if len(field) > MaxField || len(value) > 2*MaxValue {
			return fmt.Errorf("a field has %d bytes and its value %d, at most %d and %d are allowed", len(field), len(value), MaxField, 2*MaxValue)
		}
	}
	for d, element := range l.Dots {
		if len(element) > MaxValue {
			return fmt.Errorf("an element has %d bytes, at most %d are allowed", len(element), MaxValue)
		}
		if !l.Seen[d.Replica].Contains(d.N) {
			return fmt.Errorf("addition %d of replica %q is not among those seen", d.N, d.Replica)
		}
	}
	for replica, r := range l.Seen {
		if err := errors.Join(CheckText("a replica", replica, 1, MaxReplica), r.check()); err != nil {
			return err
		}
	}
	return nil
}

// A Range is the numbers from First to Last, both included.
type Range struct{ First, Last int64 }

// Ranges is a set of numbers: ascending ranges with a gap between any two.
type Ranges []Range

// Contains reports whether n is in the set.
func (r Ranges) Contains(n int64) bool {
	i, found := slices.BinarySearchFunc(r, n, func(x Range, n int64) int { return cmp.Compare(x.First, n) })
	return found || i > 0 && n <= r[i-1].Last
}

// Union returns the numbers of both sets.
func (r Ranges) Union(other Ranges) Ranges {
	all := slices.Concat(r, other)
	slices.SortFunc(all, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var u Ranges
	for _, x := range all {
		if last := len(u) - 1; last >= 0 && x.First <= u[last].Last+1 {
			u[last].Last = max(u[last].Last, x.Last)
		} else {
			u = append(u, x)
		}
	}
	return u
}

// check returns an error unless r is a set of numbers from 1 to MaxDot.
func (r Ranges) check() error {
	if len(r) == 0 {
		return errors.New("a replica is named without a dot")
	}
	next := int64(1)
	for _, x := range r {
		if x.First < next || x.Last < x.First || x.Last > MaxDot {
			return fmt.Errorf("dots %d to %d are out of order or of bounds", x.First, x.Last)
		}
		next = x.Last + 2
	}
	return nil
}

// Lattices stores states that many processes merge. Its methods are safe for concurrent use.
type Lattices interface {
	// Merge joins delta into the state of name (1 to MaxName bytes), in one atomic step. If
	// guard is not nil, Merge first enters the guard's resource in the same step, as
	// [Fence].Enter does. If the token is refused, nothing changes. An empty delta only enters.
	// If delta fails [Lattice.Check], the error is a Bug. Repeating Merge after an Uncertain
	// error converges, unless the guard is Strict.
	Merge(ctx context.Context, name string, delta Lattice, guard *Raise) error
	// Load returns the state of name at some instant during the call. The state is empty if
	// there is none, and includes every delta that was merged before the call.
	Load(ctx context.Context, name string) (Lattice, error)
}
