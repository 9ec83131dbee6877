package memory_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/drivertest"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

func TestValues(t *testing.T) {
	drivertest.RunValues(t, inMemory(func() driver.Values { return memory.NewSpace().Values() }))
}

func TestVersions(t *testing.T) {
	drivertest.RunVersions(t, inMemory(func() driver.Versions { return memory.NewVersions() }))
}

func TestOnce(t *testing.T) {
	drivertest.RunOnce(t, inMemory(func() driver.Once { return memory.NewOnce() }))
}

func TestKeyValues(t *testing.T) {
	drivertest.RunKeyValues(t, inMemory(func() driver.KeyValues { return memory.NewKeyValues() }))
}

func TestIdempotency(t *testing.T) {
	drivertest.RunIdempotency(t, inMemory(func() driver.Idempotency { return memory.NewIdempotency() }))
}

func TestLimiter(t *testing.T) {
	drivertest.RunLimiter(t, inMemory(func() driver.Limiter { return memory.NewLimiter() }))
}

func TestStock(t *testing.T) {
	drivertest.RunStock(t, inMemory(func() driver.Stock { return memory.NewStock() }))
}

func TestNotifier(t *testing.T) {
	drivertest.RunNotifier(t, inMemory(func() driver.Notifier { return &memory.Notifier{} }))
}

func TestSinkSuite(t *testing.T) {
	drivertest.RunSink(t, inMemory(func() drivertest.KeptSink { return keptSink{&memory.Sink{}} }))
}

func TestLattices(t *testing.T) {
	h := inMemory(func() driver.Lattices { return memory.NewLattices() })
	h.Without |= drivertest.Durable
	drivertest.RunLattices(t, h)
}

func TestJournal(t *testing.T) {
	h := inMemory(func() driver.Journal { return memory.NewJournal() })
	h.Bubble = nil
	drivertest.RunJournal(t, h)
}

func TestParticipant(t *testing.T) {
	h := inMemory(func() drivertest.Branches {
		p := memory.NewParticipant()
		return drivertest.PreparerOf(p, func(_ context.Context, b *memory.Branch, key string, value int) error {
			return b.Set(key, int64(value))
		}, func(_ context.Context, key string) (int, error) { return int(p.Get(key)), nil })
	})
	h.Bubble = nil
	h.Without |= drivertest.Durable
	drivertest.RunParticipant(t, h)
}

// inMemory returns the harness of stores that new returns, in virtual time.
func inMemory[S any](new func() S) drivertest.StoreHarness[S] {
	return drivertest.StoreHarness[S]{
		Bubble:  virtual.Test,
		Start:   func(*testing.T, bool) drivertest.StoreBackend[S] { return single[S]{new()} },
		Without: drivertest.Servers | drivertest.LostReplies,
	}
}

// single is one store for all openings.
type single[S any] struct{ store S }

func (s single[S]) Open(*testing.T) (S, error) { return s.store, nil }

func (s single[S]) Beside(*testing.T) (S, error) { return s.store, nil }

func (single[S]) Faults() drivertest.Faults { return nil }

type keptSink struct{ *memory.Sink }

func (k keptSink) Kept(_ context.Context, topic string) ([]driver.Message, error) {
	return slices.DeleteFunc(k.Messages(), func(m driver.Message) bool { return m.Topic != topic }), nil
}

func TestFence(t *testing.T) {
	drivertest.RunFence(t, drivertest.FenceHarness{
		Bubble: virtual.Test,
		Start: func(*testing.T, bool) drivertest.FenceBackend {
			space := memory.NewSpace()
			return store{single[driver.Fence]{space.Fence()}, space}
		},
		Without: drivertest.Servers | drivertest.LostReplies,
	})
}

// store is the fence of a space.
type store struct {
	single[driver.Fence]
	space *memory.Space
}

func (s store) Get(_ *testing.T, key string) ([]byte, bool) { return s.space.Fence().Get(key) }

