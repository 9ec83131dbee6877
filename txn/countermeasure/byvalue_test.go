package countermeasure_test

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/countermeasure"
)

// TestChoose: a risk above the limit gets the protocol Above, any other Below.
func TestChoose(t *testing.T) {
	careful := countermeasure.ByValue{Limit: 1000, Below: countermeasure.TCC, Above: countermeasure.TwoPhase}
	for _, c := range []struct {
		by   countermeasure.ByValue
		risk int64
		want countermeasure.Protocol
	}{
		{countermeasure.ByValue{}, 0, countermeasure.Saga}, {countermeasure.ByValue{}, 1, countermeasure.TwoPhase},
		{careful, 0, countermeasure.TCC}, {careful, 1000, countermeasure.TCC}, {careful, 1001, countermeasure.TwoPhase},
		{careful, math.MaxInt64, countermeasure.TwoPhase},
		{countermeasure.ByValue{Limit: math.MaxInt64}, math.MaxInt64, countermeasure.Saga},
		{countermeasure.ByValue{Above: countermeasure.TCC}, 7, countermeasure.TCC},
	} {
		d, err := c.by.Choose(c.risk)
		if err != nil || d.Protocol != c.want || d.Risk != c.risk || d.Limit != c.by.Limit || d.Type("transfer") != string(c.want)+":transfer" {
			t.Errorf("%+v of %d: %+v, %v", c.by, c.risk, d, err)
		}
		text, err := json.Marshal(d)
		var back countermeasure.Decision
		if err != nil || json.Unmarshal(text, &back) != nil || back != d {
			t.Errorf("%s, %+v", text, back)
		}
		if exceeds := strings.Contains(d.String(), " exceeds "); exceeds != (c.risk > c.by.Limit) {
			t.Errorf("%v", d)
		}
	}
	for _, bad := range []countermeasure.ByValue{{Limit: -1}, {Below: "3pc"}, {Above: "none"}} {
		if _, err := bad.Choose(1); err == nil || interlock.Kind(err) != interlock.Bug {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	if _, err := careful.Choose(-1); err == nil || interlock.Kind(err) != interlock.Bug {
		t.Errorf("a negative risk: %v", err)
	}
}

// testDecided: the first decision holds for all callers, whatever the later limits.
func testDecided(w world) {
	decide := func(by countermeasure.ByValue, id string, risk int64) (d countermeasure.Decision, err error) {
		err = w.in(func(ctx context.Context, db driver.SQL) (err error) {
			d, err = by.Decide(ctx, db, id, risk)
			return err
		})
		return d, err
	}
	low, high := countermeasure.ByValue{Limit: 10}, countermeasure.ByValue{Limit: 1000}
	first, err := decide(low, "t1", 100)
	if err != nil || first.Protocol != countermeasure.TwoPhase {
		w.Errorf("%+v, %v", first, err)
	}
	if again, err := decide(high, "t1", 100); again != first || err != nil {
		w.Errorf("%+v, %v; want %+v", again, err, first)
	}
	if other, err := decide(high, "t2", 100); other.Protocol != countermeasure.Saga || err != nil {
		w.Errorf("%+v, %v", other, err)
	}
	_, err = decide(low, "t1", 99)
	if e := wants[*countermeasure.RiskError](w, err, interlock.Definite); e.Decision != first || e.Risk != 99 || e.Transaction != "t1" {
		w.Errorf("%+v", e)
	}
	ok(w, w.in(func(ctx context.Context, db driver.SQL) error { return low.Forget(ctx, db, "t1") }))
	if again, err := decide(high, "t1", 99); again.Protocol != countermeasure.Saga || err != nil {
		w.Errorf("%+v, %v", again, err)
	}
	_, err = decide(low, "", 1)
	wantKind(w, err, interlock.Bug, nil)
	_, err = decide(low, "t9", -1)
	wantKind(w, err, interlock.Bug, nil)
	_, err = low.Decide(w.Context(), nil, "t9", 1)
	wantKind(w, err, interlock.Bug, nil)
	_, err = decide(countermeasure.ByValue{Name: "nowhere"}, "t9", 1)
	wantKind(w, err, interlock.Definite, nil)

	decisions := make([]countermeasure.Decision, 6)
	var running sync.WaitGroup
	for i := range decisions {
		running.Go(func() {
			d, err := decide(countermeasure.ByValue{Limit: int64(i * 20)}, "raced", 50)
			if decisions[i] = d; err != nil {
				w.Error(err)
			}
		})
	}
	running.Wait()
	for _, d := range decisions {
		if d != decisions[0] {
			w.Errorf("%+v and %+v", d, decisions[0])
		}
	}
}
