package interop

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	_ "github.com/interlock-dev/interlock/driver/etcd" // etcd://
	"github.com/interlock-dev/interlock/driver/memory"
	_ "github.com/interlock-dev/interlock/driver/mysql"    // mysql://
	_ "github.com/interlock-dev/interlock/driver/postgres" // postgres://
	_ "github.com/interlock-dev/interlock/driver/redis"    // redis://
	"github.com/interlock-dev/interlock/history"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/txn/percolator"
	"github.com/interlock-dev/interlock/txn/percolator/percolatortest"
	"github.com/interlock-dev/interlock/txn/timestamp"
)

const transactors = 6

// keyValueServer is a server that loses nothing in a crash, with a path for each process.
type keyValueServer struct {
	prefix string
	server *testbed.Server
	paths  []*testbed.Proxy
	stores []driver.KeyValues
}

func startKeyValues(t *testing.T, prefix string) *keyValueServer {
	t.Helper()
	s := &keyValueServer{prefix: prefix}
	var url string
	switch prefix {
	case "etcd/":
		s.server, url = testbed.Etcd(t), "etcd://%s"
	case "redis/":
		s.server, url = testbed.Redis(t, "--appendonly", "yes", "--appendfsync", "always"), "redis://%s"
	case "postgres/":
		s.server, url = testbed.Postgres(t), "postgres://postgres@%s/postgres?sslmode=disable"
	case "mariadb/":
		s.server, url = testbed.MariaDB(t), "mysql://root@%s/test"
	}
	for range transactors {
		path := testbed.NewProxy(t, s.server.Addr())
		b, err := backend.Open(t.Context(), fmt.Sprintf(url, path.Addr()))
		testbed.OK(t, err)
		t.Cleanup(func() { _ = b.Close(context.Background()) })
		store, _ := b.KeyValues("percolator/")
		s.paths, s.stores = append(s.paths, path), append(s.stores, store)
	}
	return s
}

// disturb breaks the server or the path of one process, and repairs it.
func (s *keyValueServer) disturb(draw func(int) int) {
	path, pause := s.paths[draw(len(s.paths))], time.Duration(50+draw(300))*time.Millisecond
	switch draw(5) {
	case 0:
		path.Cut()
	case 1:
		path.DropReplies()
	case 2:
		path.CutAfter(draw(2000))
	case 3:
		s.server.Pause()
		defer s.server.Resume()
	case 4:
		s.server.Kill()
		defer s.server.Restart()
	}
	time.Sleep(pause)
	path.Heal()
}

// percolatorBed has processes that share one or more stores. The first store has the oracle.
type percolatorBed struct {
	servers []*keyValueServer
	draw    func(int) int
	ran     int
}

func newPercolatorBed(t *testing.T, prefixes ...string) *percolatorBed {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random, mu := rand.New(rand.NewPCG(seed, 1)), sync.Mutex{}
	b := &percolatorBed{draw: func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}}
	for _, prefix := range prefixes {
		b.servers = append(b.servers, startKeyValues(t, prefix))
	}
	return b
}

// oracle opens an oracle as a new process does, which takes over from the leader.
func (b *percolatorBed) oracle(process int) (*timestamp.Oracle, error) {
	return timestamp.NewOracle(b.servers[0].stores[process], "oracle", nil)
}

func (b *percolatorBed) open(ctx context.Context, process int, crashes bool, o *percolator.Options) (*percolator.DB, error) {
	oracle, err := b.oracle(process)
	if err != nil {
		return nil, err
	}
	crashed, stores := new(atomic.Bool), percolator.Stores{}
	for _, s := range b.servers {
		stores[s.prefix] = s.stores[process]
		if crashes {
			stores[s.prefix] = percolatortest.Path{KeyValues: s.stores[process], Draw: b.draw, Crashed: crashed}
		}
	}
	return percolator.Open(ctx, oracle, stores, o)
}

// workload returns a workload with its own keys, which runs for a time and at least some transactions.
func (b *percolatorBed) workload(d time.Duration, o *percolator.Options) percolatortest.Workload {
	end := time.Now().Add(d)
	w := percolatortest.Workload{
		Processes: transactors,
		Open: func(ctx context.Context, process int) (*percolator.DB, error) {
			return b.open(ctx, process, true, o)
		},
		More: func(_, done int) bool { return done < 30 || time.Now().Before(end) },
		Draw: b.draw,
	}
	b.ran++
	for i := range transactors {
		w.Keys = append(w.Keys, fmt.Sprintf("%s%d/%d", b.servers[i%len(b.servers)].prefix, b.ran, i))
	}
	return w
}

// together is workload for one process with many clients. It leads the oracle, which is in the
// store of all keys, and runs until some keys were written in one phase.
func (b *percolatorBed) together(t *testing.T, d time.Duration) percolatortest.Workload {
	t.Helper()
	w := b.workload(d, nil)
	keys := new(atomic.Int64)
	store := &percolatortest.Path{KeyValues: b.servers[0].stores[0], Draw: b.draw, OnePhase: keys}
	oracle, err := timestamp.NewOracle(store, "oracle", nil)
	testbed.OK(t, err)
	open := sync.OnceValues(func() (*percolator.DB, error) {
		for {
			db, err := percolator.Open(t.Context(), oracle, percolator.Stores{b.servers[0].prefix: store}, nil)
			if err == nil || t.Context().Err() != nil {
				return db, err
			}
		}
	})
	w.Open = func(context.Context, int) (*percolator.DB, error) { return open() }
	more := w.More
	w.More = func(n, done int) bool { return more(n, done) || keys.Load() < 60 }
	return w
}