func (s store) Rebases(_ *testing.T, resource string) (all []drivertest.Rebased) {
	for _, r := range s.space.Fence().Rebases(resource) {
		all = append(all, drivertest.Rebased{From: r.From, To: r.To, Reason: r.Reason, By: r.By})
	}
	return all
}

// TestFenceIsOneForTheSpace, and callers cannot change its values.
func TestFenceIsOneForTheSpace(t *testing.T) {
	space := memory.NewSpace()
	token, err := interlock.NewToken(1, 0)
	testbed.OK(t, err)
	testbed.OK(t, space.Fence().Enter(t.Context(), driver.Raise{Resource: "r", Token: token}, driver.Write{Key: "k", Value: []byte("v")}))
	value, _ := space.Fence().Get("k")
	value[0] = 'x'
	if value, ok := space.Fence().Get("k"); !ok || string(value) != "v" {
		t.Fatalf("%q, %v", value, ok)
	}
	if _, ok := memory.NewSpace().Fence().Get("k"); ok {
		t.Fatal("two spaces share a store")
	}
}

func xid(transaction string) driver.XID { return driver.XID{Transaction: transaction, Branch: "bank"} }

// kept starts a branch that adds to a number.
func kept(t *testing.T, p *memory.Participant, x driver.XID) driver.Preparing {
	t.Helper()
	tx, branch, err := p.Begin(t.Context(), x)
	testbed.OK(t, err)
	if n, err := tx.Add(x.Transaction, 5); n != 5 || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	return branch
}

func prepare(t *testing.T, b driver.Preparing, want driver.Vote) {
	t.Helper()
	if vote, err := b.Prepare(t.Context()); vote != want || err != nil {
		t.Fatalf("voted %v, %v, want %v", vote, err, want)
	}
}

// TestPreparedOutlastsRestart: branches that voted yes keep their locks after a crash; others are
// gone.
func TestPreparedOutlastsRestart(t *testing.T) {
	p := memory.NewParticipant()
	prepare(t, kept(t, p, xid("a")), driver.VoteYes)
	lost := kept(t, p, xid("b"))
	testbed.WantKind(t, p.Commit(t.Context(), xid("b")), interlock.Bug, nil)
	p.Restart()
	if doubts, err := p.InDoubt(t.Context()); len(doubts) != 1 || doubts[0].XID != xid("a") || doubts[0].Since.IsZero() || err != nil {
		t.Errorf("%+v, %v", doubts, err)
	}
	vote, err := lost.Prepare(t.Context())
	testbed.WantKind(t, err, interlock.Definite, nil)
	if vote != driver.VoteNo || p.Get("a") != 0 {
		t.Errorf("voted %v; a is %d before its commit", vote, p.Get("a"))
	}
	tx, other, err := p.Begin(t.Context(), xid("c"))
	testbed.OK(t, err)
	_, err = tx.Get("a")
	testbed.WantKind(t, err, interlock.Retryable, interlock.ErrHeld)
	prepare(t, other, driver.VoteReadOnly)
	for range 2 {
		if err := p.Commit(t.Context(), xid("a")); err != nil || p.Get("a") != 5 {
			t.Errorf("%v, %d", err, p.Get("a"))
		}
	}
	testbed.WantKind(t, p.Rollback(t.Context(), xid("a")), interlock.Definite, driver.ErrHeuristic)
	testbed.WantKind(t, p.Commit(t.Context(), xid("b")), interlock.Definite, driver.ErrHeuristic)
	testbed.OK(t, p.Rollback(t.Context(), xid("never")))
	_, _, err = p.Begin(t.Context(), xid("never"))
	testbed.WantKind(t, err, interlock.Bug, nil)
}

func TestQueue(t *testing.T) {
	drivertest.RunQueue(t, drivertest.QueueHarness{Bubble: virtual.Test,
		Start: func(*testing.T) drivertest.QueueBackend { return queues{memory.NewQueue()} }})
}

