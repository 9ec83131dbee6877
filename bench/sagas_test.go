package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/saga"
)

// sagaStores are the stores with a journal, with the goals of sagas over HTTP and in the process:
// their share of the durable commits, by the number of clients.
var sagaStores = []struct {
	name, note    string
	start         func(tb testing.TB) *testbed.Server
	open          func(tb testing.TB, server *testbed.Server) journaled
	remote, local map[int]float64
	workflow      map[int]float64 // against DBOS, which knows Postgres only
}{
	{name: "postgres", note: "one Postgres that syncs to disk", start: startPostgres, open: onPostgres,
		remote: map[int]float64{32: 0.25, 128: 0.35}, local: map[int]float64{32: 0.4, 128: 0.5},
		workflow: map[int]float64{1: 1.2, 32: 3, 128: 3}},
	{name: "mariadb", note: "one MariaDB that syncs to disk", start: startMariaDB, open: onMariaDB},
	{name: "etcd", note: "one etcd that syncs to disk", start: func(tb testing.TB) *testbed.Server { return testbed.Etcd(tb) }, open: onEtcd,
		remote: map[int]float64{32: 0.25, 128: 0.35}},
}

func sagaCases(tb testing.TB) (cases []benchmark) {
	for _, store := range sagaStores {
		server := sync.OnceValue(func() *testbed.Server { return store.start(tb) })
		for _, clients := range []int{1, 32, 128} {
			goals := []compare.Goal{
				{Metric: compare.Rate, Against: []string{"commits"}, Want: store.local[clients]},
				{Metric: compare.Rate, Side: "interlock HTTP", Against: []string{"commits"}, Want: store.remote[clients]},
				{Metric: compare.CPU, Side: "interlock HTTP", Want: 0.0005, AtMost: true}}
			if store.workflow != nil {
				goals = append(goals, faster("DBOS", store.workflow[clients]))
			}
			cases = append(cases, benchmark{
				Case: compare.Case{Name: fmt.Sprintf("saga/%s/%d", store.name, clients), Goals: goals, Window: time.Second,
					Note: store.note + fmt.Sprintf("; pools of %d connections; sagas of two steps; %d clients wait for the end of theirs", sagaConnections, clients)},
				smoke: clients == 1,
				open: func(tb testing.TB) []compare.Side {
					sides := sagaSides(tb, store.open(tb, server()), clients)
					if store.workflow != nil {
						sides = append(sides, dbosSide(tb, server(), clients))
					}
					return sides
				},
			})
		}
		if store.name == "postgres" {
			cases = append(cases, twoCoordinators(server), drainCase(server))
		}
	}
	return cases
}

// sagaSides returns sagas in the process and over HTTP, and the durable commits of the store.
func sagaSides(tb testing.TB, store journaled, clients int) []compare.Side {
	w := &sagas{}
	local, remote := w.local(), w.remote(tb)
	engine := serve(tb, store.journal, &coordinator.Options{PerTarget: 256}, nil, local, remote)
	return []compare.Side{
		w.side("interlock", clients, func(int) *saga.Engine { return engine }, local),
		w.side("interlock HTTP", clients, func(int) *saga.Engine { return engine }, remote),
		commits(clients, store.commit),
	}
}

// twoCoordinators serve the shards of one journal, compared with one coordinator.
func twoCoordinators(server func() *testbed.Server) benchmark {
	const clients = 32
	return benchmark{
		Case: compare.Case{Name: "saga/coordinators/2", Goals: []compare.Goal{faster("one coordinator", 1.5)}, Window: time.Second,
			Note: fmt.Sprintf("one Postgres that syncs to disk; pools of %d connections for each coordinator; %d clients, spread over the coordinators", sagaConnections, clients)},
		open: func(tb testing.TB) (sides []compare.Side) {
			for n, name := range []string{"one coordinator", "two coordinators"} {
				w := &sagas{}
				local := w.local()
				var engines []*saga.Engine
				options := &txn.Options{Journal: fmt.Sprint("shared", fresh.Add(1)), Group: name, Coordinator: &coordinator.Options{PerTarget: 256}}
				for range 1 + n {
					engines = append(engines, startRuntime(tb, withPool(server()), options, local))
				}
				sides = append(sides, w.side(name, clients, func(client int) *saga.Engine { return engines[client%len(engines)] }, local))
			}
			return []compare.Side{sides[1], sides[0]}
		},
	}
}