// under runs a workload during faults of servers and paths.
func (b *percolatorBed) under(t *testing.T, name string, run func(ctx context.Context) (int, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 3*time.Minute, fmt.Errorf("%s does not end", name))
	defer cancel()
	ended := make(chan struct{})
	var done int
	var err error
	go func() {
		defer close(ended)
		done, err = run(ctx)
	}()
	faults := 0
	for running := true; running; {
		select {
		case <-ended:
			running = false
		case <-time.After(time.Duration(50+b.draw(300)) * time.Millisecond):
			b.servers[b.draw(len(b.servers))].disturb(b.draw)
			faults++
		}
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	t.Logf("%s: %d done, %d faults", name, done, faults)
}

// timestamps requests timestamps in all processes, whose oracles replace each other as
// leaders.
func (b *percolatorBed) timestamps(ctx context.Context, d time.Duration) (int, error) {
	var text bytes.Buffer
	w, err := history.NewWriter(&text, history.Header{Run: "timestamps"}, nil)
	if err != nil {
		return 0, err
	}
	var running sync.WaitGroup
	var issued atomic.Int64
	end := time.Now().Add(d)
	for p := range transactors {
		running.Go(func() {
			o, err := b.oracle(p)
			for n := 1; err == nil && ctx.Err() == nil && (issued.Load() < 30 || time.Now().Before(end)); n++ {
				call := w.Invoke(history.Event{Lane: fmt.Sprint("p", p), Op: history.OpAcquire, Key: "oracle"})
				at, failed := o.Next(ctx)
				if failed != nil {
					call.Fail(failed.Error())
					continue
				}
				call.Granted(interlock.Token(at), "")
				issued.Add(1)
				if n%20 == 0 {
					o, err = b.oracle(p) // the process is replaced
				}
			}
		})
	}
	running.Wait()
	if err := w.Close(); err != nil {
		return 0, err
	}
	r, err := history.NewReader(&text)
	if err != nil {
		return 0, err
	}
	report, err := history.CheckTokens(r.Events())
	if err == nil && !report.OK() {
		err = fmt.Errorf("%v", report)
	}
	return int(issued.Load()), cmp.Or(err, context.Cause(ctx))
}

// TestTimestampsEnd checks that a run without timestamps does not pass.
func TestTimestampsEnd(t *testing.T) {
	b := &percolatorBed{servers: []*keyValueServer{{stores: slices.Repeat([]driver.KeyValues{memory.NewKeyValues()}, transactors)}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := b.timestamps(ctx, 0); err == nil {
		t.Errorf("%d timestamps, and no error", n)
	}
}

// TestPercolator runs transactions on real stores, and on all of them together. Meanwhile
// connections are cut, replies are lost, stores are paused or restarted, and clients die at any
// request. INTERLOCK_SOAK_PERCOLATOR is how long each workload runs.
func TestPercolator(t *testing.T) {
	each := 400 * time.Millisecond
	rounds := 1
	if text := os.Getenv("INTERLOCK_SOAK_PERCOLATOR"); text != "" {
		soak, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("INTERLOCK_SOAK_PERCOLATOR is not a duration: %v", err)
		}
		each = 5 * time.Second
		rounds = max(1, int(soak/each))
	}
	for _, prefixes := range [][]string{{"etcd/"}, {"redis/"}, {"postgres/"}, {"mariadb/"}, {"etcd/", "redis/", "postgres/", "mariadb/"}} {
		t.Run(strings.ReplaceAll(strings.Join(prefixes, "+"), "/", ""), func(t *testing.T) {
			t.Parallel()
			b := newPercolatorBed(t, prefixes...)
			b.writeSkew(t)
			for range rounds {
				b.under(t, "bank", func(ctx context.Context) (int, error) {
					return percolatortest.Bank(ctx, b.workload(each, nil))
				})
				b.under(t, "registers", func(ctx context.Context) (int, error) {
					if len(prefixes) == 1 {
						return b.registers(ctx, b.together(t, each))
					}
					return b.registers(ctx, b.workload(each, nil))
				})
				for _, serializable := range []bool{false, true} {
					b.under(t, fmt.Sprintf("appends, serializable %v", serializable), func(ctx context.Context) (int, error) {
						return percolatortest.Appends(ctx, b.workload(each, &percolator.Options{Serializable: serializable}), serializable)
					})
				}
				b.under(t, "timestamps", func(ctx context.Context) (int, error) { return b.timestamps(ctx, each) })
			}
		})
	}
}

// writeSkew checks that it occurs with snapshot isolation, and not if serializable.
func (b *percolatorBed) writeSkew(t *testing.T) {
	t.Helper()
	for serializable, want := range map[bool]int{false: 0, true: 1} {
		db, err := b.open(t.Context(), 0, false, &percolator.Options{Serializable: serializable})
		testbed.OK(t, err)
		doctors := [2]string{b.servers[0].prefix + "alice", b.servers[len(b.servers)-1].prefix + "bob"}
		left, err := percolatortest.WriteSkew(t.Context(), db, doctors, percolatortest.Number)
		if err != nil || left != want {
			t.Errorf("serializable %v: %d on call, want %d: %v", serializable, left, want, err)
		}
		if err := db.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