// queues implements the suite's backend on one Queue.
type queues struct{ *memory.Queue }

func (q queues) Add(_ *testing.T, name string, messages ...driver.QueueMessage) error {
	return q.Queue.Add(name, messages...)
}

func (q queues) DeadLetters(_ *testing.T, name string) (ids []string) {
	for _, m := range q.Queue.DeadLetters(name) {
		ids = append(ids, m.ID)
	}
	return ids
}

func (q queues) Replay(t *testing.T, name string, ids ...string) {
	testbed.OK(t, q.Queue.Replay(name, ids...))
}

func (q queues) Resume(t *testing.T, name, key string) {
	testbed.OK(t, q.Queue.Resume(name, key))
}

// TestResumeDuringALease: a parked key stays with the consumer that still has messages of it.
func TestResumeDuringALease(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		q := memory.NewQueue()
		testbed.OK(t, q.Add("q", driver.QueueMessage{Key: "k"}, driver.QueueMessage{Key: "k"}))
		join := func() driver.QueueConsumer {
			c, err := q.Join(t.Context(), "q", driver.QueueOptions{})
			testbed.OK(t, err)
			t.Cleanup(func() { testbed.OK(t, c.Close(context.Background())) })
			return c
		}
		limit := driver.QueueLimit{Messages: 10, Bytes: 1000}
		first, second := join(), join()
		all, err := first.Receive(t.Context(), limit)
		testbed.OK(t, err)
		settle := func(m *driver.Received, o driver.Outcome) {
			for _, err := range first.Settle(t.Context(), []driver.Settlement{{Received: m, Outcome: o}}) {
				testbed.OK(t, err)
			}
		}
		settle(all[0], driver.Park)
		testbed.OK(t, q.Resume("q", "k"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if got, err := second.Receive(ctx, limit); err == nil {
			t.Errorf("%d messages of a leased key are delivered", len(got))
		}
		settle(all[1], driver.Release)
		got, err := second.Receive(t.Context(), limit)
		testbed.OK(t, err)
		if len(got) != 2 {
			t.Errorf("%d messages are delivered", len(got))
		}
	})
}

// Age advances virtual time.
func (q queues) Age(_ *testing.T, _ string, d time.Duration) { time.Sleep(d) }

// branches is a barrier with counters.
type branches struct {
	single[driver.Barrier[memory.Business]]
	mu     sync.Mutex
	counts map[string]int64
}

func (b *branches) business(w drivertest.BarrierWork) memory.Business {
	return func(result []byte, known bool) ([]byte, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if w.Limit != 0 && b.counts[w.Key] >= w.Limit {
			return nil, memory.Refusal("full")
		}
		if w.Known {
			w.Add, _ = strconv.ParseInt(string(result), 10, 64)
		}
		if !w.Known || known {
			b.counts[w.Key] += w.Add
		}
		if w.Fail {
			return nil, errors.New("broken")
		}
		return []byte(w.Result), nil
	}
}

func TestBarrier(t *testing.T) {
	of := func(b drivertest.BarrierBackend[memory.Business]) *branches { return b.(*branches) }
	drivertest.RunBarrier(t, drivertest.BarrierHarness[memory.Business]{
		StoreHarness: drivertest.StoreHarness[driver.Barrier[memory.Business]]{
			Bubble: virtual.Test,
			Start: func(*testing.T, bool) drivertest.BarrierBackend[memory.Business] {
				return &branches{single: single[driver.Barrier[memory.Business]]{memory.NewBarrier()}, counts: map[string]int64{}}
			},
			Without: drivertest.Servers | drivertest.LostReplies,
		},
		Business: func(b drivertest.BarrierBackend[memory.Business], w drivertest.BarrierWork) memory.Business {
			return of(b).business(w)
		},
		Count: func(_ *testing.T, b drivertest.BarrierBackend[memory.Business], key string) int64 {
			of(b).mu.Lock()
			defer of(b).mu.Unlock()
			return of(b).counts[key]
		},
	})
}

