package nats

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestPlan changes random groups. No two members of one view claim the same partition. Members that
// follow their plans one at a time get shares that differ by at most one. No partition moves without
// need.
func TestPlan(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		n := 1 + random.IntN(12)
		v := newView()
		for id := range 1 + random.IntN(6) {
			v.members[fmt.Sprint(id)] = member{}
		}
		for p := range n {
			v.owners[p] = owner{id: fmt.Sprint(random.IntN(8))} // some are dead
		}
		claimed := map[int]bool{}
		for id := range v.members {
			claim, _ := v.plan(id, n)
			for _, p := range claim {
				if _, owned := v.members[v.owners[p].id]; claimed[p] || owned {
					t.Fatalf("seed %d: %s claims partition %d of %+v", seed, id, p, v)
				}
				claimed[p] = true
			}
		}
		share := n / len(v.members)
		had := map[string]int{}
		for _, o := range v.owners {
			had[o.id]++
		}
		moves := follow(v, n)
		has := map[string]int{}
		for _, o := range v.owners {
			has[o.id]++
		}
		surplus := 0
		for id := range v.members {
			if has[id] < share || has[id] > share+1 {
				t.Fatalf("seed %d: %s has %d of %d partitions, %d members", seed, id, has[id], n, len(v.members))
			}
			surplus += max(0, had[id]-has[id])
		}
		free := 0
		for id, k := range had {
			if _, lives := v.members[id]; !lives {
				free += k
			}
		}
		if moves != surplus+free {
			t.Errorf("seed %d: %d moves, want %d", seed, moves, surplus+free)
		}
	}
}

// follow lets members follow their plans until the plans are empty, and counts claims.
func follow(v *view, n int) (claims int) {
	for changed := true; changed && claims < 1000; { // a plan that does not converge is wrong
		changed = false
		for id := range v.members {
			claim, yield := v.plan(id, n)
			for _, p := range claim {
				v.owners[p] = owner{id: id}
				claims++
			}
			for _, p := range yield {
				v.owners[p] = owner{}
			}
			changed = changed || len(claim)+len(yield) > 0
		}
	}
	return claims
}

// TestExpired: a record at one revision for a lease is expired, by the observer's clock.
func TestExpired(t *testing.T) {
	v := newView()
	v.members["a"] = member{1, time.Second, 100}
	v.members["b"] = member{2, 3 * time.Second, 100}
	if ids, wait := v.expired(100); len(ids) > 0 || wait != time.Second {
		t.Errorf("%v, %v", ids, wait)
	}
	if ids, wait := v.expired(100 + 1e9); !slices.Equal(ids, []string{"a"}) || wait != 2*time.Second {
		t.Errorf("%v, %v", ids, wait)
	}
}
