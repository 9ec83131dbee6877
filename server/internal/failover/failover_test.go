package failover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/txn/saga"
)

// bound is the time limit for the transactions of a dead coordinator: its claims
// expire, another one takes over and repeats the calls.
const bound = 30 * time.Second

func kills(t *testing.T) int {
	text := os.Getenv("INTERLOCK_KILLS")
	if text == "" {
		return 3
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("INTERLOCK_KILLS=%s is not a number above zero", text)
	}
	return n
}

var systems = map[string]func(testing.TB, ...string) *testbed.Server{
	"etcd": testbed.Etcd, "postgres": testbed.Postgres, "mariadb": testbed.MariaDB,
}

// TestCoordinatorsDie runs transfers on two coordinators and repeatedly kills one, or
// stops it past its claims and wakes it beside its successor. Every transfer must end
// within a bound, completely or not at all, and none twice.
func TestCoordinatorsDie(t *testing.T) {
	for name, start := range systems {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, start(t))
			for i := range kills(t) {
				w.trouble(i)
			}
			w.judge()
		})
	}
}

// world is a bank, a journal and its coordinators.
type world struct {
	t            *testing.T
	bank         *bank
	url          string
	engine       *engine // starts transfers, and drives none
	random       *rand.Rand
	coordinators [2]*testbed.Process
	ids          []string
}

func newWorld(t *testing.T, server *testbed.Server) *world {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	w := &world{t: t, bank: newBank(t, "a", "b", "c", "d"), url: address(server), random: rand.New(rand.NewPCG(seed, 0))}
	var err error
	if w.engine, err = open(t.Context(), w.url, w.bank.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.engine.close)
	for i := range w.coordinators {
		w.coordinators[i] = crash.Start(t, "coordinator", 0, w.url, w.bank.url)
	}
	return w
}

// trouble starts transfers, strikes one of the coordinators while they run, and waits
// until all have ended.
func (w *world) trouble(round int) {
	ids := make(chan string, 100)
	var work sync.WaitGroup
	for i := range 40 {
		id := fmt.Sprintf("%d-%d", round, i)
		w.ids = append(w.ids, id)
		names := []string{"a", "b", "c", "d", "closed"}
		of := transfer{From: names[w.random.IntN(4)], To: names[w.random.IntN(5)], Amount: w.random.Int64N(400)}
		work.Go(func() {
			for w.engine.transfer.Start(w.t.Context(), w.engine.Engine, id, of) != nil && w.t.Context().Err() == nil {
			}
			ids <- id
		})
		if i == 20 {
			w.strike(round, &work)
		}
	}
	defer work.Wait()
	ctx, cancel := context.WithTimeout(w.t.Context(), bound)
	defer cancel()
	for range 40 {
		id := <-ids
		if _, err := w.engine.Wait(ctx, id); err != nil && !errors.Is(err, saga.ErrCompensated) {
			w.t.Fatalf("round %d: %s: %v\n%s", round, id, err, w.coordinators[0].Stderr())
		}
	}
}

// strike kills a coordinator and starts another in its place. Every third time it stops
// one for longer than its claims last.
func (w *world) strike(round int, work *sync.WaitGroup) {
	n := w.random.IntN(len(w.coordinators))
	p := w.coordinators[n]
	if round%3 == 2 {
		p.Pause()
		work.Go(func() {
			time.Sleep(2 * ttl) // the time of the pause: there is no condition to wait for
			p.Resume()
		})
		return
	}
	p.Kill()
	p.Wait(bound)
	w.coordinators[n] = crash.Start(w.t, "coordinator", 0, w.url, w.bank.url)
}

func (w *world) judge() {
	w.t.Helper()
	succeeded := map[string]bool{}
	ends := map[saga.State]int{}
	for _, id := range w.ids {
		o, err := w.engine.Look(w.t.Context(), id)
		if err != nil {
			w.t.Fatal(err)
		}
		succeeded[id] = o.State == saga.Succeeded
		ends[o.State]++
		w.owners(id)
	}
	w.bank.judge(w.t, w.ids, succeeded)
	if n, err := w.engine.journal.Unscheduled(w.t.Context()); n != 0 || err != nil {
		w.t.Errorf("%d unscheduled, %v", n, err)
	}
	if w.t.Log(ends); ends[saga.Succeeded] == 0 || ends[saga.Compensated] == 0 {
		w.t.Errorf("%v shows too little", ends)
	}
}

// owners checks that no former owner has appended after its successor.
func (w *world) owners(id string) {
	_, entries, err := w.engine.journal.Open(w.t.Context(), id)
	if err != nil {
		w.t.Fatal(err)
	}
	var epoch interlock.Token
	for _, e := range entries {
		if e.Epoch != 0 && e.Epoch < epoch {
			w.t.Errorf("%s: record %d was appended under epoch %d, after epoch %d", id, e.Position, e.Epoch, epoch)
		}
		epoch = max(epoch, e.Epoch)
	}
}

// address returns the URL of a server in the form of backends.
func address(s *testbed.Server) string {
	url := strings.Replace(s.URL(), "http://", "etcd://", 1)
	if rest, found := strings.CutPrefix(url, "root@tcp("); found {
		url = "mysql://root@" + strings.Replace(rest, ")", "", 1)
	}
	return url
}
