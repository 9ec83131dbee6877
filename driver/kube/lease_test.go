package kube

import (
	"strconv"
	"strings"
	"testing"
	"testing/quick"
	"time"

	coordination "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// leaseOf returns a Lease with a holder that last renewed at a second.
func leaseOf(rev int64, holder string, seconds int32, renewed int) object {
	l := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u", Annotations: map[string]string{}}}
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = &holder, &seconds
	l.Spec.RenewTime = microTime(time.Unix(int64(renewed), 0))
	return object{l, rev}
}

// TestSight: times are in seconds, and a step is an observation at one.
func TestSight(t *testing.T) {
	type step struct {
		at   int
		see  object
		want state // for "me", right afterwards
	}
	touched := leaseOf(3, "other", 10, 1)
	touched.lease.Annotations["x"] = "y"
	again := leaseOf(3, "other", 10, 1)
	again.lease.UID = "another object"
	silent := leaseOf(1, "other", 0, 1)
	silent.lease.Spec.LeaseDurationSeconds = nil
	for name, steps := range map[string][]step{
		"nobody knows it":              {{1, object{}, vacant}},
		"nobody holds it":              {{1, leaseOf(1, "", 1, 1), vacant}},
		"mine, however old":            {{1, leaseOf(1, "me", 1, 1), mine}, {100, object{}, mine}},
		"its time runs from the sight": {{100, leaseOf(1, "other", 10, 1), held}, {109, object{}, held}, {110, object{}, vacant}},
		"its own duration counts":      {{1, leaseOf(1, "other", 2, 1), held}, {3, object{}, vacant}},
		"one without: ours":            {{1, silent, held}, {30, object{}, held}, {31, object{}, vacant}},
		"a renewal starts it again":    {{1, leaseOf(1, "other", 10, 1), held}, {9, leaseOf(2, "other", 10, 9), held}, {18, object{}, held}, {19, object{}, vacant}},
		"another revision does not":    {{1, leaseOf(1, "other", 10, 1), held}, {9, touched, held}, {11, object{}, vacant}},
		"another object does":          {{1, leaseOf(1, "other", 10, 1), held}, {9, again, held}, {18, object{}, held}},
		"the same again does not":      {{1, leaseOf(1, "other", 10, 1), held}, {9, leaseOf(1, "other", 10, 1), held}, {11, object{}, vacant}},
		"what is older is ignored":     {{1, leaseOf(5, "other", 10, 1), held}, {2, leaseOf(4, "", 1, 0), held}},
		"what is newer is not":         {{1, leaseOf(5, "other", 10, 1), held}, {2, leaseOf(6, "", 1, 0), vacant}},
	} {
		var s sight
		for _, step := range steps {
			now := boottime.Instant(0).Add(time.Duration(step.at) * time.Second)
			if step.see.exists() {
				s.observe(step.see, now)
			}
			if got := s.judge("me", now, 30*time.Second); got.state != step.want {
				t.Errorf("%s: at %d the state is %d, want %d", name, step.at, got.state, step.want)
			}
		}
	}
}

// TestSightOfWhatIsGone: an answer that there is no object counts if nothing was
// seen since the request; a deletion hides older objects.
func TestSightOfWhatIsGone(t *testing.T) {
	var s sight
	s.observe(leaseOf(5, "other", 10, 1), 1)
	if s.absent(4, 2) || !s.exists() {
		t.Fatal("an old answer hides a later observation")
	}
	if !s.absent(5, 2) || s.exists() {
		t.Fatal("a missing Lease is still seen")
	}
	if s.observe(leaseOf(5, "other", 10, 1), 3) || s.exists() {
		t.Fatal("a late answer brings it back")
	}
	s.observe(leaseOf(6, "other", 10, 1), 3)
	s.deleted(8, 4)
	if s.observe(leaseOf(7, "other", 10, 1), 5) || s.exists() {
		t.Fatal("a deleted object is back")
	}
}

// TestFloorNeverOvertakesTheClock, if wall was read before the revision and no
// server makes more than a revision a microsecond; and a later floor is above every
// counter issued before.
func TestFloorNeverOvertakesTheClock(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	check := func(rev uint32, late, grant, again uint16) bool {
		// at most one revision in a microsecond, all of them after the wall was read
		base := floor(start, int64(rev))
		issued := base + int64(rev) + int64(grant)
		granted := start.Add(time.Duration(grant) * time.Microsecond)
		if issued > interlock.CounterAt(granted) {
			return false
		}
		later := granted.Add(time.Duration(again) * time.Microsecond)
		at := int64(rev) + int64(grant) + int64(late)
		return floor(later, at)+at+1 > issued
	}
	testbed.OK(t, quick.Check(check, nil))
}

func TestStampsDifferBySeconds(t *testing.T) {
	at := func(s string) time.Time {
		parsed, err := time.Parse("05.000", s)
		testbed.OK(t, err)
		return parsed
	}
	for _, c := range []struct{ last, now, want string }{
		{"01.000", "02.000", "02.000"}, {"01.999", "02.001", "02.001"}, {"01.001", "01.999", "02.000"},
		{"05.500", "03.000", "06.000"}, {"01.000", "09.500", "09.500"},
	} {
		if got := nextStamp(at(c.last), at(c.now)); !got.Equal(at(c.want)) {
			t.Errorf("after %s at %s: %v, want %s", c.last, c.now, got, c.want)
		}
	}
}

func TestNames(t *testing.T) {
	long := strings.Repeat("x", 253)
	for _, c := range []struct{ prefix, name, object string }{
		{"", "nightly-report", "nightly-report"}, {"", "a.b", "a.b"}, {"p-", "a", "p-a"}, {"p.", "a", "p.a"}, {"", long, long},
		{"", "A", "esc--41"}, {"", "a/b", "esc-a-2fb"}, {"", "-", "esc--2d"}, {"", "a..b", "esc-a-2e-2eb"}, {"", "esc-a", "esc-esc-2da"},
		{"", "esc-a-2fb", "esc-esc-2da-2d2fb"}, {"p-", "é", "p-esc--c3-a9"}, {"", "\x00\xff", "esc--00-ff"},
	} {
		l := layout{c.prefix}
		if got, ok := l.object(c.name); got != c.object || !ok {
			t.Errorf("%q is %q, %v, want %q", c.name, got, ok, c.object)
		}
		if got, ok := l.name(c.object); got != c.name || !ok {
			t.Errorf("%q is of %q, %v, want %q", c.object, got, ok, c.name)
		}
	}
	for _, object := range []string{"", "p-", "esc-", "p-esc-", "x", "p-esc-A", "p-esc-a-2", "p-esc-a-zz", "p-esc-a-61", "p-esc-a-2F"} {
		if name, ok := (layout{"p-"}).name(object); ok {
			t.Errorf("%q is taken for the object of %q", object, name)
		}
	}
	if _, ok := (layout{}).object(long + "x"); ok {
		t.Error("a name of 254 bytes is accepted")
	}
	back := func(name string) bool {
		object, _ := layout{"p-"}.object(name)
		got, ok := layout{"p-"}.name(object)
		return name == "" || ok && got == name
	}
	testbed.OK(t, quick.Check(back, nil))
}

func TestVersions(t *testing.T) {
	for _, c := range []struct {
		major, minor string
		want         bool
	}{{"1", "35", true}, {"1", "36+", true}, {"1", "34", false}, {"1", "34+", false}, {"2", "0", true}, {"", "", false}, {"1", "x", false}, {"0", "99", false}} {
		if comparable135(c.major, c.minor) != c.want {
			t.Errorf("%s.%s: want %v", c.major, c.minor, c.want)
		}
	}
	for _, version := range []string{"", "0", "-1", "+1", "01", "1x", "9223372036854775808"} {
		if _, err := parseRevision(version); err == nil {
			t.Errorf("the revision %q is accepted", version)
		}
	}
}

func FuzzObjectName(f *testing.F) {
	for _, s := range []string{"p-nightly", "p-x-2f", "p-", "p-x-", "p-x-zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, object string) {
		l := layout{prefix: "p-"}
		if name, ok := l.name(object); ok {
			if back, _ := l.object(name); back != object {
				t.Fatalf("%q is %q, which is %q", object, name, back)
			}
		}
	})
}

func FuzzLease(f *testing.F) {
	f.Add("1", "holder", "holder", "7", "890229109301653504", int32(30))
	f.Add("01", "a", "b", "-1", "x", int32(-1))
	f.Fuzz(func(t *testing.T, revision, holder, ours, base, token string, seconds int32) {
		l := &coordination.Lease{}
		l.ResourceVersion, l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds = revision, &holder, &seconds
		l.Annotations = map[string]string{holderKey: ours, baseKey: base, tokenKey: token}
		if token, ok := TokenOf(l); ok != token.Valid() {
			t.Fatalf("%d, %v", token, ok)
		}
		o, err := newObject(l)
		if err == nil && (o.duration(1) <= 0 || strconv.FormatInt(o.rev, 10) != revision) {
			t.Fatalf("%q is the revision %d, held for %v", revision, o.rev, o.duration(1))
		}
		if n, err := o.base(); err == nil && base != "" && strconv.FormatInt(n, 10) != base {
			t.Fatalf("%q is the base %d", base, n)
		}
	})
}
