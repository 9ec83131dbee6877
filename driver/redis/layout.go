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

// key returns the lock of a name, which must be valid as the owner must.
func (l layout) key(name, owner string) (lock string, err error) {
	lock = l.prefix + name
	if err := checkName(name, lock); err != nil {
		return "", err
	}
	if owner == "" || len(owner) > driver.MaxName {
		return "", &interlock.Error{Op: "name owner", Driver: "redis", Name: name, Kind: interlock.Bug,
			Err: fmt.Errorf("an owner has 1 to %d bytes, this one has %d", driver.MaxName, len(owner))}
	}
	return lock, nil
}

// keys are those that the scripts use for one lock. The last two are shared by all names of
// the database, or of a slot of a cluster.
type keys struct{ lock, queue, wait, counter, names string }

func (l layout) keysOf(lock string) keys {
	tag := wholeTag
	if l.cluster {
		tag = tags.of(slotOf(lock))
	}
	key := reserved + tag + "}:"
	return keys{lock, key + "waiting:" + lock, key + "heard:" + lock, key + "counter", key + "names"}
}

// batchSize is how many names one request covers. Larger ones delay other clients of
// the server for longer than they save.
const batchSize = 100

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

// ownKeys begins our keys in the hash slot of a name.
func ownKeys(name string) string { return reserved + tags.of(slotOf(name)) + "}:" }

// wholeTag is the tag of the keys that serve a whole database.
const wholeTag = "0"

// namesKey returns the index of held and awaited locks, of one slot in a cluster.
func namesKey(tag string) string { return reserved + tag + "}:names" }

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
