package bench

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"

	"github.com/interlock-dev/interlock/bench/compare"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/etcd"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/driver/mysql"
	"github.com/interlock-dev/interlock/driver/postgres"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/journal"
	"github.com/interlock-dev/interlock/txn/saga"
)

// sagaConnections is the pool size of sides that run transactions, or commits for comparison.
const sagaConnections = 64

// sagaStores are the stores with a journal, with the goals of sagas over HTTP and in the process:
// their share of the durable commits, by the number of clients.
var sagaStores = []struct {
	name, note    string
	start         func(tb testing.TB, extra ...string) *testbed.Server
	open          func(tb testing.TB, server *testbed.Server) (driver.Journal, commit)
	remote, local map[int]float64
	workflow      map[int]float64 // against DBOS, which knows Postgres only
}{
	{name: "postgres", note: "one Postgres that syncs to disk", start: startPostgres, open: onPostgres,
		remote: map[int]float64{32: 0.25, 128: 0.35}, local: map[int]float64{32: 0.4, 128: 0.5},
		workflow: map[int]float64{1: 1.2, 32: 3, 128: 3}},
	{name: "mariadb", note: "one MariaDB that syncs to disk", start: startMariaDB, open: onMariaDB},
	{name: "etcd", note: "one etcd that syncs to disk", start: testbed.Etcd, open: onEtcd,
		remote: map[int]float64{32: 0.25, 128: 0.35}},
}

func sagaCases(tb testing.TB) (cases []benchmark) {
	for _, s := range sagaStores {
		server := lazily(tb, s.start)
		for _, clients := range []int{1, 32, 128} {
			goals := []compare.Goal{
				{Metric: compare.Rate, Against: []string{"commits"}, Want: s.local[clients]},
				{Metric: compare.Rate, Side: "interlock HTTP", Against: []string{"commits"}, Want: s.remote[clients]},
				{Metric: compare.CPU, Side: "interlock HTTP", Want: 0.0005, AtMost: true}}
			if s.workflow != nil {
				goals = append(goals, faster("DBOS", s.workflow[clients]))
			}
			cases = append(cases, benchmark{
				Case: compare.Case{Name: fmt.Sprintf("saga/%s/%d", s.name, clients), Goals: goals, Window: time.Second,
					Note: s.note + fmt.Sprintf("; pools of %d connections; sagas of two steps; %d clients wait for the end of theirs", sagaConnections, clients)},
				smoke: clients == 1,
				open: func(tb testing.TB) []compare.Side {
					store, commit := s.open(tb, server())
					done := &effects{}
					local, remote := done.local(), done.remote(tb)
					engine := engineOf(tb, undivided(tb, store, &coordinator.Options{PerTarget: 256}), nil, local, remote)
					sides := []compare.Side{done.side("interlock", clients, local, engine), done.side("interlock HTTP", clients, remote, engine), commits(clients, commit)}
					if s.workflow != nil {
						sides = append(sides, dbosSide(tb, server(), clients))
					}
					return sides
				},
			})
		}
		if s.name == "postgres" {
			cases = append(cases, twoCoordinators(server), drainCase(server))
		}
	}
	return cases
}

// twoCoordinators serve the shards of one journal, compared with one coordinator.
func twoCoordinators(server func() *testbed.Server) benchmark {
	const clients = 32
	return benchmark{
		Case: compare.Case{Name: "saga/coordinators/2", Goals: []compare.Goal{faster("one coordinator", 1.5)}, Window: time.Second,
			Note: fmt.Sprintf("one Postgres that syncs to disk; pools of %d connections for each coordinator; %d clients, spread over the coordinators", sagaConnections, clients)},
		open: func(tb testing.TB) (sides []compare.Side) {
			for n, name := range []string{"one coordinator", "two coordinators"} {
				w := &effects{}
				local := w.local()
				var engines []*saga.Engine
				options := &txn.Options{Journal: fmt.Sprint("shared", fresh.Add(1)), Group: name, Coordinator: &coordinator.Options{PerTarget: 256}}
				for range 1 + n {
					engines = append(engines, engineOf(tb, openRuntime(tb, withPool(server()), options), nil, local))
				}
				sides = append(sides, w.side(name, clients, local, engines...))
			}
			return []compare.Side{sides[1], sides[0]}
		},
	}
}

// effects detects effects that are repeated or missing.
type effects struct {
	seen  sync.Map // by key
	once  atomic.Int64
	twice atomic.Int64
}