// TestBarrierPanicIsAFailure: the undo of a first call that panicked runs.
func TestBarrierPanicIsAFailure(t *testing.T) {
	b, hash := memory.NewBarrier(), sha256.Sum256(nil)
	c := driver.BarrierCall{Transaction: "t", Branch: "b", Phase: driver.BarrierFirst, Hash: hash[:], Begun: time.UnixMilli(1)}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is lost")
			}
		}()
		_, _ = b.Call(t.Context(), c, func([]byte, bool) ([]byte, error) { panic("broken") })
	}()
	c.Phase = driver.BarrierUndo
	got, err := b.Call(t.Context(), c, func(_ []byte, known bool) ([]byte, error) {
		if known {
			t.Error("it got a result")
		}
		return nil, nil
	})
	if err != nil || !got.Ran || got.State != driver.BarrierUndone {
		t.Errorf("%+v, %v", got, err)
	}
}

func ExampleBarrier() {
	ctx, barrier, seats := context.Background(), memory.NewBarrier(), 1
	hash := sha256.Sum256([]byte(`{"seats":1}`))
	call := driver.BarrierCall{Transaction: "order/42", Branch: "seats", Phase: driver.BarrierFirst, Hash: hash[:], Begun: time.Now()}
	hold := func([]byte, bool) ([]byte, error) {
		if seats == 0 {
			return nil, memory.Refusal("no seat")
		}
		seats--
		return []byte("seat 7"), nil
	}
	for range 2 {
		answer, err := barrier.Call(ctx, call, hold)
		fmt.Println(answer.Outcome, string(answer.Result), answer.Ran, err)
	}
	call.Transaction = "order/43"
	answer, err := barrier.Call(ctx, call, hold)
	fmt.Println(answer.Outcome, string(answer.Result), answer.Ran, err)
	// Output:
	// done seat 7 true <nil>
	// done seat 7 false <nil>
	// no no seat true <nil>
}

// TestJournalCosts: due and forgettable transactions are found without reading the others.
func TestJournalCosts(t *testing.T) {
	j, now := memory.NewJournal(), time.Now()
	const many = 20_000
	begin := func(id string, due time.Time) {
		if errs := j.Append(t.Context(), []driver.Append{{Transaction: id, Records: []driver.Record{{Kind: "begin", Sum: []byte{1}}}, Due: due}}); errs[0] != nil {
			t.Fatal(errs[0])
		}
	}
	for i := range many {
		begin(fmt.Sprint("later", i), now.Add(time.Hour+time.Duration(i)*time.Second))
		begin(fmt.Sprint("ended", i), time.Time{})
	}
	if allocs := testing.AllocsPerRun(100, func() {
		if heads, err := j.Due(t.Context(), 0, driver.Head{}, 10); len(heads) != 10 || err != nil {
			t.Fatalf("%d heads, %v", len(heads), err)
		}
		if due, err := j.DueShards(t.Context(), []int{0}, now); len(due) > 0 || err != nil {
			t.Fatalf("%v are due, %v", due, err)
		}
		if n, err := j.Forget(t.Context(), now.Add(-time.Hour), 10); n > 0 || err != nil {
			t.Fatalf("%d are forgotten, %v", n, err)
		}
	}); allocs > 100 {
		t.Errorf("%v allocations to find ten transactions of %d", allocs, 2*many)
	}
	for left := many; left > 0; left -= 100 {
		if n, err := j.Forget(t.Context(), time.Now().Add(time.Second), 100); n != 100 || err != nil {
			t.Fatalf("%d are forgotten, %v", n, err)
		}
	}
}

func TestMain(m *testing.M) { testbed.Main(m) }

const ttl = 6 * time.Second

func TestFenced(t *testing.T) {
	drivertest.RunFenced(t, fenced())
}

