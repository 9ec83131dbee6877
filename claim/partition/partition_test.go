package partition_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/claim/partition/partitiontest"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMain(m *testing.M) { testbed.Main(m) }

// TestMemory runs the suite in virtual time.
func TestMemory(t *testing.T) {
	partitiontest.Run(t, virtual.Test, func(t *testing.T) partitiontest.World {
		space := memory.NewSpace()
		fence := space.Fence()
		return partitiontest.World{
			Open: func(t *testing.T) (driver.Fenced, driver.Values) {
				d := space.Open(&memory.Options{TTL: 6 * time.Second})
				t.Cleanup(func() { _ = d.Close(context.Background()) })
				return d, space.Values()
			},
			Crash: func(t *testing.T, d driver.Fenced) {
				testbed.OK(t, d.Close(t.Context()))
			},
			Enter: func(ctx context.Context, resource string, token interlock.Token, source string) error {
				return fence.Enter(ctx, driver.Raise{Resource: resource, Token: token, Source: source})
			},
			TTL:  6 * time.Second,
			Move: 50 * time.Millisecond,
		}
	})
}

// frozen is a driver whose member sees no changes for a while.
type frozen struct {
	*memory.Driver
	thaw chan struct{} // nil until it is frozen, closed when that ends
}

func (f *frozen) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	if f.thaw != nil {
		<-f.thaw
	}
	return f.Driver.Locks(ctx, prefix, limit)
}

// TestALaggardOwnsNothingByAnOldLayout: a member that has not seen a change queues for a
// partition of the old layout, and is granted it during the change.
func TestALaggardOwnsNothingByAnOldLayout(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		space, old := memory.NewSpace(), partition.Layout{Partitions: 4}
		join := func(d driver.Fenced, name string) *partition.Group {
			g, err := partition.Join(t.Context(), d, space.Values(), "g", old, &partition.Options{Identity: name})
			testbed.OK(t, err)
			synctest.Wait()
			return g
		}
		d, slow := space.Open(nil), &frozen{Driver: space.Open(nil)}
		defer d.Close(context.Background())
		defer slow.Close(context.Background())
		a := join(d, "a")
		defer a.Leave(context.Background())
		time.Sleep(time.Second) // it may see its partitions only in its second read
		if n := len(a.Owned()); n != 4 {
			t.Fatalf("it owns %d partitions", n)
		}
		goOn := make(chan struct{})
		for _, k := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
			go a.Do(t.Context(), k, func(context.Context, interlock.Claim) error { <-goOn; return nil })
		}
		synctest.Wait()
		b := join(slow, "b") // it waits for its half
		defer b.Leave(context.Background())
		slow.thaw = make(chan struct{})
		defer close(slow.thaw)
		resized := make(chan error, 1)
		go func() { resized <- a.Resize(t.Context(), partition.Layout{Partitions: 2}) }()
		synctest.Wait()
		close(goOn)
		synctest.Wait()
		if owned := b.Owned(); len(owned) > 0 {
			t.Errorf("it owns %v by the old layout", owned)
		}
		testbed.OK(t, testbed.Receive(t, resized, "the change, beside a member that sees nothing"))
	})
}

// TestALongMemberIsRefused, by the length of its names in the service, before it stores the layout.
func TestALongMemberIsRefused(t *testing.T) {
	d, values := memory.NewSpace().Open(nil), memory.NewSpace().Values()
	defer d.Close(t.Context())
	for _, o := range []partition.Options{{Identity: strings.Repeat("é", 100)}, {Address: strings.Repeat("[", 200)}} {
		_, err := partition.Join(t.Context(), d, values, "g", partition.Layout{Partitions: 1}, &o)
		testbed.WantKind(t, err, interlock.Bug, nil)
		if v, err := values.Get(t.Context(), "{g}/layout"); err != nil || v.Token != 0 {
			t.Errorf("it stored %s, %v", v.Data, err)
		}
	}
	o := partition.Options{Identity: strings.Repeat("x", 200), Address: strings.Repeat("x", 200)}
	g, err := partition.Join(t.Context(), d, values, strings.Repeat("g", 100), partition.Layout{Partitions: 1}, &o)
	testbed.OK(t, err)
	testbed.OK(t, g.Leave(t.Context()))
}

// blind is a driver that can only lock.
type blind struct{ driver.Fenced }

