package compare

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestMedianAndSpread(t *testing.T) {
	for _, c := range []struct {
		values               []float64
		middle, lowest, most float64
	}{
		{nil, 0, 0, 0},
		{[]float64{3}, 3, 3, 3},
		{[]float64{4, 1}, 2.5, 1, 4},
		{[]float64{9, 1, 5}, 5, 1, 9},
		{[]float64{100, 1, 5, 4, 6}, 5, 4, 6},
	} {
		low, high := spread(c.values)
		if got := median(c.values); got != c.middle || low != c.lowest || high != c.most {
			t.Errorf("%v: %v in %v to %v", c.values, got, low, high)
		}
	}
}

// result returns our side and two others, with the rates of three rounds.
func result(goals ...Goal) Result {
	rounds := func(rates ...float64) (all []map[string]float64) {
		for _, rate := range rates {
			all = append(all, map[string]float64{Rate: rate, P99: 1 / rate, CPU: 1 / rate, ServerCPU: 0.5 / rate})
		}
		return all
	}
	return Result{Name: "store/locks", Goals: goals, Sides: []Measured{
		{Name: "ours", Rounds: rounds(200, 100, 300)},
		{Name: "slow", Rounds: rounds(20, 20, 20)},
		{Name: "fast", Rounds: rounds(100, 100, 100)},
	}}
}

func TestRatioIsOfTheBestSide(t *testing.T) {
	for _, c := range []struct {
		goal   Goal
		theirs string
		value  float64
		met    bool
	}{
		{Goal{Metric: Rate, Against: []string{"slow", "fast"}, Want: 2}, "fast", 2, true},
		{Goal{Metric: Rate, Against: []string{"slow", "fast"}, Want: 2.1}, "fast", 2, false},
		{Goal{Metric: P99, Against: []string{"slow", "fast"}, Want: 0.5, AtMost: true}, "fast", 0.5, true},
		{Goal{Metric: P99, Against: []string{"slow"}, Want: 0.05, AtMost: true}, "slow", 0.1, false},
		{Goal{Metric: Rate, Side: "fast", Want: 50}, "", 100, true},
	} {
		ratios := result(c.goal).Ratios()
		if len(ratios) != 1 || ratios[0].Theirs != c.theirs || !near(ratios[0].Value, c.value) || ratios[0].Met() != c.met {
			t.Errorf("%+v: %+v", c.goal, ratios)
		}
	}
	for _, g := range []Goal{{Metric: Rate, Against: []string{"nobody"}}, {Metric: "size"}, {Metric: Rate, Side: "nobody"}} {
		if ratios := result(g).Ratios(); len(ratios) != 0 {
			t.Errorf("%+v was not measured: %+v", g, ratios)
		}
	}
}

func near(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }

// TestGateCannotTell is of ratios that do not fail.
func TestGateCannotTell(t *testing.T) {
	rate, machine := result(Goal{Metric: Rate, Against: []string{"fast"}}), result(Goal{Metric: Rate})
	steady := rate.with(rate.Ratios()[0], 1)
	steady.Sides[0].Rounds = steady.Sides[0].Rounds[:1]
	for _, c := range []struct {
		name          string
		now, recorded Result
		want          string
	}{
		{"same", steady, rate, ""},
		{"new", steady, Result{}, "none is recorded"},
		{"noisy", rate, steady, "noisy"},
		{"another machine", machine.with(machine.Ratios()[0], 0.1), machine, ""},
	} {
		failed, unclear := Gate(Report{Results: []Result{c.now}}, Report{Results: []Result{c.recorded}})
		if text := strings.Join(unclear, ""); len(failed) > 0 || !strings.Contains(text, c.want) || c.want == "" && text != "" {
			t.Errorf("%s: %q, %q", c.name, failed, unclear)
		}
	}
}

// TestGateOfTheRecord changes our side of every recorded ratio: the gate fails below 80 %, and passes above.
func TestGateOfTheRecord(t *testing.T) {
	recorded, err := Read("../recorded.json")
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, r := range recorded.Results {
		for _, ratio := range r.Ratios() {
			if ratio.ofMachine() || ratio.Value == 0 {
				continue
			}
			compared++
			for _, c := range []struct {
				factor float64
				fails  bool
			}{{0.79, true}, {0.81, false}, {1, false}, {2, false}} {
				failed, _ := Gate(Report{Results: []Result{r.with(ratio, c.factor)}}, recorded)
				if len(failed) > 0 != c.fails {
					t.Errorf("%s: %v of what is recorded: %q", ratio.Key(), c.factor, failed)
				}
			}
		}
	}
	if compared < 100 {
		t.Errorf("%d ratios are recorded", compared)
	}
}

// with returns a result of one ratio, which is that good a multiple of the one here.
func (r Result) with(ratio Ratio, factor float64) Result {
	if ratio.AtMost {
		factor = 1 / factor
	}
	r.Goals, r.Sides = []Goal{ratio.Goal}, slices.Clone(r.Sides)
	for i, side := range r.Sides {
		if side.Name == ratio.Ours {
			r.Sides[i].Rounds = nil
			for _, round := range side.Rounds {
				round = maps.Clone(round)
				round[ratio.Metric] *= factor
				r.Sides[i].Rounds = append(r.Sides[i].Rounds, round)
			}
		}
	}
	return r
}

func TestGateFailsIfACheckerDoes(t *testing.T) {
	r := result()
	r.Sides[0].Violations = []string{"overlap"}
	if failed, _ := Gate(Report{Results: []Result{r}}, Report{}); len(failed) != 1 {
		t.Errorf("%q", failed)
	}
}

