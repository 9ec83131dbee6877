package history

import (
	"iter"
	"maps"
)

// The rules of [CheckVersions], beside [RuleOrigin].
const (
	// RuleVersion: no state is applied, or read, once one of a higher version
	// had been.
	RuleVersion Rule = "version"
	// RuleRefusal: a state is refused only if another of its version, or of a
	// higher one, may have been applied.
	RuleRefusal Rule = "refusal"
)

// CheckVersions judges that the newest state of each key wins: it is never
// overwritten by an older one, nor lost. It takes one pass, and memory for each
// key, each call under way and each one whose outcome is not known.
//
// Who brings the state of version Stamp records an [OpApply]: OK where it was
// written, Reject where the store skipped it as old or as a duplicate. Who reads
// records an [OpRead] that ends with the Stamp of what it read. A State with
// [OpVersion] is what was there before the run if it is the first of its key,
// and later a read at that instant.
//
// One call comes before another only if it had returned before the other was
// invoked. Equal versions are taken for the same state, whose content is not
// looked at. It knows no terminal states: if one may replace newer ones, give it
// a Stamp above theirs.
func CheckVersions(events iter.Seq2[Event, error]) (Verdict, error) {
	var v Verdict
	return walk(events, &v, &versions{found: &v.Findings, keys: map[string]*state{}}, OpApply, OpRead)
}

type versions struct {
	found *Findings
	keys  map[string]*state
}

// A state is what is known of one key.
type state struct {
	stated bool
	top    version       // the highest that certainly was there
	maybe  map[int64]int // how many calls may have applied a version above top
}

// A version and where it was seen.
type version struct {
	stamp int64
	at    Ref
}

func (c *versions) state(key string) *state {
	s := c.keys[key]
	if s == nil {
		s = &state{maybe: map[int64]int{}}
		c.keys[key] = s
	}
	return s
}

// began returns the highest version that was there by then.
func (c *versions) began(call Event) version {
	s := c.state(call.Key)
	if call.Op == OpApply && call.Stamp > s.top.stamp {
		s.maybe[call.Stamp]++
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
		c.there(s, call.Key, version{stamp, at}, floor)
	default:
		s.notApplied(stamp)
		if end.Kind == Reject && !s.excuses(stamp) {
			c.found.add(RuleRefusal, call.Key, refOf(call), at,
				"version %d of %q (%v) was refused (%v), though nothing as new can have been there", stamp, call.Key, refOf(call), at)
		}
	}
}

func (s *state) notApplied(stamp int64) {
	if s.maybe[stamp]--; s.maybe[stamp] <= 0 {
		delete(s.maybe, stamp)
	}
}

// excuses reports whether something of that version, or of a higher one, may
// have been there.
func (s *state) excuses(stamp int64) bool {
	if s.top.at != (Ref{}) && s.top.stamp >= stamp {
		return true
	}
	for maybe := range s.maybe {
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
	if s.stated {
		c.read(s, e.Key, version{e.Stamp, refOf(e)}, s.top)
		return
	}
	s.stated = true
	s.raise(version{e.Stamp, refOf(e)})
}

func (c *versions) read(s *state, key string, v, floor version) {
	if v.stamp > s.top.stamp && s.maybe[v.stamp] == 0 {
		c.found.add(RuleOrigin, key, s.top.at, v.at, "version %d of %q was read (%v), which nobody can have applied", v.stamp, key, v.at)
	}
	c.there(s, key, v, floor)
}

// there notes that v was there at some time since floor was.
func (c *versions) there(s *state, key string, v, floor version) {
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
	maps.DeleteFunc(s.maybe, func(stamp int64, _ int) bool { return stamp <= v.stamp })
}

func (c *versions) finished() {}
