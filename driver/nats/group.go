package nats

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// view is what a member knows of its group from the bucket. It is pure: it receives the time.
//
// A member renews its record. If the record stays at one revision for a lease, by the clock of who
// looks, its member is expelled: the record is deleted at that revision, so a member that has
// renewed it meanwhile stays. What belongs to no member is free.
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

// expired are the members whose leases have expired, and how long it is until the next one may.
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

// plan says which of n partitions a member is to claim, and which it is to give up. Every member
// computes the same for all of them from the same view. While their views differ two may want one
// partition, or none; the owner's record decides.
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