// TestGateFailsWithoutAFigure: a recorded metric that is not measured any more does not pass.
func TestGateFailsWithoutAFigure(t *testing.T) {
	recorded := result(Goal{Metric: Rate, Against: []string{"fast"}})
	now := result(recorded.Goals...)
	now.Sides[0].Rounds = []map[string]float64{{}}
	if failed, _ := Gate(Report{Results: []Result{now}}, Report{Results: []Result{recorded}}); len(failed) != 1 {
		t.Errorf("%q", failed)
	}
}

func TestReport(t *testing.T) {
	r := Report{Machine: ThisMachine(), Began: time.Unix(1e9, 0).UTC(), Took: time.Minute, Rounds: 3, Window: time.Second,
		Results: []Result{result(Goal{Metric: Rate, Against: []string{"slow", "fast"}, Want: 2.5})}}
	file := filepath.Join(t.TempDir(), "report.json")
	if err := r.Write(file); err != nil {
		t.Fatal(err)
	}
	read, err := Read(file)
	if err != nil || !reflect.DeepEqual(read, r) {
		t.Errorf("%+v, %v", read, err)
	}
	var table bytes.Buffer
	want := "| store/locks | rate | ours 200/s | fast | 100/s | 2.00 | 1.00–3.00 | ≥ 2.50 | no | 5ms + 2.5ms / 10ms + 5ms | ok |\n"
	if err := r.Table(&table); err != nil || !strings.HasSuffix(table.String(), want) {
		t.Errorf("%v\n%s", err, &table)
	}
	if _, err := Read(file + ".missing"); err == nil {
		t.Error("a file that does not exist was read")
	}
}

func TestMeasureInterleaves(t *testing.T) {
	var order []string
	side := func(name string) Side {
		return Side{name, func(_ context.Context, window time.Duration) (Sample, error) {
			if window == time.Second { // not the warm-up
				order = append(order, name)
			}
			return Sample{Ops: 10, Elapsed: window}, nil
		}}
	}
	c := Case{Name: "x", Goals: []Goal{{Metric: Rate, Against: []string{"b"}}}}
	r, err := c.Measure(t.Context(), []Side{side("a"), side("b"), side("c")}, Options{Rounds: 3, Window: time.Second})
	if err != nil || strings.Join(order, "") != "abcbcacab" {
		t.Errorf("%v, %v", order, err)
	}
	again, err := c.Measure(t.Context(), []Side{side("a"), side("b"), side("c")}, Options{Rounds: 1, Window: time.Second})
	if r.Join(again); err != nil || len(r.Sides[2].Rounds) != 4 || r.Ratios()[0].Value != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	failing := Side{"bad", func(context.Context, time.Duration) (Sample, error) { return Sample{}, errors.New("down") }}
	if _, err := c.Measure(t.Context(), []Side{failing}, Options{Rounds: 1}); err == nil || err.Error() != "x: bad: down" {
		t.Error(err)
	}
}

// mutex is a lock in this process. A broken one does not exclude; a stale one grants the
// same token again.
type mutex struct {
	mu            sync.Mutex
	token         uint64
	broken, stale bool
}

func (m *mutex) acquire(context.Context, string) (uint64, Held, error) {
	if m.broken {
		return 0, Release(func(context.Context) error { return nil }), nil
	}
	m.mu.Lock()
	if !m.stale || m.token == 0 {
		m.token++
	}
	return m.token, Release(func(context.Context) error { m.mu.Unlock(); return nil }), nil
}

func TestLocksAreChecked(t *testing.T) {
	for _, c := range []struct {
		lock *mutex
		want string
	}{
		{&mutex{}, ""}, {&mutex{broken: true}, "clients held"}, {&mutex{stale: true}, "was granted after 1"},
	} {
		l := Locks{Clients: 2, Hot: true, Hold: time.Millisecond}
		s, err := l.Side("ours", func() Acquire { return c.lock.acquire }).Run(t.Context(), 20*time.Millisecond)
		if got := strings.Join(s.Violations, ""); err != nil || !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%+v: %q, %v", c.lock, got, err)
		}
	}
}

func TestDriveCountsWaitsOfTheStarved(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s, err := Drive(t.Context(), 2, time.Second, func(ctx context.Context, client int) error {
			if client == 0 {
				time.Sleep(100 * time.Millisecond)
				return nil
			}
			<-ctx.Done() // starves
			return ctx.Err()
		})
		m := s.metrics()
		if err != nil || s.Ops != 10 || m[Max] != 61.25 || m[Fairness] != 10 || m[Rate] != 10 || m[P50] != 0.1 {
			t.Errorf("%+v, %v", s, err)
		}
		if _, err := Drive(t.Context(), 1, time.Second, func(context.Context, int) error { return errors.New("down") }); err == nil {
			t.Error("an error was lost")
		}
	})
}

// TestServersCost uses processor time in a child of a child.
func TestServersCost(t *testing.T) {
	m := Start()
	loop := exec.Command("sh", "-c", `sh -c 'while :; do :; done' & echo; wait`)
	loop.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	defer loop.Wait()
	defer syscall.Kill(-loop.Process.Pid, syscall.SIGKILL)
	for m.Sample(1).Values[ServerCPU] < 0.1 {
		if time.Since(m.began) > time.Minute {
			t.Fatal("the processor time of a server was not found")
		}
	}
}
