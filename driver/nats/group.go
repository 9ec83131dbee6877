package nats

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// view is a member's state of its group, read from the bucket. It does no I/O: callers pass the
// time.
//
// A member renews its record. If the record stays at one revision for a lease, by the observer's
// clock, the observer expels the member. It deletes the record at that revision, so a member that
// has renewed it meanwhile stays. A partition whose owner is not a member is free.
type view struct {
	members map[string]member
	owners  map[int]owner
}

// member is one revision of a member's record.
type member struct {
	revision uint64
	lease    time.Duration
	since    boottime.Instant // when it was first seen
}

// owner is the record of a partition's owner. An empty id means that there is none.
type owner struct {
	id       string
	revision uint64
}

func newView() *view { return &view{map[string]member{}, map[int]owner{}} }

// expired returns the members whose leases have expired, and the time until the next one may
// expire.
func (v *view) expired(now boottime.Instant) (ids []string, wait time.Duration) {
	wait = time.Hour
	for id, m := range v.members {
		if left := m.lease - now.Sub(m.since); left <= 0 {
			ids = append(ids, id)
		} else {
			wait = min(wait, left)
		}
	}
	slices.Sort(ids)
	return ids, wait
}

// plan returns which of n partitions a member claims, and which it gives up. From the same view,
// every member computes the same plan for all. If views differ, two members may claim one
// partition, or none does; the owner's record decides.
func (v *view) plan(me string, n int) (claim, yield []int) {
	has := map[string][]int{}
	for id := range v.members {
		has[id] = nil
	}
	var free []int
	for p := range n {
		id := v.owners[p].id
		if _, lives := v.members[id]; lives {
			has[id] = append(has[id], p)
		} else {
			free = append(free, p)
		}
	}
	ids := slices.SortedFunc(maps.Keys(has), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(has[b]), len(has[a])), cmp.Compare(a, b))
	})
	for i, id := range ids {
		quota := n / len(ids)
		if i < n%len(ids) {
			quota++
		}
		keep := min(quota, len(has[id]))
		take := min(quota-keep, len(free))
		if id == me {
			claim, yield = free[:take], has[id][keep:]
		}
		free = free[take:]
	}
	return claim, yield
}
