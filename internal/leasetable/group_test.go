package leasetable

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// recorder is a database whose statements take 10 ms.
type recorder struct {
	Rows
	mu         sync.Mutex
	statements []string
	refuse     func(names []string) error
}

func (r *recorder) send(op string, asks []*Ask) error {
	var names []string
	for _, a := range asks {
		names = append(names, a.Name)
	}
	r.mu.Lock()
	r.statements = append(r.statements, fmt.Sprint(op, names))
	r.mu.Unlock()
	time.Sleep(10 * time.Millisecond) // virtual
	if r.refuse != nil {
		return r.refuse(names)
	}
	return nil
}

func (r *recorder) Take(_ context.Context, asks []*Ask) error { return r.send("take", asks) }
func (r *recorder) Free(_ context.Context, asks []*Ask) error { return r.send("free", asks) }

func (r *recorder) groups() *groups { return newGroups(failure.Driver("test"), r, false) }

func TestReleasesShareStatements(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		r := &recorder{}
		g := newGroups(failure.Driver("test"), r, true)
		go takeAll(t, g, "a", "b", "e")
		time.Sleep(time.Millisecond) // virtual: two statements are under way
		for _, name := range []string{"d", "c"} {
			go func() { _ = g.free(t.Context(), name, "o") }()
		}
		time.Sleep(15 * time.Millisecond) // virtual: the third is
		testbed.OK(t, g.free(t.Context(), "f", "o"))
		g.close()
		g.running.Wait()
		if !slices.Equal(r.statements, []string{"take[a]", "take[b]", "take[c d e]", "free[f]"}) {
			t.Errorf("%q", r.statements)
		}
	})
}

// takeAll takes names concurrently, and returns the error of each.
func takeAll(t *testing.T, g *groups, names ...string) (errs []error) {
	errs = make([]error, len(names))
	var all sync.WaitGroup
	for i, name := range names {
		all.Go(func() { _, errs[i] = g.take(t.Context(), driver.Request{Name: name, Owner: "o"}) })
		time.Sleep(time.Microsecond) // virtual: in this order
	}
	all.Wait()
	return errs
}

func TestAsksThatWaitShareAStatement(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		r := &recorder{}
		g := r.groups()
		takeAll(t, g, "a", "b", "e", "d", "c")
		if !slices.Equal(r.statements, []string{"take[a]", "take[b]", "take[c d e]"}) {
			t.Errorf("%q", r.statements)
		}
		g.close()
		g.running.Wait()
		if err := g.free(t.Context(), "a", "o"); !errors.Is(err, interlock.ErrClosed) {
			t.Error(err)
		}
	})
}

func TestAsksOfOneOwnerAreInOrder(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		r := &recorder{}
		g := r.groups()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := g.take(ctx, driver.Request{Name: "a", Owner: "o"})
		if interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("a missing answer: %v", err)
		}
		go func() { _ = g.free(t.Context(), "a", "o") }()
		synctest.Wait()
		if !slices.Equal(r.statements, []string{"take[a]"}) {
			t.Errorf("the release overtook: %q", r.statements)
		}
		if err := g.free(t.Context(), "a", "other"); err != nil {
			t.Error(err)
		}
		g.close()
		g.running.Wait()
		if len(r.statements) != 3 {
			t.Errorf("%q", r.statements)
		}
	})
}

func TestWithdrawnAskIsNotSent(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		r := &recorder{}
		g := r.groups()
		go takeAll(t, g, "a", "b")
		time.Sleep(time.Millisecond) // virtual: both are under way
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		_, err := g.take(ctx, driver.Request{Name: "c", Owner: "o"})
		if interlock.Kind(err) != interlock.Definite {
			t.Errorf("nothing was sent: %v", err)
		}
		g.close()
		g.running.Wait()
		if slices.Contains(r.statements, "take[c]") {
			t.Errorf("%q", r.statements)
		}
	})
}

func TestRefusedAskFailsAlone(t *testing.T) {
	for kind, alone := range map[interlock.ErrorKind]bool{interlock.Definite: true, interlock.Uncertain: false} {
		virtual.Test(t, func(t *testing.T) {
			r := &recorder{refuse: func(names []string) error {
				if slices.Contains(names, "bad") {
					return failure.Driver("test").New("acquire", "", kind, errors.New("refused"))
				}
				return nil
			}}
			g := r.groups()
			errs := takeAll(t, g, "a", "b", "bad", "good")
			if interlock.Kind(errs[2]) != kind || (errs[3] == nil) != alone || errs[0] != nil {
				t.Errorf("%v", errs)
			}
			if alone && len(r.statements) != 5 || !alone && len(r.statements) != 3 {
				t.Errorf("%q", r.statements)
			}
		})
	}
}

func TestSlowStatementHoldsUpNobody(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		r := &recorder{refuse: func(names []string) error {
			if names[0] == "a" || names[0] == "b" {
				<-release
			}
			return nil
		}}
		g := r.groups()
		go takeAll(t, g, "a", "b")
		time.Sleep(time.Millisecond) // virtual: both are under way
		if errs := takeAll(t, g, "c"); errs[0] != nil {
			t.Error(errs)
		}
		close(release)
		g.close()
		g.running.Wait()
	})
}

func TestDifferingNames(t *testing.T) {
	before := map[string]string{"same": "1", "changed": "1", "gone": "1"}
	now := map[string]string{"same": "1", "changed": "2", "new": ""}
	if got := differing(before, now); !slices.Equal(got, []string{"changed", "gone", "new"}) {
		t.Errorf("%q", got)
	}
}

func TestSeedJudgesByTheServersClock(t *testing.T) {
	now := interlock.CounterAt(time.Now())
	far := now + 2*interlock.MaxAhead.Microseconds()
	after, err := interlock.NewToken(now+1000, 0)
	testbed.OK(t, err)
	repair := &driver.Repair{Reason: "r", By: "b"}
	for name, tt := range map[string]struct {
		last int64
		seed driver.Seed
		want string
		err  bool
	}{
		"as it is":            {now, driver.Seed{}, "", false},
		"after a move":        {now, driver.Seed{After: after}, "raised", false},
		"implausible":         {far, driver.Seed{}, "", true},
		"implausible, repair": {far, driver.Seed{Repair: repair}, "lowered", false},
	} {
		got := ""
		err := Counters{Last: tt.last, Now: now,
			Raise: func(floor int64) error { got = "raised"; return nil },
			Lower: func(string, *driver.Repair) error { got = "lowered"; return nil },
		}.Seed(tt.seed)
		var implausible *driver.ImplausibleError
		if got != tt.want || errors.As(err, &implausible) != tt.err {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
