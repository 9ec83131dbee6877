package coordinator

import (
	"errors"
	"time"

	"github.com/interlock-dev/interlock/observe"
)

// Transactions of types that this process does not know: they are left, unread and
// unchanged but for their due time, to an owner of the shard that does.

// ErrForeign is what a [Protocol] returns for a transaction of a type that it does not
// know. That is no failure.
var ErrForeign = errors.New("this process does not know transactions of this type")

// Selective is a [Protocol] that knows some types only. Transactions of others are not
// read, take no room, and are reported by the hook Foreign.
type Selective interface {
	Protocol
	// Drives reports whether it knows a type, of the form protocol:name. It does not
	// change.
	Drives(kind string) bool
}

// foreigner is a transaction that this process cannot drive.
type foreigner struct {
	kind string
	seen time.Time
}

// mostForeigners bounds how many are counted.
const mostForeigners = 10_000

// knows reports whether a type is driven here.
func (c *Coordinator) knows(kind string) bool {
	p, err := c.protocol(kind)
	if err != nil {
		return false
	}
	s, selects := p.(Selective)
	return !selects || s.Drives(kind)
}

// leave counts a transaction that cannot be driven here, and reports it.
func (s *server) leave(id, kind string) {
	c := s.coordinator
	c.mu.Lock()
	if _, known := c.foreigners[id]; known || len(c.foreigners) < mostForeigners {
		c.foreigners[id] = foreigner{kind, c.options.Now()}
	}
	c.mu.Unlock()
	if f := c.options.Hooks.Foreign; f != nil {
		f(observe.CoordinatorForeign{Transaction: id, Type: kind, Shard: s.shard.Number()})
	}
}

// Foreign is how many unfinished transactions of each type were found lately, in the shards
// that are served here, that this process does not know the type of: a gauge. Anything in
// it for longer than a deployment takes needs a process that knows the type. It counts
// 10,000 at most.
func (c *Coordinator) Foreign() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	counts, before := map[string]int{}, c.options.Now().Add(-3*c.options.Recheck)
	for id, f := range c.foreigners {
		if f.seen.Before(before) {
			delete(c.foreigners, id)
			continue
		}
		counts[f.kind]++
	}
	return counts
}
