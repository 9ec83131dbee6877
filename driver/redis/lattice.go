package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var latticeLua = lua("lattice")

var latticeScript = newScript(latticeLua)

// Lattices keeps states of conflict-free replicated data types in Redis; one script merges. It
// implements driver.Lattices. A state is the hash interlock:{TAG}:crdt:PREFIX+NAME, which never
// expires, and the resource of a guard is PREFIX+RESOURCE. In a Redis Cluster both need the same {tag}. What a
// crash without appendfsync always, or a failover to a replica, loses is restored when a process
// that has it merges it again. What no process has is lost, including units taken from a bounded
// counter.
type Lattices struct {
	fence  *Fence
	prefix string
}

var _ driver.Lattices = (*Lattices)(nil)

// NewLattices keeps states under prefix, which may be empty; it sends nothing. The caller
// closes the client.
func NewLattices(client rueidis.Client, prefix string) *Lattices {
	return &Lattices{NewFence(client), prefix}
}

func (s *Lattices) key(name string) string { return fenceKey("crdt", s.prefix+name) }

// Merge joins delta into a state, by one request; see driver.Lattices.
func (s *Lattices) Merge(ctx context.Context, name string, delta driver.Lattice, guard *driver.Raise) error {
	asked := request{op: "merge", name: name}
	if err := checkName(name, ""); err != nil {
		return err
	}
	if err := delta.Check(); err != nil {
		return problem(asked, interlock.Bug, err)
	}
	keys, args := []string{s.key(name)}, latticeArgs(delta)
	if guard != nil {
		own := *guard
		own.Resource = s.prefix + guard.Resource
		_, err := s.fence.Eval(ctx, own, latticeLua(), keys, args)
		return err
	}
	_, err := s.fence.conn.eval(ctx, asked, latticeScript, batch{keys, args})
	return err
}

// latticeArgs returns the arguments of the script.
func latticeArgs(l driver.Lattice) []string {
	args := []string{strconv.Itoa(len(l.Max))}
	for field, value := range l.Max {
		args = append(args, field, value)
	}
	args = append(args, strconv.Itoa(len(l.Dots)))
	for d, element := range l.Dots {
		args = append(args, driver.FormatPadded(d.N)+d.Replica, element)
	}
	args = append(args, strconv.Itoa(len(l.Seen)))
	for replica, ranges := range l.Seen {
		words := make([]string, len(ranges))
		for i, r := range ranges {
			words[i] = fmt.Sprintf("%d-%d", r.First, r.Last)
		}
		args = append(args, replica, strings.Join(words, " "))
	}
	return args
}

// Load returns a state, by one request; see driver.Lattices.
func (s *Lattices) Load(ctx context.Context, name string) (driver.Lattice, error) {
	asked := request{op: "load", name: name}
	if err := checkName(name, ""); err != nil {
		return driver.Lattice{}, err
	}
	fields, err := s.fence.conn.fields(ctx, asked, s.key(name))
	if err != nil {
		return driver.Lattice{}, err
	}
	l, err := parseLattice(fields)
	if err == nil {
		err = l.Check()
	}
	if err != nil {
		return driver.Lattice{}, problem(asked, interlock.Definite, fmt.Errorf("the state is damaged: %w", err))
	}
	return l, nil
}

// parseLattice reads the fields of a hash.
func parseLattice(fields map[string]string) (driver.Lattice, error) {
	l := driver.Lattice{Max: map[string]string{}, Dots: map[driver.Dot]string{}, Seen: map[string]driver.Ranges{}}
	for field, value := range fields {
		kind, rest := field[:min(1, len(field))], field[min(1, len(field)):]
		switch {
		case kind == "m":
			l.Max[rest] = value
		case kind == "a" && len(rest) > driver.PaddedLength:
			n, err := driver.ParsePadded(rest[:driver.PaddedLength])
			if err != nil {
				return l, err
			}
			l.Dots[driver.Dot{Replica: rest[driver.PaddedLength:], N: n}] = value
		case kind == "s":
			for _, word := range strings.Fields(value) {
				first, last, _ := strings.Cut(word, "-")
				from, err := driver.ParseInt(first)
				if err != nil {
					return l, err
				}
				to, err := driver.ParseInt(last)
				if err != nil {
					return l, err
				}
				l.Seen[rest] = append(l.Seen[rest], driver.Range{First: from, Last: to})
			}
		default:
			return l, fmt.Errorf("field %q", field)
		}
	}
	return l, nil
}
