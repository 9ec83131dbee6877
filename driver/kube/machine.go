package kube

import (
	"time"

	"github.com/interlock-dev/interlock/driver/boottime"
)

// record is what a holder changes when it renews. Its times are compared with
// what they were before and with no clock.
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

// sight is what one observer has seen of one Lease: a pure machine, objects and
// times in, verdicts out. It is the protocol of client-go's leaderelection: a
// holder is believed dead when its record did not change for as long as the record
// says, by the observer's own clock.
//
// A sight may be stale without harm: a contender that acts on it writes with the
// revision that was seen as the condition.
type sight struct {
	object
	record record
	since  boottime.Instant // since when we have seen this record
	heard  boottime.Instant // when we last heard anything new
	// cleared: no lock of an old kind was found under the name.
	cleared bool
}

// observe takes an object that was read or written at some time before now. News are
// of a higher revision.
func (s *sight) observe(o object, now boottime.Instant) (news bool) {
	if o.rev <= s.rev {
		return false
	}
	s.replace(o, now)
	return true
}

// replace takes an object whatever its revision: from a list, which may be one of
// another store.
func (s *sight) replace(o object, now boottime.Instant) {
	if r := recordOf(o); r != s.record || s.since == 0 {
		s.record, s.since = r, now
	}
	if o.rev != s.rev || o.exists() != s.exists() {
		s.heard = now
	}
	s.object = o
}

// deleted notes that the object was deleted at rev.
func (s *sight) deleted(rev int64, now boottime.Instant) (news bool) {
	return s.observe(object{rev: rev}, now)
}

// absent takes the answer that there is no object, to a request that was sent when
// rev was the last that had been seen.
func (s *sight) absent(rev int64, now boottime.Instant) (news bool) {
	if s.rev != rev || !s.exists() {
		return false
	}
	s.replace(object{rev: rev}, now)
	return true
}

// verdict is what an owner may conclude.
type verdict struct {
	state  state
	holder string
	until  boottime.Instant // when a holder's time is over, if nothing changes
}

type state int

const (
	vacant state = iota // it may be taken
	mine                // the owner holds it
	held                // another does
)

// judge says where owner stands at now. fallback is how long to wait for a holder
// who did not say.
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
