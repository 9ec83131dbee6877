package crdt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func token(n int64) interlock.Token { return interlock.Token(n << 12) }

// eachStore runs a test on every store.
func eachStore(t *testing.T, test func(t *testing.T, s *Store)) {
	t.Run("memory", func(t *testing.T) { test(t, NewStore(memory.NewLattices())) })
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		client, err := redis.Dial("redis://" + testbed.Redis(t).Addr())
		ok(t, err)
		t.Cleanup(client.Close)
		test(t, NewStore(redis.NewLattices(client, "shop/")))
	})
}

func TestStore(t *testing.T) {
	eachStore(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		var tags, other ORSet
		var count PNCounter
		ok(t, s.Load(ctx, "x", &tags)) // it does not exist
		for i := range 10 {
			delta, err := tags.Add("eu", fmt.Sprint(i))
			ok(t, err)
			ok(t, s.Merge(ctx, "x", &delta))
		}
		delta := tags.Remove("3")
		ok(t, s.Merge(ctx, "x", &delta))
		down, err := count.Add("eu", -3)
		ok(t, err)
		ok(t, s.Merge(ctx, "x", &down)) // each type has its own names
		ok(t, s.Load(ctx, "x", &other))
		ok(t, s.Load(ctx, "x", &count))
		if got := strings.Join(other.Elements(), ""); got != "012456789" || count.Value() != -3 {
			t.Errorf("the set is %q and the counter %d", got, count.Value())
		}
		if next, err := other.Add("eu", "more"); err != nil || next.l.Seen["eu"][0].First != 11 {
			t.Errorf("a loaded set continues at %v, %v", next.l.Seen, err)
		}
		for _, name := range []string{"", strings.Repeat("x", driver.MaxName)} {
			_, err := s.Share(ctx, name, "eu", token(1))
			for _, err := range []error{err, s.Merge(ctx, name, &tags), s.Load(ctx, name, &tags)} {
				testbed.WantKind(t, err, interlock.Bug, interlock.ErrName)
			}
		}
		if _, err := s.Share(ctx, "x", "", token(1)); interlock.Kind(err) != interlock.Bug {
			t.Errorf("a share of an empty replica: %v", err)
		}
		ok(t, s.lattices.Merge(ctx, "gcounter/x", driver.Lattice{Max: map[string]string{"?": ""}}, nil))
		c := GCounter{driver.Lattice{Max: map[string]string{"+eu": driver.FormatPadded(1)}}}
		if err := s.Load(ctx, "x", &c); interlock.Kind(err) != interlock.Definite || c.Value() != 1 {
			t.Errorf("a value of another type: %v, %d", err, c.Value())
		}
	})
}

// TestSharesDoNotMeet: no share is fenced by the token of another one.
func TestSharesDoNotMeet(t *testing.T) {
	eachStore(t, func(t *testing.T, s *Store) {
		var all []*Share
		for i, of := range [][2]string{{"a", "b/c"}, {"a/b", "c"}, {"a", "b%2Fc"}, {"a", "b%252Fc"}} {
			h, err := s.Share(t.Context(), of[0], of[1], token(int64(9-i)))
			ok(t, err)
			all = append(all, h)
		}
		for _, h := range all {
			ok(t, h.Add(t.Context(), 1))
		}
	})
}

// TestPrefixes: two stores of one server with different prefixes have different shares.
func TestPrefixes(t *testing.T) {
	client, err := redis.Dial("redis://" + testbed.Redis(t).Addr())
	ok(t, err)
	defer client.Close()
	for i, prefix := range []string{"eu/", "us/"} {
		_, err := NewStore(redis.NewLattices(client, prefix)).Share(t.Context(), "stock", "a", token(int64(9-i)))
		ok(t, err)
	}
}

// flaky loses requests, answers, or neither, at random.
type flaky struct {
	driver.Lattices
	random *rand.Rand
	quiet  bool
}

var errFlaky = errors.New("flaky")

func (f *flaky) Merge(ctx context.Context, name string, delta driver.Lattice, guard *driver.Raise) error {
	fault := f.random.IntN(6)
	if f.quiet {
		fault = -1
	}
	if fault == 0 {
		return &interlock.Error{Op: "merge", Kind: interlock.Definite, Err: errFlaky}
	}
	if fault == 1 {
		return &interlock.Error{Op: "merge", Kind: interlock.Uncertain, Err: errFlaky}
	}
	err := f.Lattices.Merge(ctx, name, delta, guard)
	if fault == 2 && err == nil {
		return &interlock.Error{Op: "merge", Kind: interlock.Uncertain, Err: errFlaky}
	}
	return err
}

// TestSharesUnderFaults: with any failures and replaced owners, no more units are sold than exist.
// Units are lost only if a process dies after a failed operation.
func TestSharesUnderFaults(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		for seed := range uint64(500) {
			random := rand.New(rand.NewPCG(seed, 1))
			f := &flaky{memory.NewLattices(), random, true}
			s := NewStore(f)
			epoch := int64(1)
			open := func(replica string) *Share {
				f.quiet = true
				defer func() { f.quiet = false }()
				epoch++
				h, err := s.Share(t.Context(), "x", replica, token(epoch))
				if err != nil {
					t.Fatal(seed, err)
				}
				return h
			}
			owners := map[string][]*Share{}
			for _, r := range replicas {
				owners[r] = []*Share{open(r)}
			}
			supply, sold, died := int64(0), int64(0), false
			for range 1 + random.IntN(40) {
				replica := replicas[random.IntN(len(replicas))]
				h := owners[replica][random.IntN(len(owners[replica]))] // perhaps a former one
				former := h != owners[replica][len(owners[replica])-1]
				n, err := random.Int64N(6), error(nil)
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+random.IntN(60))*time.Millisecond)
				switch random.IntN(7) {
				case 0:
					died, err = true, errFlaky
					owners[replica] = append(owners[replica], open(replica))
				case 1:
					err = h.Add(ctx, n)
					if !former {
						supply += n // also after an error, unless the process dies
					}
				case 2:
					err = h.Move(ctx, replicas[random.IntN(3)], n)
				case 3:
					err = cmp.Or(h.Refresh(ctx), errFlaky)
				default:
					if err = h.Take(ctx, n); err == nil {
						sold += n
					}
				}
				cancel()
				if former && err == nil {
					t.Fatal(seed, "a former owner changed the counter")
				}
			}
			f.quiet = true
			current := func(replica string) *Share { return owners[replica][len(owners[replica])-1] }
			for _, r := range replicas {
				if err := current(r).Add(t.Context(), 0); err != nil { // stores what is pending
					t.Fatal(seed, err)
				}
			}
			for _, r := range replicas {
				h := current(r)
				if err := h.Refresh(t.Context()); err != nil {
					t.Fatal(seed, err)
				}
				n := h.Left()
				if err := h.Take(t.Context(), n); err != nil {
					t.Fatal(seed, err)
				}
				sold += n
			}
			if sold > supply || !died && sold < supply {
				t.Fatalf("seed %d: %d of %d units were sold", seed, sold, supply)
			}
			var b Bounded
			if err := s.Load(t.Context(), "x", &b); err != nil || b.Value() < 0 || !died && b.Value() != 0 {
				t.Fatalf("seed %d: %d units are left, %v", seed, b.Value(), err)
			}
		}
	})
}
