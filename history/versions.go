package history

import (
	"iter"
	"maps"
)

// The rules of [CheckVersions], beside [RuleOrigin].
const (
	// RuleVersion: no state is applied or read after one of a higher version.
	RuleVersion Rule = "version"
	// RuleRefusal: a state is rejected only if another of the same or a higher
	// version may have been applied.
	RuleRefusal Rule = "refusal"
)

// CheckVersions judges that the newest state of each key wins: it is never overwritten
// by an older one, nor lost. It takes one pass, and memory for each version of each key.
//
// Record a write of the state of version Stamp as an [OpApply]: OK if it was written,
// Reject if the store skipped it as old or as a duplicate. Record a read as an [OpRead]
// that ends with the Stamp of the read state; 0 means that there was none. A State with
// [OpVersion] before the first call and State of its key is the version before the run; a
// later one is a read at that instant.
//
// One call comes before another only if it had returned before the other was invoked.
// Equal versions count as the same state; the content is not checked. There are no
// terminal states: if a state may replace newer ones, give it a Stamp above theirs.
func CheckVersions(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	return walk(events, &v, &versions{found: &v.Findings, keys: map[string]*state{}}, OpApply, OpRead)
}

type versions struct {
	found *Findings
	keys  map[string]*state
}

// A state is the known state of one key.
type state struct {
	known    bool           // there was a call or a State
	top      version        // the highest that was definitely there
	possible map[int64]int  // how many calls may have applied a version, or read it
	above    map[int64]bool // those versions of possible that are above top
}

// A version is a version with the event that shows it.
type version struct {
	stamp int64
	at    Ref
}

func (c *versions) state(key string) *state {
	s := entry(c.keys, key)
	if s.possible == nil {
		s.possible, s.above = map[int64]int{}, map[int64]bool{}
	}
	return s
}

// began returns the highest version that was there by then.
func (c *versions) began(call Event) version {
	s := c.state(call.Key)
	s.known = true
	if call.Op == OpApply {
		s.possible[call.Stamp]++
		if call.Stamp > s.top.stamp {
			s.above[call.Stamp] = true
		}
	}
	return s.top
}

func (c *versions) ended(call, end Event, floor version) {
	s := c.state(call.Key)
	stamp, at := call.Stamp, refOf(end)
	switch {
	case end.Kind == Info:
	case call.Op == OpRead:
		if end.Kind == OK {
			c.read(s, call.Key, version{end.Stamp, at}, floor)
		}
	case end.Kind == OK:
		c.existed(s, call.Key, version{stamp, at}, floor)
	default:
		s.notApplied(stamp)
		if end.Kind == Reject && !s.excuses(stamp) {
			c.found.add(RuleRefusal, call.Key, refOf(call), at,
				"version %d of %q (%v) was refused (%v), though nothing as new can have been there", stamp, call.Key, refOf(call), at)
		}
	}
}

func (s *state) notApplied(stamp int64) {
	if s.possible[stamp]--; s.possible[stamp] == 0 {
		delete(s.above, stamp)
	}
}

// excuses reports whether a state of that version, or of a higher one, may have
// been there.
func (s *state) excuses(stamp int64) bool {
	if s.top.at != (Ref{}) && s.top.stamp >= stamp {
		return true
	}
	for maybe := range s.above {
		if maybe >= stamp {
			return true
		}
	}
	return false
}

func (c *versions) stated(e Event) {
	if e.Op != OpVersion {
		return
	}
	s := c.state(e.Key)
	if s.known {
		c.read(s, e.Key, version{e.Stamp, refOf(e)}, s.top)
		return
	}
	s.known = true
	s.possible[e.Stamp]++
	s.raise(version{e.Stamp, refOf(e)})
}

func (c *versions) read(s *state, key string, v, floor version) {
	if v.stamp != 0 && s.possible[v.stamp] == 0 {
		c.found.add(RuleOrigin, key, s.top.at, v.at, "version %d of %q was read (%v), which nobody can have applied", v.stamp, key, v.at)
	}
	s.possible[v.stamp]++ // it was there
	c.existed(s, key, v, floor)
}

// existed records that v existed at some time after floor.
func (c *versions) existed(s *state, key string, v, floor version) {
	if v.stamp < floor.stamp {
		c.found.add(RuleVersion, key, floor.at, v.at, "%q had version %d (%v), after version %d had been there (%v)",
			key, v.stamp, v.at, floor.stamp, floor.at)
	}
	s.raise(v)
}

func (s *state) raise(v version) {
	if v.stamp <= s.top.stamp {
		return
	}
	s.top = v
	maps.DeleteFunc(s.above, func(stamp int64, _ bool) bool { return stamp <= v.stamp })
}

func (c *versions) finished() {}
