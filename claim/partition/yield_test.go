package partition_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/claim/partition"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

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
