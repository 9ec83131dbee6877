package redis

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// reserved begins every key that is not a lock.
const reserved = "interlock:{"

// layout maps names to keys. See docs/adr/003-redis-layout.md.
type layout struct {
	prefix  string
	cluster bool // one request cannot have keys of several slots
}

func layoutOn(client rueidis.Client, prefix string) layout {
	return layout{prefix: prefix, cluster: client.Mode() == rueidis.ClientModeCluster}
}

// keys are those of one name, in the order of the scripts. The last two are shared by all
// names of the database, or of a slot of a cluster.
type keys struct{ lock, hold, queue, wait, counter, names string }

// ownKeys is how many keys belong to one name only.
const ownKeys = 4

func (l layout) keys(name, owner string) (keys, error) {
	lock := l.prefix + name
	if err := checkName(name, lock); err != nil {
		return keys{}, err
	}
	if owner == "" || len(owner) > driver.MaxName {
		return keys{}, &interlock.Error{Op: "name owner", Driver: "redis", Name: name, Kind: interlock.Bug,
			Err: fmt.Errorf("an owner has 1 to %d bytes, this one has %d", driver.MaxName, len(owner))}
	}
	return l.keysOf(lock), nil
}

func (l layout) keysOf(lock string) keys {
	tag := tags.of(slotOf(lock))
	// All keys of the name are parts of one text, which is one allocation.
	const hold, queue, wait = "}:hold:", "}:waiting:", "}:heard:"
	text := reserved + tag + hold + lock + reserved + tag + queue + lock + reserved + tag + wait + lock
	cut := func(kind string) (key string) {
		n := len(reserved) + len(tag) + len(kind) + len(lock)
		key, text = text[:n], text[n:]
		return key
	}
	k := keys{lock: lock, hold: cut(hold), queue: cut(queue), wait: cut(wait), counter: wholeCounter, names: wholeNames}
	if l.cluster {
		k.counter, k.names = counterKey(tag), namesKey(tag)
	}
	return k
}

// chunks divides items into requests: of up to a hundred, and in a cluster of one
// slot.
func chunks[T any](l layout, items []T, lock func(T) string) (all [][]T) {
	if !l.cluster {
		return slices.Collect(slices.Chunk(items, batchSize))
	}
	of := map[int][]T{}
	for _, item := range items {
		slot := slotOf(lock(item))
		of[slot] = append(of[slot], item)
	}
	for _, slot := range slices.Sorted(maps.Keys(of)) {
		all = slices.AppendSeq(all, slices.Chunk(of[slot], batchSize))
	}
	return all
}

// wholeTag is the tag of the keys that serve a whole database.
const wholeTag = "0"

// namesKey returns the index of held and awaited locks, of one slot in a cluster.
func namesKey(tag string) string { return reserved + tag + "}:names" }

// counterKey returns the counter of all tokens, of one slot in a cluster.
func counterKey(tag string) string { return reserved + tag + "}:counter" }

var wholeNames, wholeCounter = namesKey(wholeTag), counterKey(wholeTag)

// list returns the keys in the order of the scripts. The first two live as long as the
// lease.
func (k keys) list() [6]string {
	return [6]string{k.lock, k.hold, k.queue, k.wait, k.counter, k.names}
}

func (k keys) all() []string {
	list := k.list()
	return list[:]
}

func checkName(name, key string) error {
	why := ""
	switch {
	case name == "":
		why = "it is empty"
	case len(name) > driver.MaxName:
		why = fmt.Sprintf("it has %d bytes, at most %d are allowed", len(name), driver.MaxName)
	case strings.HasPrefix(key, reserved):
		why = "keys that start with " + reserved + " are our own"
	default:
		return nil
	}
	return &interlock.Error{Op: "use name", Driver: "redis", Name: name, Kind: interlock.Bug,
		Err: fmt.Errorf("%w: %s", interlock.ErrName, why)}
}
