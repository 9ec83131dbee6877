package redis

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func plainOn(t testing.TB, addr string, o *Options) *Plain {
	t.Helper()
	p, err := OpenPlain(t.Context(), dial(t, addr), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func takePlain(t testing.TB, p *Plain, name string) string {
	t.Helper()
	r := driver.Request{Name: name, Owner: newOwner(), NoWait: true}
	if _, err := p.Acquire(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	return r.Owner
}

func breaking(name, owner string) driver.Break {
	return driver.Break{Name: name, Owner: owner, Reason: "its machine\xff burnt", By: "ops"}
}

func TestBreakHandsOverAndIsRecorded(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	a, b := openOn(t, server.Addr(), &Options{TTL: time.Second}), openOn(t, server.Addr(), nil)
	lost := make(chan error, 1)
	r := driver.Request{Name: "x", Owner: newOwner(), Events: driver.Events{Lost: func(err error) { lost <- err }}}
	first, err := a.Acquire(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	waiting := await(t, b, "x")
	if _, ok, err := b.Break(t.Context(), breaking("x", "somebody else")); ok || err != nil {
		t.Fatalf("broke what another holds: %v, %v", ok, err)
	}
	record, ok, err := b.Break(t.Context(), breaking("x", r.Owner))
	if err != nil || !ok || record.Token != first.Token || time.Since(record.At).Abs() > time.Minute {
		t.Fatalf("%+v, %v, %v", record, ok, err)
	}
	next := receive(t, waiting, bound)
	if next.grant.Token <= first.Token {
		t.Errorf("the next token is %d, after %d", next.grant.Token, first.Token)
	}
	select {
	case err := <-lost:
		if !errors.Is(err, interlock.ErrLost) {
			t.Error(err)
		}
	case <-time.After(bound):
		t.Error("the loss was not reported")
	}
	if _, ok, err := b.Break(t.Context(), breaking("x", r.Owner)); ok || err != nil {
		t.Fatalf("broke it twice: %v, %v", ok, err)
	}
	for _, name := range []string{"x", ""} {
		records, err := a.Breaks(t.Context(), name, 10)
		if err != nil || len(records) != 1 || records[0] != record {
			t.Errorf("recorded for %q: %+v, %v; want %+v", name, records, err, record)
		}
	}
}

func TestBreaksAreShownNewestFirstBelowThePrefix(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d, other := openOn(t, server.Addr(), &Options{Prefix: "a/"}), openOn(t, server.Addr(), &Options{Prefix: "b/"})
	var want []driver.BreakRecord
	for _, name := range []string{"1", "2", "1", "3"} {
		owner, _ := take(t, d, name)
		record, ok, err := d.Break(t.Context(), breaking(name, owner))
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		want = append([]driver.BreakRecord{record}, want...)
		now := time.Now()
		testbed.Eventually(t, "a millisecond passes", bound, func() bool { return time.Since(now) > time.Millisecond })
	}
	owner, _ := take(t, other, "1")
	if _, ok, err := other.Break(t.Context(), breaking("1", owner)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	got, err := d.Breaks(t.Context(), "", 3)
	if err != nil || len(got) != 3 || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%+v, %v; want %+v", got, err, want[:3])
	}
	got, err = d.Breaks(t.Context(), "1", 1)
	if err != nil || len(got) != 1 || got[0] != want[1] {
		t.Errorf("the newest of 1: %+v, %v; want %+v", got, err, want[1])
	}
}

func TestBreakOfAPlainLockHasNoToken(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	p, d := plainOn(t, server.Addr(), nil), openOn(t, server.Addr(), nil)
	owner := takePlain(t, p, "x")
	record, ok, err := p.Break(t.Context(), breaking("x", owner))
	if err != nil || !ok || record.Token != 0 || record.Owner != owner {
		t.Fatalf("%+v, %v, %v", record, ok, err)
	}
	release(t, d, "x", func() string { owner, _ := take(t, d, "x"); return owner }())
	if records, err := d.Breaks(t.Context(), "x", 5); err != nil || len(records) != 1 {
		t.Errorf("%+v, %v", records, err)
	}
}

func TestBreakNeedsAReasonAndAPerson(t *testing.T) {
	t.Parallel()
	d := openOn(t, testbed.Redis(t).Addr(), nil)
	owner, _ := take(t, d, "x")
	for _, b := range []driver.Break{
		{Name: "x", Owner: owner, By: "ops"}, {Name: "x", Owner: owner, Reason: "why"},
		{Name: "", Owner: owner, Reason: "why", By: "ops"},
		{Name: "x", Owner: owner, Reason: string(make([]byte, driver.MaxName+1)), By: "ops"},
	} {
		if _, ok, err := d.Break(t.Context(), b); ok || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+.40v: %v, %v", b, ok, err)
		}
	}
	release(t, d, "x", owner)
}

// A lost answer leaves the outcome unknown; the repetition finds the lock broken,
// and the record shows it.
func TestBreakWithALostReply(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	proxy := testbed.NewProxy(t, server.Addr())
	d, near := openOn(t, server.Addr(), nil), openOn(t, proxy.Addr(), nil)
	owner, _ := take(t, d, "x")
	// Break reads first, so only the second answer may be dropped.
	b := breaking("x", owner)
	proxy.DropReplies()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := near.conn.eval(ctx, request{op: "break", name: "x"}, breakScript, batch{
		keys: []string{"x", breaksKey("x")}, args: []string{owner, owner, b.Reason, b.By, "10", "unused"}})
	if interlock.Kind(err) != interlock.Uncertain {
		t.Fatalf("with a lost reply: %v", err)
	}
	proxy.Heal()
	testbed.Eventually(t, "the repetition finds it over", bound, func() bool {
		_, ok, err := near.Break(t.Context(), b)
		return err == nil && !ok
	})
	if records, err := d.Breaks(t.Context(), "x", 5); err != nil || len(records) != 1 {
		t.Errorf("%+v, %v", records, err)
	}
}

// Another owner may acquire it between the read and the script.
func TestBreakComparesWhenItBreaks(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d, operator := openOn(t, server.Addr(), nil), dial(t, server.Addr())
	owner, _ := take(t, d, "x")
	m, err := d.conn.eval(t.Context(), request{op: "break", name: "x"}, breakScript, batch{
		keys: []string{"x", breaksKey("x")}, args: []string{"the former owner", "the former owner", "why", "ops", "10", "unused"}})
	if answer, e := m.AsStrSlice(); err != nil || e != nil || len(answer) > 0 {
		t.Fatalf("%q, %v, %v", answer, err, e)
	}
	if holder, err := raw(t, operator, "GET", "x").ToString(); ownerIn(holder) != owner || err != nil {
		t.Errorf("held by %q, %v", holder, err)
	}
	if records, err := d.Breaks(t.Context(), "x", 5); err != nil || len(records) != 0 {
		t.Errorf("%+v, %v", records, err)
	}
}

func TestRecordsOfBreaksAreBounded(t *testing.T) {
	t.Parallel()
	server := testbed.Redis(t)
	d, operator := openOn(t, server.Addr(), nil), dial(t, server.Addr())
	for range keepBreaks {
		if err := raw(t, operator, "XADD", breaksKey("x"), "*", "lock", "x", "owner", "o", "reason", "r", "by", "b",
			"counter", "0", "at", "1").Error(); err != nil {
			t.Fatal(err)
		}
	}
	owner, _ := take(t, d, "x")
	if _, ok, err := d.Break(t.Context(), breaking("x", owner)); !ok || err != nil {
		t.Fatal(ok, err)
	}
	records, err := d.Breaks(t.Context(), "x", keepBreaks+5)
	if err != nil || len(records) != keepBreaks || records[0].Owner != owner {
		t.Errorf("%d records, %v", len(records), err)
	}
}
