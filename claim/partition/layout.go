package partition

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"sort"
	"unicode/utf8"

	"github.com/interlock-dev/interlock/internal/failure"
)

// MaxPartitions is the maximum number of partitions of a layout.
const MaxPartitions = 4096

// A Layout maps keys to partitions: by rendezvous hashing over a number of partitions, or by
// ranges. Exactly one of its fields is set.
type Layout struct {
	// Partitions is the number of partitions, 1 to [MaxPartitions]. A key belongs to the
	// partition with its highest score (Thaler and Ravishankar, "A Name-Based Mapping Scheme
	// for Rendezvous", 1996). So growing from n to m partitions moves exactly the share (m-n)/m
	// of the keys.
	Partitions int `json:"partitions,omitempty"`
	// Splits divide the keys, in byte order, into len(Splits)+1 ranges: partition i has the
	// keys from Splits[i-1] inclusive to Splits[i] exclusive. They must be strictly increasing,
	// and UTF-8; keys can have any bytes.
	Splits []string `json:"splits,omitempty"`
}

// Validate returns an error of kind Bug if the layout is invalid.
func (l Layout) Validate() error {
	switch {
	case l.Partitions != 0 && len(l.Splits) > 0:
		return failure.Bug("use layout", "", "a layout has Partitions or Splits, not both")
	case l.Count() < 1 || l.Count() > MaxPartitions:
		return failure.Bug("use layout", "", "a layout has 1 to %d partitions, not %d", MaxPartitions, l.Count())
	}
	for i, split := range l.Splits {
		switch {
		case !utf8.ValidString(split): // JSON would change it
			return failure.Bug("use layout", "", "Splits must be UTF-8, and %q is not", split)
		case i > 0 && l.Splits[i-1] >= split:
			return failure.Bug("use layout", "", "Splits must rise, and %q is followed by %q", l.Splits[i-1], split)
		}
	}
	return nil
}

// Count returns the number of partitions.
func (l Layout) Count() int {
	if len(l.Splits) > 0 {
		return len(l.Splits) + 1
	}
	return l.Partitions
}

// Of returns the partition of a key, from 0.
func (l Layout) Of(key string) int {
	if len(l.Splits) > 0 {
		return sort.Search(len(l.Splits), func(i int) bool { return key < l.Splits[i] })
	}
	best, h := 0, hash(key)
	for i := 1; i < l.Partitions; i++ {
		if score(h, uint64(i)) > score(h, uint64(best)) {
			best = i
		}
	}
	return best
}

// Equal reports whether both layouts map every key to the same partition.
func (l Layout) Equal(other Layout) bool {
	return l.Partitions == other.Partitions && slices.Equal(l.Splits, other.Splits)
}

// String describes the layout for people.
func (l Layout) String() string {
	if len(l.Splits) > 0 {
		return fmt.Sprintf("%d ranges split at %q", l.Count(), l.Splits)
	}
	return fmt.Sprintf("%d hashed partitions", l.Partitions)
}

// hash returns the FNV-1a hash. It is part of the layout: a change of it moves keys.
func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// score mixes two hashes: the finalizer of SplitMix64 (Steele, Lea and Flood,
// "Fast Splittable Pseudorandom Number Generators", 2014). It is part of the
// layout.
func score(a, b uint64) uint64 {
	z := a + (b+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// record is the stored record of a group: its layout, and the next one during a change.
type record struct {
	Generation int64   `json:"generation"` // counts the layouts; 0 before the first one
	Layout     Layout  `json:"layout"`
	Next       *Layout `json:"next,omitempty"`
}

func (r record) encode() []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // numbers and strings
	}
	return data
}

func decode(data []byte) (r record, err error) {
	if err = json.Unmarshal(data, &r); err == nil && r.Generation > 0 {
		err = r.Layout.Validate()
	}
	if err == nil && r.Next != nil {
		err = r.Next.Validate()
	}
	if err == nil && (r.Generation < 0 || r.Generation == 0 && r.Next == nil) {
		err = failure.Bug("use layout", "", "generation %d has no layout", r.Generation)
	}
	return r, err
}