func (e *effects) add(key string) {
	if _, known := e.seen.LoadOrStore(key, true); known {
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

// ofTwoSteps checks sagas of two steps.
func (e *effects) ofTwoSteps(sagas int) []string { return e.check(2 * sagas) }

func (e *effects) act(ctx context.Context) string {
	e.add(branch.From(ctx).Key())
	return "done"
}

func (e *effects) local() saga.Definition[string] {
	return twoSteps("local", func(ctx context.Context, _ string) (string, error) { return e.act(ctx), nil })
}

// remote returns a saga whose participant is called over HTTP.
func (e *effects) remote(tb testing.TB) saga.Definition[string] {
	participant := httptest.NewServer(branchhttp.Handler(func(ctx context.Context, _ []byte) ([]byte, error) {
		return fmt.Appendf(nil, "%q", e.act(ctx)), nil
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

// side returns clients, spread over engines, that each wait for the end of a saga before they
// start the next.
func (e *effects) side(name string, clients int, d saga.Definition[string], engines ...*saga.Engine) compare.Side {
	return compare.Clients(name, clients, func(ctx context.Context, client int) error {
		return succeed(ctx, engines[client%len(engines)], d, "in")
	}, e.ofTwoSteps)
}

// succeed runs a saga to its end.
func succeed[I any](ctx context.Context, e *saga.Engine, d saga.Definition[I], in I) error {
	o, err := d.Do(ctx, e, fmt.Sprintf("saga/%d", fresh.Add(1)), in)
	if err == nil && o.State != saga.Succeeded {
		err = fmt.Errorf("it ended as %v", o.State)
	}
	return err
}

// onPostgres creates another journal at each call, and returns the store's minimal commit.
func onPostgres(tb testing.TB, server *testbed.Server) (driver.Journal, commit) {
	return table(tb, postgres.Pool(poolOf(tb, server, sagaConnections))), postgresCommit(tb, poolOf(tb, server, sagaConnections))
}

func onMariaDB(tb testing.TB, server *testbed.Server) (driver.Journal, commit) {
	return table(tb, mysql.DB(mariadbPool(tb, server, sagaConnections))), mariadbCommit(tb, mariadbPool(tb, server, sagaConnections))
}

func onEtcd(tb testing.TB, server *testbed.Server) (driver.Journal, commit) {
	client := dialEtcd(tb, server)
	return etcd.NewJournal(client, fmt.Sprintf("bench/%d/", fresh.Add(1))), etcdCommit(client)
}

// table creates a journal in a database.
func table[T any](tb testing.TB, db driver.BeginnerAt[T]) driver.Journal {
	t := journal.NewTable(db, fmt.Sprint("journal", fresh.Add(1)))
	ok(tb, driver.Create(tb.Context(), db, t))
	return t
}

// undivided returns a runtime that serves all shards of a journal.
func undivided(tb testing.TB, store driver.Journal, o *coordinator.Options) *txn.Runtime {
	locks := memory.NewSpace().Open(nil)
	closeAfter(tb, locks.Close)
	rt, err := txn.New(tb.Context(), store, locks, nil, &txn.Options{Shards: 8, Coordinator: o})
	ok(tb, err)
	return rt
}

// engineOf starts a runtime that drives sagas.
func engineOf(tb testing.TB, rt *txn.Runtime, hooks *observe.Saga, sagas ...saga.Defined) *saga.Engine {
	return start(tb, rt, func(c *coordinator.Coordinator) (*saga.Engine, error) {
		return saga.New(c, &saga.Options{Hooks: hooks}, sagas...)
	})
}

// start starts a runtime with an engine.
func start[E any](tb testing.TB, rt *txn.Runtime, create func(c *coordinator.Coordinator) (E, error)) E {
	closeAfter(tb, rt.Close)
	engine, err := create(rt.Coordinator())
	ok(tb, err)
	ok(tb, rt.Start(tb.Context()))
	return engine
}

func openRuntime(tb testing.TB, url string, o *txn.Options) *txn.Runtime {
	rt, err := txn.Open(tb.Context(), url, o)
	ok(tb, err)
	return rt
}

// withPool returns the URL of a database with a pool size.
func withPool(server *testbed.Server) string {
	return server.URL() + "&pool_max_conns=" + fmt.Sprint(sagaConnections)
}

// dbosSide runs workflows of two steps with DBOS Transact. Each is started under its own id
// and waited for in the process that runs it.
func dbosSide(tb testing.TB, server *testbed.Server, clients int) compare.Side {
	var done effects
	c, err := dbos.NewContext(context.Background(), dbos.Config{AppName: "bench", SystemDBPool: poolOf(tb, server, sagaConnections),
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	ok(tb, err)
	step := func(c dbos.Context, id, name string) error {
		_, err := dbos.RunAsStep(c, func(context.Context) (string, error) {
			done.add(id + name)
			return "done", nil
		}, dbos.WithStepName(name))
		return err
	}
	workflow := func(c dbos.Context, _ string) (string, error) {
		id, err := dbos.GetWorkflowID(c)
		if err == nil {
			err = step(c, id, "reserve")
		}
		if err == nil {
			err = step(c, id, "pay")
		}
		return "done", err
	}
	dbos.RegisterWorkflow(c, workflow, dbos.WithWorkflowName("two steps"))
	ok(tb, dbos.Launch(c))
	tb.Cleanup(func() { dbos.Shutdown(c, 5*time.Second) })
	return compare.Clients("DBOS", clients, func(context.Context, int) error {
		h, err := dbos.RunWorkflow(c, workflow, "in", dbos.WithWorkflowID(fmt.Sprintf("workflow/%d", fresh.Add(1))))
		if err == nil {
			_, err = h.GetResult()
		}
		return err
	}, done.ofTwoSteps)
}
