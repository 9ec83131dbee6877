package twopc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/observe"
	"github.com/interlock-dev/interlock/txn/coordinator"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
	"github.com/interlock-dev/interlock/txn/journal"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests fail calls by the thousand
	crash.Main(m, roles)
}

// The helpers that the tests of txn share.
var (
	ok, wantKind, same = txntest.OK, txntest.WantKind, txntest.Same
	bubble, runBubble  = virtual.Test, txntest.RunBubble
)

// errCrashed is the error of every call in a crashed process, errNetwork that of a lost
// message. Neither is Definite: both prove nothing.
var (
	errCrashed = errors.New("crashed")
	errNetwork = errors.New("lost on its way")
)

// The places of a message: it leaves its process, or its answer returns.
const (
	leaving   = "leaves"
	returning = "returns"
)

// network carries all messages of one process. Each has a label, such as "north commit 1
// leaves", by which a test can intercept it.
type network struct {
	mu     sync.Mutex
	counts map[string]int
	passed []string                                             // labels, in their order
	meet   func(at string) error                                // the test's fault for a message there; nil is none
	keep   func(label string, deliver func() error) (lost bool) // the test may deliver it later; nil keeps none
	dead   bool
	died   chan struct{}
}

func newNetwork(meet func(at string) error) *network {
	return &network{counts: map[string]int{}, meet: meet, died: make(chan struct{})}
}

// carry takes a message to its target and the answer back.
func (n *network) carry(target, what string, deliver func() error) error {
	n.mu.Lock()
	n.counts[target+" "+what]++
	label := fmt.Sprintf("%s %s %d ", target, what, n.counts[target+" "+what])
	n.mu.Unlock()
	if err := n.pass(label + leaving); err != nil {
		return err
	}
	if n.keep != nil && n.keep(label+leaving, deliver) {
		return errNetwork
	}
	err := deliver()
	if lost := n.pass(label + returning); lost != nil {
		return lost
	}
	return err
}

func (n *network) pass(label string) error {
	n.mu.Lock()
	if !n.dead {
		n.passed = append(n.passed, label)
	}
	n.mu.Unlock()
	return n.befall(label)
}

// befall applies the test's fault to a message. It may block.
func (n *network) befall(label string) error {
	if n.over() {
		return errCrashed
	}
	var err error
	if n.meet != nil {
		err = n.meet(label)
	}
	if errors.Is(err, errCrashed) {
		n.die()
	}
	if n.over() {
		return errCrashed
	}
	return err
}

func (n *network) over() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dead
}

func (n *network) labels() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.passed)
}

// crashAt crashes a process at a label.
func crashAt(label string) func(string) error {
	return func(at string) error {
		if at == label {
			return errCrashed
		}
		return nil
	}
}

// losing loses the messages whose labels begin with one of these texts.
func losing(labels ...string) func(at string) error {
	var always atomic.Bool
	always.Store(true)
	return losingWhile(&always, labels...)
}

func losingWhile(lost *atomic.Bool, labels ...string) func(at string) error {
	return func(at string) error {
		if lost.Load() && slices.ContainsFunc(labels, func(l string) bool { return strings.HasPrefix(at, l) }) {
			return errNetwork
		}
		return nil
	}
}

// wire connects one process to a participant.
type wire struct {
	*memory.Participant
	name    string
	network *network
}

func (w wire) Begin(ctx context.Context, x driver.XID) (*memory.Branch, driver.Preparing, error) {
	if w.network.over() {
		return nil, nil, errCrashed
	}
	tx, b, err := w.Participant.Begin(ctx, x)
	return tx, session{b, w}, err
}

func (w wire) Commit(ctx context.Context, x driver.XID) error {
	return w.network.carry(w.name, "commit", func() error { return w.Participant.Commit(ctx, x) })
}

func (w wire) Rollback(ctx context.Context, x driver.XID) error {
	return w.network.carry(w.name, "rollback", func() error { return w.Participant.Rollback(ctx, x) })
}

func (w wire) InDoubt(ctx context.Context) ([]driver.InDoubt, error) {
	if w.network.over() {
		return nil, errCrashed
	}
	return w.Participant.InDoubt(ctx)
}

