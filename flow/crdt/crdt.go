package crdt

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// MaxCount is the largest count of one replica: 2^53.
const MaxCount = 1 << 53

// A Type is one of the data types of this package: *[GCounter], *[PNCounter], *[ORSet],
// *[Register], *[Map] or *[Bounded].
type Type interface {
	kind() kind
	state() *driver.Lattice
	// check validates a state that passed driver.Lattice.Check.
	check() error
	// changed is called after state was replaced.
	changed()
}

// A kind is a Type's number in encodings, which never changes.
type kind byte

const (
	gCounter kind = iota + 1
	pnCounter
	orSet
	register
	lwwMap
	bounded
)

// String returns the kind's part of the names in a store, which never changes.
func (k kind) String() string {
	return [...]string{"unknown", "gcounter", "pncounter", "orset", "register", "map", "bounded"}[k]
}

// validate returns an error if a state is invalid.
func validate(t Type) error {
	if err := t.state().Check(); err != nil {
		return err
	}
	if t.kind() != orSet && len(t.state().Seen) > 0 {
		return errors.New("additions of a set in another type")
	}
	return t.check()
}

func problem(op, name string, kind interlock.ErrorKind, err error) error {
	return &interlock.Error{Op: op, Name: name, Kind: kind, Err: err}
}

func bug(op, name string, err error) error { return problem(op, name, interlock.Bug, err) }

func checkReplica(op, replica string) error {
	return driver.CheckName(op, "a replica", replica, driver.MaxReplica)
}

// count returns the number in a field, 0 if there is none. The state has passed check.
func count(l driver.Lattice, field string) int64 {
	n, _ := driver.ParsePadded(l.Max[field]) // empty is 0
	return n
}

// raised returns the delta that adds n to the number in a field.
func raised(op string, l driver.Lattice, field string, n int64) (driver.Lattice, error) {
	have := count(l, field)
	if n < 0 || n > MaxCount-have {
		return driver.Lattice{}, bug(op, "", fmt.Errorf("%d is negative, or more than a replica can count beyond %d", n, have))
	}
	if n == 0 && have == 0 {
		return driver.Lattice{}, nil
	}
	return driver.Lattice{Max: map[string]string{field: driver.FormatPadded(have + n)}}, nil
}

// checkCounts requires that every field is one of the signs and a replica, with a count.
func checkCounts(l driver.Lattice, signs string) error {
	for field, value := range l.Max {
		if field == "" || !strings.Contains(signs, field[:1]) {
			return fmt.Errorf("unexpected field %q", field)
		}
		names := []string{field[1:]}
		if field[0] == '>' {
			names = strings.SplitN(field[1:], "\x00", 2)
			if len(names) < 2 || names[0] == names[1] {
				return fmt.Errorf("unexpected field %q", field)
			}
		}
		for _, name := range names {
			if err := driver.CheckText("a replica", name, 1, driver.MaxReplica); err != nil {
				return err
			}
		}
		if n, err := driver.ParsePadded(value); err != nil || n < 1 || n > MaxCount {
			return fmt.Errorf("the count of %q is %q, not 1 to %d in %d digits", field, value, int64(MaxCount), driver.PaddedLength)
		}
	}
	return nil
}

// sum adds the counts of the fields with a sign, up to the largest int64, which needs more than a
// thousand replicas.
func sum(l driver.Lattice, sign string) (total int64) {
	for field := range l.Max {
		if strings.HasPrefix(field, sign) {
			total += min(count(l, field), math.MaxInt64-total)
		}
	}
	return total
}
