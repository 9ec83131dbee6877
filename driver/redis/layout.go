package redis

import (
	"fmt"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// reserved starts every key of ours but the locks themselves.
const reserved = "interlock:{"

// layout maps names to keys. See docs/adr/003-redis-layout.md.
type layout struct{ prefix string }

// keys of one name, in the order in which the scripts take them.
type keys struct{ lock, hold, queue, wait, counter string }

func (l layout) keys(name, owner string) (keys, error) {
	lock := l.prefix + name
	if err := checkName(name, lock); err != nil {
		return keys{}, err
	}
	if owner == "" || len(owner) > driver.MaxName {
		return keys{}, &interlock.Error{Op: "name owner", Driver: "redis", Name: name, Kind: interlock.Bug,
			Err: fmt.Errorf("an owner has 1 to %d bytes, this one has %d", driver.MaxName, len(owner))}
	}
	return keysOf(lock), nil
}

func keysOf(lock string) keys {
	own := reserved + tags.of(slotOf(lock)) + "}:"
	return keys{lock: lock, hold: own + "hold:" + lock, queue: own + "queue:" + lock, wait: own + "wait:" + lock,
		counter: own + "counter"}
}

func (k keys) all() []string { return []string{k.lock, k.hold, k.queue, k.wait, k.counter} }

// timed are the keys that live as long as the lease.
func (k keys) timed() []string { return []string{k.lock, k.hold} }

func checkName(name, key string) error {
	why := ""
	switch {
	case name == "":
		why = "it is empty"
	case len(name) > driver.MaxName:
		why = fmt.Sprintf("it has %d bytes, %d are the most", len(name), driver.MaxName)
	case strings.HasPrefix(key, reserved):
		why = "keys that start with " + reserved + " are our own"
	default:
		return nil
	}
	return &interlock.Error{Op: "use name", Driver: "redis", Name: name, Kind: interlock.Bug,
		Err: fmt.Errorf("%w: %s", interlock.ErrName, why)}
}

// lockOf is the lock to which a hold or queue key belongs.
func lockOf(key string) (lock string, ok bool) {
	_, rest, ok := strings.Cut(strings.TrimPrefix(key, reserved), "}:")
	if !ok {
		return "", false
	}
	kind, lock, ok := strings.Cut(rest, ":")
	return lock, ok && (kind == "hold" || kind == "queue")
}