func startRuntime(tb testing.TB, url string, o *txn.Options, sagas ...saga.Defined) *saga.Engine {
	rt, err := txn.Open(tb.Context(), url, o)
	ok(tb, err)
	closeAfter(tb, rt.Close)
	e, err := saga.New(rt.Coordinator(), nil, sagas...)
	ok(tb, err)
	ok(tb, rt.Start(tb.Context()))
	return e
}

// sagas starts and counts sagas. Their steps only record that they ran.
type sagas struct{ effects effects }

// effects detects effects that are repeated or missing.
type effects struct {
	seen  sync.Map // by key
	once  atomic.Int64
	twice atomic.Int64
}

func (e *effects) add(key string) {
	if _, there := e.seen.LoadOrStore(key, true); there {
		e.twice.Add(1)
		return
	}
	e.once.Add(1)
}

// check compares the effects with the expected number, and resets them.
func (e *effects) check(want int) []string {
	once, twice := e.once.Swap(0), e.twice.Swap(0)
	e.seen.Clear()
	if once == int64(want) && twice == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d effects in place of %d, and %d of them twice", once, want, twice)}
}

func (w *sagas) act(ctx context.Context) string {
	w.effects.add(branch.From(ctx).Key())
	return "done"
}

func (w *sagas) local() saga.Definition[string] {
	return twoSteps("local", func(ctx context.Context, _ string) (string, error) { return w.act(ctx), nil })
}

// remote returns a saga whose participant is called over HTTP.
func (w *sagas) remote(tb testing.TB) saga.Definition[string] {
	participant := httptest.NewServer(branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%q", w.act(ctx)), nil
	}))
	tb.Cleanup(participant.Close)
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	tb.Cleanup(transport.CloseIdleConnections)
	caller := branchhttp.Caller{Client: &http.Client{Transport: transport}}
	return twoSteps("remote", func(ctx context.Context, input string) (string, error) {
		answer, err := caller.Post(ctx, participant.URL, branch.From(ctx), fmt.Appendf(nil, "%q", input))
		return string(answer), err
	})
}

// twoSteps returns a saga whose second step is the pivot.
func twoSteps(name string, act func(ctx context.Context, input string) (string, error)) saga.Definition[string] {
	undo := func(context.Context, string, *string) error { return nil }
	return saga.Define(name, saga.Step("reserve", act).Undo("release", undo), saga.Step("pay", act).Pivot())
}

// side returns clients that each wait for the end of a saga before they start the next.
func (w *sagas) side(name string, clients int, engine func(client int) *saga.Engine, d saga.Definition[string]) compare.Side {
	return compare.Side{Name: name, Run: func(ctx context.Context, window time.Duration) (compare.Sample, error) {
		s, err := compare.Drive(ctx, clients, window, func(ctx context.Context, client int) (time.Duration, error) {
			began := time.Now()
			o, err := d.Do(ctx, engine(client), fmt.Sprintf("saga/%d", fresh.Add(1)), "in")
			if err == nil && o.State != saga.Succeeded {
				err = fmt.Errorf("it ended as %v", o.State)
			}
			if interlock.Kind(err) == interlock.Uncertain {
				err = errors.Join(errors.New("it did not end"), err)
			}
			return time.Since(began), err
		})
		s.Violations = append(s.Violations, w.effects.check(2*s.Total)...)
		return s, err
	}}
}
