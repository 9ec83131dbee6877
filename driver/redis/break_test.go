package redis

import (
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func plainOn(t testing.TB, addr string, o *Options) *Plain {
	t.Helper()
	p, err := OpenPlain(t.Context(), dial(t, addr), o)
	testbed.OK(t, err)
	testbed.CloseAfter(t, p)
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
	if records, err := openOn(t, server.Addr(), &Options{Prefix: "y/"}).Breaks(t.Context(), "", 5); err != nil || len(records) != 0 {
		t.Errorf("of another prefix: %+v, %v", records, err)
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