func fenced() drivertest.Harness {
	return harness(func(s *memory.Space) driver.Fenced { return s.Open(&memory.Options{TTL: ttl}) })
}

func TestWatcher(t *testing.T) { drivertest.RunWatcher(t, fenced()) }

func TestBatch(t *testing.T) { drivertest.RunBatch(t, fenced()) }

func TestBreaker(t *testing.T) { drivertest.RunBreaker(t, fenced()) }

func TestPlain(t *testing.T) {
	drivertest.RunAdvisory(t, harness(func(s *memory.Space) driver.Fenced {
		return drivertest.Advisory(s.OpenPlain(&memory.Options{TTL: ttl}))
	}))
}

// TestWaiterOfAPausedProcess: a waiter whose place expired, because its process did not renew it, waits again.
func TestWaiterOfAPausedProcess(t *testing.T) {
	space := memory.NewSpace()
	holder, waiter := space.Open(nil), space.Open(&memory.Options{TTL: 50 * time.Millisecond})
	defer holder.Close(t.Context())
	defer waiter.Close(t.Context())
	_, err := holder.Acquire(t.Context(), driver.Request{Name: "a", Owner: "holder"})
	testbed.OK(t, err)
	paused := make(chan struct{}) // the process does not renew
	proceed := sync.OnceFunc(func() { close(paused) })
	defer proceed()
	_, err = waiter.Acquire(t.Context(), driver.Request{Name: "b", Owner: "paused",
		Events: driver.Events{Renewed: func(time.Duration, error) { <-paused }}})
	testbed.OK(t, err)
	waiting, answer := make(chan struct{}, 100), make(chan error, 1)
	go func() {
		_, err := waiter.Acquire(t.Context(), driver.Request{Name: "a", Owner: "waiter",
			Events: driver.Events{Waiting: func(driver.Place) { waiting <- struct{}{} }}})
		answer <- err
	}()
	<-waiting
	waiters := func() int {
		state, err := holder.Lock(t.Context(), "a")
		testbed.OK(t, err)
		return len(state.Waiters)
	}
	testbed.Eventually(t, "the place has expired", 10*time.Second, func() bool { return waiters() == 0 })
	proceed()
	testbed.Eventually(t, "it waits again", 10*time.Second, func() bool { return waiters() == 1 })
	testbed.OK(t, holder.Release(t.Context(), "a", "holder"))
	testbed.OK(t, <-answer)
}

// harness runs the whole suite in virtual time.
func harness(open func(*memory.Space) driver.Fenced) drivertest.Harness {
	return drivertest.Harness{
		Bubble: virtual.Test,
		Start: func(*testing.T, bool) drivertest.Backend {
			return &backend{space: memory.NewSpace(), open: open}
		},
		TTL:        ttl,
		Heartbeat:  ttl / 3,
		DeadWaiter: ttl, // a waiter's lease is as long as a claim's
		Without:    drivertest.Servers | drivertest.LostPushes,
	}
}

type backend struct {
	space *memory.Space
	open  func(*memory.Space) driver.Fenced
}

func (b *backend) Open(t *testing.T) (driver.Fenced, error) {
	d := b.open(b.space)
	t.Cleanup(func() {
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return d, nil
}

// Crash: a closed driver renews nothing and releases nothing.
func (b *backend) Crash(t *testing.T, d driver.Fenced) {
	testbed.OK(t, d.Close(t.Context()))
}

func (b *backend) Residue(t *testing.T, name string) []string {
	state, err := b.space.Open(nil).Lock(t.Context(), name)
	testbed.OK(t, err)
	var owners []string
	if state.Holder != nil {
		owners = append(owners, state.Holder.Owner)
	}
	for _, w := range state.Waiters {
		owners = append(owners, w.Owner)
	}
	return owners
}

func (b *backend) Delete(_ *testing.T, name string) { b.space.Revoke(name) }

func (b *backend) Faults() drivertest.Faults { return nil }