func TestADriverThatShowsNothingIsRefused(t *testing.T) {
	d := memory.NewSpace().Open(nil)
	defer d.Close(t.Context())
	_, err := partition.Join(t.Context(), blind{d}, memory.NewSpace().Values(), "g", partition.Layout{Partitions: 1}, nil)
	if unmet, ok := err.(*interlock.UnmetError); !ok || len(unmet.Unmet) != 2 {
		t.Errorf("got %v", err)
	}
}

// single is a connection to memory that can be closed once. singles are those to single://.
type single struct {
	space  *memory.Space
	closed bool
}

var singles []*single

func init() {
	space := memory.NewSpace()
	backend.Register(backend.Scheme{Kind: "single", Form: "single://name", Abilities: backend.Values,
		Connect: func(context.Context, *backend.URL) (backend.Connection, error) {
			singles = append(singles, &single{space: space})
			return singles[len(singles)-1], nil
		}})
}

func (s *single) Fenced(context.Context, backend.LockOptions) (backend.Locks, error) {
	return s.space.Open(nil), nil
}

func (s *single) Values(context.Context, string) (driver.Values, error) { return s.space.Values(), nil }

func (s *single) Close() error {
	if s.closed {
		return errors.New("it was closed before")
	}
	s.closed = true
	return nil
}

// TestOpenDisconnectsOnce: the error of Open is the reason why it cannot join, and no other.
func TestOpenDisconnectsOnce(t *testing.T) {
	open := func(partitions int, identity string) (*partition.Group, error) {
		return partition.Open(t.Context(), "single://x", "g", partition.Layout{Partitions: partitions}, &partition.Options{Identity: identity})
	}
	g, err := open(4, "a")
	testbed.OK(t, err)
	_, another := open(5, "b")
	_, invalid := open(4, strings.Repeat("c", 300))
	if _, ok := another.(*partition.LayoutError); !ok {
		t.Errorf("another layout: %v", another)
	}
	if interlock.Kind(invalid) != interlock.Bug {
		t.Errorf("an invalid identity: %v", invalid)
	}
	testbed.OK(t, g.Leave(t.Context()))
	for i, s := range singles {
		if !s.closed {
			t.Errorf("connection %d is open", i)
		}
	}
}

// yielder has the additional methods of a partition's claim.
type yielder interface {
	Contended() bool
	Yield(ctx context.Context) error
}

// TestYield: a partition that its owner yields moves to the other members in turn, and no
// other partition moves.
func TestYield(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		space := memory.NewSpace()
		owners, yields := make(chan string, 10), map[string]chan struct{}{}
		var groups []*partition.Group
		for _, name := range []string{"a", "b", "c"} {
			d := space.Open(nil)
			defer d.Close(context.Background())
			asked := make(chan struct{})
			yields[name] = asked
			g, err := partition.Join(t.Context(), d, space.Values(), "g", partition.Layout{Partitions: 7}, &partition.Options{Identity: name,
				Work: func(ctx context.Context, p partition.Partition) error {
					if p.Index != 3 {
						<-ctx.Done()
						return nil
					}
					owners <- name
					select {
					case <-asked:
						c := p.Claim.(yielder)
						if !c.Contended() {
							t.Error("no other member is seen")
						}
						if err := c.Yield(ctx); err != nil {
							t.Error(err)
						}
					case <-ctx.Done():
					}
					<-ctx.Done()
					return nil
				}})
			testbed.OK(t, err)
			defer g.Leave(context.Background())
			groups = append(groups, g)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		var at string
		for len(owners) > 0 {
			at = <-owners
		}
		var had []string
		for range 6 {
			others := func() (all []int) {
				for _, g := range groups {
					all = append(all, slices.DeleteFunc(g.Owned(), func(i int) bool { return i == 3 })...)
					all = append(all, -1)
				}
				return all
			}
			before := others()
			had = append(had, at)
			yields[at] <- struct{}{}
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(owners) != 1 {
				t.Fatalf("%d members took it", len(owners))
			}
			if at = <-owners; !slices.Equal(before, others()) {
				t.Errorf("%v was %v before", others(), before)
			}
		}
		if !slices.Equal(had[:3], had[3:]) || had[0] == had[1] || had[1] == had[2] || had[0] == had[2] {
			t.Errorf("it went to %v", had)
		}
	})
}
