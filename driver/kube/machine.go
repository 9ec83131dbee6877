package kube

import (
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// record is what a holder changes when it renews. Its times are compared only with
// their former values, with no clock.
type record struct {
	uid               string
	holder            string
	seconds           int32
	transitions       int32
	acquired, renewed int64
}

func recordOf(o object) record {
	if !o.exists() {
		return record{}
	}
	spec := o.lease.Spec
	r := record{uid: string(o.lease.UID), holder: o.holder(),
		seconds: deref(spec.LeaseDurationSeconds, 0), transitions: deref(spec.LeaseTransitions, 0)}
	if spec.AcquireTime != nil {
		r.acquired = spec.AcquireTime.UnixMicro()
	}
	if spec.RenewTime != nil {
		r.renewed = spec.RenewTime.UnixMicro()
	}
	return r
}

// sight is what one observer has seen of one Lease: a pure machine that turns
// objects and times into verdicts. It is the protocol of client-go's
// leaderelection: a holder counts as dead when its record has not changed for the
// record's duration, by the observer's own clock.
//
// A sight may be stale without harm: a contender that acts on it writes with the
// observed revision as the condition.
type sight struct {
	object
	record record
	since  boottime.Instant // when we first saw this record
	heard  boottime.Instant // when we last received a change
	// cleared: no lock of an old kind was found under the name.
	cleared bool
}

// observe takes an object that was read or written at some time before now. Only a
// higher revision is news.
func (s *sight) observe(o object, now boottime.Instant) (news bool) {
	if o.rev <= s.rev {
		return false
	}
	s.replace(o, now)
	return true
}

// replace takes an object of any revision: from a list, which may be another
// store's.
func (s *sight) replace(o object, now boottime.Instant) {
	if r := recordOf(o); r != s.record || s.since == 0 {
		s.record, s.since = r, now
	}
	if o.rev != s.rev || o.exists() != s.exists() {
		s.heard = now
	}
	s.object = o
}

// deleted records that the object was deleted at rev.
func (s *sight) deleted(rev int64, now boottime.Instant) (news bool) {
	return s.observe(object{rev: rev}, now)
}

// absent records an answer that there is no object, to a request sent when rev was
// the highest revision seen.
func (s *sight) absent(rev int64, now boottime.Instant) (news bool) {
	if s.rev != rev || !s.exists() {
		return false
	}
	s.replace(object{rev: rev}, now)
	return true
}

// verdict is the conclusion for an owner.
type verdict struct {
	state  state
	holder string
	until  boottime.Instant // when the holder's lease ends, without changes
}

type state int

const (
	vacant state = iota // it can be taken
	mine                // the owner holds it
	held                // another owner does
)

// judge returns the verdict for owner at now. fallback is the lease of a holder
// that did not write one.
func (s *sight) judge(owner string, now boottime.Instant, fallback time.Duration) verdict {
	holder := s.holder()
	switch holder {
	case "":
		return verdict{state: vacant}
	case owner:
		return verdict{state: mine, holder: holder}
	}
	until := s.since.Add(s.duration(fallback))
	if now >= until {
		return verdict{state: vacant, holder: holder}
	}
	return verdict{state: held, holder: holder, until: until}
}