// session connects one process to a branch.
type session struct {
	driver.Preparing
	wire wire
}

func (s session) Prepare(ctx context.Context) (driver.Vote, error) {
	votes := make(chan driver.Vote, 3) // a message may arrive late, and twice
	err := s.wire.network.carry(s.wire.name, "prepare", func() error {
		vote, err := s.Preparing.Prepare(ctx)
		votes <- vote
		return err
	})
	if err != nil {
		return driver.VoteNo, err
	}
	return <-votes, nil
}

func (s session) CommitOne(ctx context.Context) error {
	return s.wire.network.carry(s.wire.name, "commit one", func() error { return s.Preparing.CommitOne(ctx) })
}

func (s session) Abandon(ctx context.Context) error {
	if s.wire.network.over() {
		return errCrashed
	}
	return s.Preparing.Abandon(ctx)
}

// watched connects one process to the journal.
type watched struct {
	*memory.Journal
	network *network
}

func (w watched) Append(ctx context.Context, appends []driver.Append) []error {
	answers := make(chan []error, 3)
	err := w.network.carry("journal", "append", func() error {
		answers <- w.Journal.Append(ctx, appends)
		return nil
	})
	if err != nil {
		return slices.Repeat([]error{err}, len(appends))
	}
	return <-answers
}

func (w watched) Read(ctx context.Context, transaction string, after int64) (driver.Head, []driver.Record, error) {
	if err := w.network.befall("journal read"); err != nil { // changes nothing: not a crash point
		return driver.Head{}, nil, err
	}
	return w.Journal.Read(ctx, transaction, after)
}

func (w watched) Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) ([]driver.Head, error) {
	if w.network.over() {
		return nil, errCrashed
	}
	return w.Journal.Claim(ctx, shard, epoch, by, until, limit)
}

func (w watched) Enter(ctx context.Context, shard int, epoch interlock.Token) error {
	if w.network.over() {
		return errCrashed
	}
	return w.Journal.Enter(ctx, shard, epoch)
}

// world outlives processes: it has two banks, a registry of names, and the journal.
type world struct {
	banks map[string]*memory.Participant
	store *memory.Journal
	runs  atomic.Uint32
	slow  bool // the journals wait an hour for the store
}

var names = []string{"north", "south", "rates"}

func newWorld() *world {
	w := &world{banks: map[string]*memory.Participant{}, store: memory.NewJournal()}
	for _, name := range names {
		w.banks[name] = memory.NewParticipant()
	}
	return w
}

// inWorld runs a test in virtual time, with a world.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	bubble(t, func(t *testing.T) { test(t, newWorld()) })
}

// process is an engine with its coordinator, over the world.
type process struct {
	*Engine
	world   *world
	network *network
	at      map[string]Definition[*memory.Branch]
}

// patience is Options.Patience of the tests.
const patience = 30 * time.Second

// start starts a process that serves nothing.
func (w *world) start(t *testing.T, meet func(at string) error, o *Options) *process {
	t.Helper()
	p := &process{world: w, network: newNetwork(meet), at: map[string]Definition[*memory.Branch]{}}
	bound := 2 * time.Second
	if w.slow {
		bound = time.Hour
	}
	j, err := journal.New(watched{w.store, p.network}, &journal.Options{Shards: 1, Patience: bound})
	ok(t, err)
	t.Cleanup(func() { ok(t, j.Close()) })
	half := func() float64 { return 0.5 }
	c, err := coordinator.New(j, &coordinator.Options{Random: half})
	ok(t, err)
	if o == nil {
		o = &Options{}
	}
	if o.Patience == 0 {
		o.Patience = patience
	}
	var all []Defined
	for _, name := range names {
		p.at[name] = Define(name, wire{w.banks[name], name, p.network})
		all = append(all, p.at[name])
	}
	p.Engine, err = New(c, o, all...)
	ok(t, err)
	p.random = func() uint32 { return w.runs.Add(1) }
	return p
}

