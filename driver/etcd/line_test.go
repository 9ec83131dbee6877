package etcd

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

func at(key string, created int64) place { return place{key: key, created: created, owner: "o-" + key} }

func put(key string, rev int64) change { return change{rev: rev, place: at(key, rev)} }

func del(key string, rev int64) change {
	return change{rev: rev, deleted: true, place: place{key: key}}
}

// told formats effects for comparison.
func told(effects []effect) string {
	var all []string
	for _, e := range effects {
		switch e.kind {
		case granted:
			all = append(all, fmt.Sprintf("%s granted@%d", e.key, e.created))
		case placed:
			all = append(all, fmt.Sprintf("%s behind %d, %s holds", e.key, e.ahead, e.holder))
		case vanished:
			all = append(all, e.key+" vanished")
		}
	}
	return fmt.Sprint(all)
}

func TestLine(t *testing.T) {
	t.Parallel()
	type step struct {
		do   func(*line) []effect
		want string
	}
	list := func(rev int64, places ...place) func(*line) []effect {
		return func(l *line) []effect { return l.list(rev, places) }
	}
	event := func(c change) func(*line) []effect {
		return func(l *line) []effect { return l.apply(c) }
	}
	for name, steps := range map[string][]step{
		"alone": {
			{list(5, at("me", 5)), "[me granted@5]"},
			{event(put("me", 5)), "[]"},
			{event(put("x", 6)), "[]"},
			{event(del("x", 7)), "[]"},
			{event(del("me", 8)), "[me vanished]"},
			{event(del("me", 9)), "[]"},
		},
		"behind two": {
			{list(9, at("b", 4), at("a", 3), at("me", 9)), "[me behind 1, o-a holds]"},
			{event(del("a", 10)), "[me behind 0, o-b holds]"},
			{event(del("b", 11)), "[me granted@9]"},
		},
		"an event older than the snapshot": {
			{list(9, at("a", 3), at("me", 9)), "[me behind 0, o-a holds]"},
			{event(del("a", 2)), "[]"},
			{event(del("me", 8)), "[]"},
			{event(del("a", 10)), "[me granted@9]"},
		},
		"events before the first snapshot": {
			{event(del("a", 10)), "[]"},
			{event(put("x", 11)), "[]"},
			{list(9, at("a", 3), at("me", 9)), "[me granted@9]"},
		},
		"a snapshot that comes late": {
			{list(9, at("a", 3), at("me", 9)), "[me behind 0, o-a holds]"},
			{event(del("a", 12)), "[me granted@9]"},
			{list(10, at("a", 3), at("me", 9)), "[]"},
			{list(13, at("me", 9)), "[]"},
		},
		"a snapshot that is ahead": {
			{list(9, at("a", 3), at("me", 9)), "[me behind 0, o-a holds]"},
			{list(20, at("me", 9)), "[me granted@9]"},
			{event(del("a", 15)), "[]"},
			{event(del("me", 21)), "[me vanished]"},
		},
		"deleted and written again": {
			{list(9, at("me", 9)), "[me granted@9]"},
			{list(20, at("me", 15)), "[me vanished me granted@15]"},
		},
		"deleted and written again behind another": {
			{list(9, at("me", 9)), "[me granted@9]"},
			{list(20, at("a", 12), at("me", 15)), "[me vanished me behind 0, o-a holds]"},
		},
		"a lease that takes the whole line": {
			{list(9, at("a", 3), at("me", 9)), "[me behind 0, o-a holds]"},
			{event(del("a", 12)), "[me granted@9]"},
			{event(del("me", 12)), "[me vanished]"},
		},
		"rewritten in place": {
			{list(9, at("a", 3), at("me", 9)), "[me behind 0, o-a holds]"},
			{event(change{rev: 10, place: place{key: "a", created: 3, owner: "else"}}), "[]"},
			{event(del("a", 11)), "[me granted@9]"},
		},
		"not ours": {
			{list(9, at("a", 3)), "[]"},
			{event(del("a", 11)), "[]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := &line{}
			l.join("me", 0)
			for i, s := range steps {
				if got := told(s.do(l)); got != s.want {
					t.Fatalf("step %d: %s, want %s", i, got, s.want)
				}
			}
		})
	}
}

func TestLineWithTwoOfOurs(t *testing.T) {
	t.Parallel()
	l := &line{}
	l.join("me", 0)
	l.join("too", 0)
	if got, want := told(l.list(9, []place{at("me", 3), at("too", 5)})), "[me granted@3 too behind 0, o-me holds]"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	if empty := l.leave("me"); empty {
		t.Fatal("empty with one of ours left")
	}
	if got, want := told(l.apply(del("me", 10))), "[too granted@5]"; got != want {
		t.Fatalf("%s, want %s", got, want)
	}
	if empty := l.leave("too"); !empty {
		t.Fatal("not empty without one of ours")
	}
}

// history is all that happened in a store, revision by revision.
type history struct {
	random    *rand.Rand
	ours      []string
	events    []change
	snapshots [][]place // after each revision
}

func newHistory(random *rand.Rand) *history {
	h := &history{random: random, ours: []string{"m1", "m2"}, snapshots: [][]place{nil}}
	keys := []string{"m1", "m2", "x", "y", "z"}
	var now []place
	for rev := int64(1); rev <= 30; rev++ {
		key := keys[random.IntN(len(keys))]
		c := put(key, rev)
		if i := slices.IndexFunc(now, func(p place) bool { return p.key == key }); i >= 0 {
			c = del(key, rev)
			now = slices.Delete(slices.Clone(now), i, i+1)
		} else {
			now = append(slices.Clone(now), c.place)
		}
		slices.SortFunc(now, func(a, b place) int { return cmp.Compare(a.created, b.created) })
		h.events = append(h.events, c)
		h.snapshots = append(h.snapshots, now)
	}
	return h
}

func (h *history) wasFirst(key string, created int64) bool {
	return slices.ContainsFunc(h.snapshots, func(s []place) bool {
		return len(s) > 0 && s[0].key == key && s[0].created == created
	})
}
