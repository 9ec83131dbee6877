package crdt

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/interlock-dev/interlock/driver"
)

// An ORSet is a set of texts, in which an addition wins over a concurrent removal
// (observed-remove set). The zero value is empty. It keeps no tombstones: its size is that of the
// elements, plus one range of numbers for each replica whose deltas have all arrived.
type ORSet struct {
	l    driver.Lattice
	dots map[string][]driver.Dot // by element
}

// Add adds an element, of at most driver.MaxValue bytes, for a replica and returns the delta.
func (s *ORSet) Add(replica, element string) (delta ORSet, err error) {
	const op = "add to set"
	if err := checkReplica(op, replica); err != nil {
		return delta, err
	}
	if len(element) > driver.MaxValue {
		return delta, bug(op, "", fmt.Errorf("an element has %d bytes, at most %d are allowed", len(element), driver.MaxValue))
	}
	next := driver.Dot{Replica: replica, N: 1}
	if seen := s.l.Seen[replica]; len(seen) > 0 {
		next.N = seen[len(seen)-1].Last + 1
	}
	if next.N > driver.MaxDot {
		return delta, bug(op, replica, errors.New("the replica has no numbers left"))
	}
	delta = s.observed(element)
	delta.see(next)
	delta.l.Dots = map[driver.Dot]string{next: element}
	delta.changed()
	s.Merge(delta)
	return delta, nil
}

// Remove removes an element and returns the delta. Additions that are not merged yet win. Any process may
// call it, without a replica. If the element is not in the set, the delta is empty.
func (s *ORSet) Remove(element string) (delta ORSet) {
	delta = s.observed(element)
	s.Merge(delta)
	return delta
}

// observed returns a delta that has seen the additions of an element, and has none of them.
func (s *ORSet) observed(element string) (delta ORSet) {
	for _, d := range s.dots[element] {
		delta.see(d)
	}
	return delta
}

func (s *ORSet) see(d driver.Dot) {
	if s.l.Seen == nil {
		s.l.Seen = map[string]driver.Ranges{}
	}
	s.l.Seen[d.Replica] = s.l.Seen[d.Replica].Union(driver.Ranges{{First: d.N, Last: d.N}})
}

// Contains reports whether an element is in the set.
func (s *ORSet) Contains(element string) bool { return len(s.dots[element]) > 0 }

// Elements returns the elements in the order of their bytes.
func (s *ORSet) Elements() []string { return slices.Sorted(maps.Keys(s.dots)) }

// Len returns the number of elements.
func (s *ORSet) Len() int { return len(s.dots) }

// Merge joins other into s, in time proportional to the smaller one.
func (s *ORSet) Merge(other ORSet) {
	seen := s.l.SeenBy(other.l)
	for _, d := range seen {
		s.unindex(d)
	}
	s.l.Join(other.l)
	for _, d := range seen {
		s.index(d)
	}
	for d := range other.l.Dots {
		s.index(d)
	}
}

// unindex removes a present dot from dots.
func (s *ORSet) unindex(d driver.Dot) {
	element := s.l.Dots[d]
	left := slices.DeleteFunc(slices.Clone(s.dots[element]), func(other driver.Dot) bool { return other == d })
	if s.dots[element] = left; len(left) == 0 {
		delete(s.dots, element)
	}
}

// index adds a dot to dots, if it is present.
func (s *ORSet) index(d driver.Dot) {
	element, present := s.l.Dots[d]
	if !present || slices.Contains(s.dots[element], d) {
		return
	}
	if s.dots == nil {
		s.dots = map[string][]driver.Dot{}
	}
	s.dots[element] = append(s.dots[element], d)
}

func (s *ORSet) kind() kind             { return orSet }
func (s *ORSet) state() *driver.Lattice { return &s.l }

func (s *ORSet) check() error {
	if len(s.l.Max) > 0 {
		return errors.New("a set has no fields")
	}
	return nil
}

func (s *ORSet) changed() {
	s.dots = nil
	for d := range s.l.Dots {
		s.index(d)
	}
}