// serve drives and watches until the test calls stop, or the process crashes.
func (p *process) serve(t *testing.T, epoch int64) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := txntest.Grant(epoch)
	var work sync.WaitGroup
	work.Go(func() { _ = p.coordinator.Serve(ctx, c, 0) })
	work.Go(func() { _ = p.Watch(ctx) })
	work.Go(func() {
		select {
		case <-p.network.died:
			cancel()
		case <-ctx.Done():
		}
	})
	synctest.Wait()
	return func() { cancel(); work.Wait() }
}

// add returns work that adds to one number in each of some banks.
func (p *process) add(deltas map[string]int64) func(ctx context.Context, t *T) error {
	return func(ctx context.Context, t *T) error {
		for _, name := range names {
			delta, found := deltas[name]
			if !found {
				continue
			}
			tx, err := p.at[name].Join(ctx, t)
			if err != nil {
				return err
			}
			if delta == 0 {
				_, err = tx.Get("sum")
			} else {
				_, err = tx.Add("sum", delta)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// transfer moves ten from north to south.
var transfer = map[string]int64{"north": -10, "south": 10}

// sums returns the banks' committed numbers.
func (w *world) sums() map[string]int64 {
	sums := map[string]int64{}
	for name, bank := range w.banks {
		sums[name] = bank.Get("sum")
	}
	return sums
}

// inDoubt counts the prepared branches of all banks.
func (w *world) inDoubt(t testing.TB) int {
	t.Helper()
	n := 0
	for _, bank := range w.banks {
		doubts, err := bank.InDoubt(context.Background())
		ok(t, err)
		n += len(doubts)
	}
	return n
}

// records returns the records of a transaction, as kind:step.
func (w *world) records(t testing.TB, id string) ([]string, bool) {
	t.Helper()
	head, _, err := w.store.Read(context.Background(), Key(id), 0)
	ok(t, err)
	return txntest.Records(t, w.store, Key(id)), !head.Ended.IsZero()
}

// rest waits until nothing is in doubt and all transactions in the journal have ended.
func (w *world) rest(t testing.TB) {
	t.Helper()
	for range 100 {
		time.Sleep(10 * time.Second)
		if synctest.Wait(); w.quiet(t) {
			return
		}
	}
	t.Errorf("after a thousand seconds %d branches are in doubt", w.inDoubt(t))
}

// told is an event of a hook.
type told struct {
	what       string
	age, since time.Duration
	blocked    int
}

// ear has the events of all hooks.
type ear struct{ told txntest.Events[told] }

func (e *ear) hear(what ...string) { e.told.Add(told{what: strings.Join(what, " ")}) }

func (e *ear) count(what string) int {
	n := 0
	for _, x := range e.told.All() {
		if strings.HasPrefix(x.what, what) {
			n++
		}
	}
	return n
}

func (e *ear) last(what string) (found told) {
	for _, x := range e.told.All() {
		if strings.HasPrefix(x.what, what) {
			found = x
		}
	}
	return found
}

func (e *ear) all() (all []string) {
	for _, x := range e.told.All() {
		all = append(all, x.what)
	}
	return all
}

func doing(commit bool) string {
	if commit {
		return "commit"
	}
	return "roll back"
}

// listening returns hooks and their record.
func listening() (*observe.TwoPC, *ear) {
	e := &ear{}
	return &observe.TwoPC{
		Decided:   func(o observe.TwoPCDecided) { e.hear("decided", doing(o.Commit)) },
		Tried:     func(o observe.TwoPCTried) { e.hear("tried", doing(o.Commit), o.Participant) },
		Ended:     func(o observe.TwoPCEnded) { e.hear("ended", o.State) },
		Heuristic: func(o observe.TwoPCHeuristic) { e.hear("heuristic", strings.Join(o.Participants, " ")) },
		Orphan:    func(o observe.TwoPCOrphan) { e.hear("orphan", o.Verdict, o.Participant) },
		Scanned: func(o observe.TwoPCScanned) {
			e.told.Add(told{what: "scanned " + o.Participant, age: o.Oldest, since: o.BlockedFor, blocked: o.Blocked})
		},
	}, e
}

// sent returns the sent messages, as "north commit".
func (n *network) sent() (all []string) {
	for _, label := range n.labels() {
		if what, leaves := strings.CutSuffix(label, " "+leaving); leaves {
			all = append(all, what[:strings.LastIndex(what, " ")])
		}
	}
	return all
}
