package kube

import (
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// Annotations of this driver. Other clients keep them.
const (
	domain    = "interlock-dev.github.io/"
	baseKey   = domain + "base"    // of the counter: it never falls
	holderKey = domain + "holder"  // holder of the token's term; another holder is foreign
	tokenKey  = domain + "token"   // of the term, once it was renewed, or noToken
	nameKey   = domain + "name"    // of an escaped lock, for display
	touchKey  = domain + "touched" // when a release wrote it, to change the revision or for sweep
	breaksKey = domain + "breaks"  // forced releases
)

// noToken is what tokenKey has in a term of an [Advisory].
const noToken = "none"

// object is an immutable Lease at one revision. The zero object is one that does
// not exist, as far as known.
type object struct {
	lease *coordination.Lease
	rev   int64
}

// newObject parses the revision. A server whose revisions are no numbers cannot
// order terms.
func newObject(l *coordination.Lease) (object, error) {
	rev, err := parseRevision(l.ResourceVersion)
	l.ManagedFields = nil // large, and an update without them keeps them on the server
	return object{l, rev}, err
}

func parseRevision(version string) (int64, error) {
	rev, err := driver.ParseInt(version)
	if err != nil || rev <= 0 {
		return 0, fmt.Errorf("the resource version %q is not a number above zero", version)
	}
	return rev, nil
}

func (o object) exists() bool { return o.lease != nil }

func (o object) holder() string {
	if !o.exists() {
		return ""
	}
	return deref(o.lease.Spec.HolderIdentity, "")
}

// ours reports whether the holder is a driver of this package, and not a client
// that kept our annotations.
func (o object) ours() bool {
	return o.holder() != "" && o.lease.Annotations[holderKey] == o.holder()
}

// duration returns how long the record must stay unchanged until the lock may be
// taken; fallback if the holder did not write it.
func (o object) duration(fallback time.Duration) time.Duration {
	if s := deref(o.lease.Spec.LeaseDurationSeconds, 0); s > 0 {
		return time.Duration(s) * time.Second
	}
	return fallback
}

// base returns the base of the counter; 0 if there is none.
func (o object) base() (int64, error) {
	if !o.exists() || o.lease.Annotations[baseKey] == "" {
		return 0, nil
	}
	text := o.lease.Annotations[baseKey]
	base, err := driver.ParseInt(text)
	if err != nil || base < 0 || base > interlock.MaxCounter {
		return 0, fmt.Errorf("the annotation %s is %q, which is not a base of a counter: remove it; the clock sets it again", baseKey, text)
	}
	return base, nil
}

// TokenOf returns the token of the present holder of a Lease, if a driver of this
// package wrote it. It is for writers that read the Lease by other means, such as
// kubectl, and valid for the moment of that read.
func TokenOf(l *coordination.Lease) (interlock.Token, bool) {
	o, err := newObject(l.DeepCopy())
	if err != nil {
		return 0, false
	}
	token := o.token()
	return token, token.Valid()
}

// token returns that of the present term; 0 if there is none.
func (o object) token() interlock.Token {
	if !o.ours() || o.lease.Annotations[tokenKey] == noToken {
		return 0
	}
	if token, err := interlock.ParseToken(o.lease.Annotations[tokenKey]); err == nil {
		return token
	}
	base, err := o.base()
	if err != nil || base == 0 {
		return 0
	}
	token, _ := interlock.NewToken(base+o.rev, 0) // out of range: none
	return token
}

// draft returns a Lease to write over o.
func (o object) draft(namespace, name string) *coordination.Lease {
	l := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if o.exists() {
		l = o.lease.DeepCopy()
	}
	if l.Annotations == nil {
		l.Annotations = map[string]string{}
	}
	return l
}

// begin writes a new term of owner into l.
func begin(l *coordination.Lease, owner string, base int64, seconds int32, now time.Time) {
	if deref(l.Spec.HolderIdentity, "") != owner && l.Spec.LeaseTransitions != nil {
		*l.Spec.LeaseTransitions++
	}
	if l.Spec.LeaseTransitions == nil {
		l.Spec.LeaseTransitions = new(int32(0))
	}
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = &owner, &seconds
	l.Spec.AcquireTime, l.Spec.RenewTime = microTime(now), microTime(now)
	l.Annotations[holderKey] = owner
	l.Annotations[baseKey] = strconv.FormatInt(base, 10)
	delete(l.Annotations, tokenKey)
}

// renewRecord renews the term in l.
func renewRecord(l *coordination.Lease, owner string, base int64, token interlock.Token, seconds int32, at time.Time) {
	l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &seconds, microTime(at)
	l.Annotations[holderKey], l.Annotations[tokenKey] = owner, token.String()
	l.Annotations[baseKey] = strconv.FormatInt(base, 10)
}

// clearHolder ends the term in l as other clients do.
func clearHolder(l *coordination.Lease, now time.Time) {
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = new(""), new(int32(1))
	l.Spec.AcquireTime, l.Spec.RenewTime = microTime(now), microTime(now)
	delete(l.Annotations, holderKey)
	delete(l.Annotations, tokenKey)
}

// nextStamp returns the time to write into a renewal. Clients that compare records
// compare its whole seconds, so a time in the second of the last one would not show
// a live holder.
func nextStamp(last, now time.Time) time.Time {
	if least := last.Truncate(time.Second).Add(time.Second); now.Before(least) {
		return least
	}
	return now
}

func microTime(t time.Time) *metav1.MicroTime { return new(metav1.NewMicroTime(t)) }

func deref[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// label stores the name of an escaped lock.
func label(l *coordination.Lease, prefix, name string) {
	if l.Name == prefix+name {
		return
	}
	if !utf8.ValidString(name) {
		name = strconv.Quote(name)
	}
	l.Annotations[nameKey] = name
}

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
