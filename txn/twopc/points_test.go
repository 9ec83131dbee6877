package twopc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

// plot is the work of a first process, which others finish.
type plot struct {
	deltas map[string]int64
	fails  bool   // the work, when it has joined all
	votes  string // the session of this bank ends before its vote
	again  bool   // later processes run it too
	points int    // of a run without faults, until all is at rest
	commit bool   // its outcome then
}

var plots = map[string]plot{
	"two write": {deltas: transfer, commit: true,
		points: 2 * (2 + 1 + 2 + 1)}, // prepares, decision, commits, end; each leaves and returns
	"two write, one reads": {deltas: map[string]int64{"north": -10, "south": 10, "rates": 0}, commit: true,
		points: 2 * (3 + 1 + 2 + 1)},
	"run again": {deltas: transfer, commit: true, again: true, points: 12},
	"one votes no": {deltas: transfer, votes: "south",
		points: 2 * (2 + 1)}, // prepares, a rollback
	"the work fails": {deltas: transfer, fails: true},
	"alone":          {deltas: map[string]int64{"north": 10}, commit: true, points: 2},
}

// life is the result of a process.
type life struct {
	told    error // by Run; nil for a process that ran nothing
	ran     bool
	decided int      // decisions to commit that the journal held when Run had returned
	labels  []string // that it passed
}

// run plays one world with successive processes: the first one runs the plot, and all but
// the last end by meets.
func (p plot) run(t *testing.T, meets ...func(at string) error) []life {
	t.Helper()
	var lives []life
	inWorld(t, func(t *testing.T, w *world) {
		for i, meet := range meets {
			lives = append(lives, p.live(t, w, i, meet))
			for _, bank := range w.banks { // the sessions of a process end with it
				bank.Restart()
			}
			txntest.Unscheduled(t, w.store)
		}
		p.check(t, w, lives)
	})
	return lives
}

var errWork = errors.New("the work failed")

// live runs the n-th process until all is at rest, or its crash.
func (p plot) live(t *testing.T, w *world, n int, meet func(at string) error) (l life) {
	t.Helper()
	return p.liveAs(t, w, w.start(t, meet, nil), n)
}

func (p plot) liveAs(t *testing.T, w *world, x *process, n int) (l life) {
	t.Helper()
	defer x.serve(t, int64(n+1))()
	if n == 0 || p.again {
		l.ran = true
		l.told = x.Run(context.Background(), "1", p.work(w, x))
		l.decided = w.commits(t)
	}
	for range 60 {
		if time.Sleep(5 * time.Second); x.network.over() || w.quiet(t) {
			break
		}
	}
	l.labels = x.network.labels()
	return l
}

func (p plot) work(w *world, x *process) func(ctx context.Context, tx *T) error {
	return func(ctx context.Context, tx *T) error {
		err := x.add(p.deltas)(ctx, tx)
		if p.votes != "" {
			w.banks[p.votes].Restart()
		}
		if err == nil && p.fails {
			err = errWork
		}
		return err
	}
}

// quiet reports whether nothing is in doubt or unfinished.
func (w *world) quiet(t testing.TB) bool {
	heads, err := w.store.Heads(context.Background(), "", 1000)
	ok(t, err)
	return w.inDoubt(t) == 0 && !slices.ContainsFunc(heads, func(h driver.Head) bool { return h.Ended.IsZero() })
}

// commits counts the decisions to commit in the journal.
func (w *world) commits(t *testing.T) int {
	records, _ := w.records(t, "1")
	return strings.Count(strings.Join(records, " "), "decide:commit")
}

// check judges the result independently of the machine.
func (p plot) check(t *testing.T, w *world, lives []life) {
	t.Helper()
	txntest.Equal(t, "branches in doubt", w.inDoubt(t), 0)
	all, none := true, true
	for name, delta := range p.deltas {
		sum := w.banks[name].Get("sum")
		all, none = all && sum == delta, none && sum == 0
	}
	if all == none {
		t.Errorf("mixed: %v", w.sums())
	}
	records, ended := w.records(t, "1")
	if strings.Count(strings.Join(records, " "), "decide:") > 1 || len(records) > 0 && !ended {
		t.Errorf("records %v", records)
	}
	if many := len(p.deltas) > 1; many && all != (w.commits(t) == 1) {
		t.Errorf("sums %v, records %v", w.sums(), records)
	}
	for i, l := range lives {
		switch {
		case !l.ran:
		case l.told == nil && (!all || len(p.deltas) > 1 && l.decided != 1):
			t.Errorf("process %d got the answer that it is committed: %v, records %v", i+1, w.sums(), records)
		case errors.Is(l.told, ErrAborted) && !none && !p.again:
			t.Errorf("process %d got the answer that it is aborted: %v, records %v", i+1, w.sums(), records)
		case errors.Is(l.told, ErrAborted), l.told == nil, interlock.Kind(l.told) == interlock.Uncertain:
		case !p.again || interlock.Kind(l.told) != interlock.Retryable: // it could not read whether there was another run
			t.Errorf("process %d got %v", i+1, l.told)
		}
	}
}

// TestCrashPoints: a process crashes before or after any message, to a participant or to
// the journal, and its successor does so too. The next process finishes the transaction:
// with all effects or with none, by one decision at most.
func TestCrashPoints(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := p.run(t, nil)[0]
			if len(whole.labels) != p.points || (whole.told == nil) != p.commit {
				t.Fatalf("reported %v, passed %d points, want %d: %q", whole.told, len(whole.labels), p.points, whole.labels)
			}
			runs := 1
			for _, first := range whole.labels {
				lives := p.run(t, crashAt(first), nil)
				if runs++; t.Failed() {
					t.Fatalf("crashed at %q", first)
				}
				for _, second := range lives[1].labels {
					p.run(t, crashAt(first), crashAt(second), nil)
					if runs++; t.Failed() {
						t.Fatalf("crashed at %q, then %q", first, second)
					}
				}
			}
			t.Logf("%d points, %d runs", len(whole.labels), runs)
		})
	}
}

// TestLateMessages: a message that counts as lost, and arrives at any later point, or after
// the end, is harmless. So is one that arrives twice.
func TestLateMessages(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole, runs := p.run(t, nil)[0], 0
			for i, message := range whole.labels {
				if !strings.HasSuffix(message, leaving) {
					continue
				}
				for _, twice := range []bool{false, true} {
					for _, later := range append(whole.labels[i+1:], "never before the end") {
						p.late(t, message, later, twice)
						if runs++; t.Failed() {
							t.Fatalf("%q arrives late, twice %v, at %q", message, twice, later)
						}
					}
				}
			}
			t.Logf("%d runs", runs)
		})
	}
}

// late delivers a message when a process passes another point.
func (p plot) late(t *testing.T, message, later string, twice bool) {
	t.Helper()
	inWorld(t, func(t *testing.T, w *world) {
		var kept func() // delivers the message
		var mu sync.Mutex
		x := w.start(t, nil, nil)
		x.network.keep = func(label string, deliver func() error) (lost bool) {
			if label != message {
				return false
			}
			mu.Lock()
			defer mu.Unlock()
			kept = func() { _ = deliver() }
			return !twice
		}
		x.network.meet = func(at string) error {
			mu.Lock()
			deliver := kept
			if at == later {
				kept = nil
			}
			mu.Unlock()
			if at == later && deliver != nil {
				deliver()
			}
			return nil
		}
		lives := []life{p.liveAs(t, w, x, 0)}
		if kept != nil {
			kept()
			lives = append(lives, p.live(t, w, 1, nil))
		}
		p.check(t, w, lives)
	})
}

// TestPartitions: from any point on a participant, or the journal, is unreachable for some
// time, or its answers are lost.
func TestPartitions(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole, runs := p.run(t, nil)[0], 0
			for _, from := range whole.labels {
				for _, target := range []string{"north", "south", "journal", "journal append"} {
					for _, way := range []string{leaving, returning} {
						for _, lasting := range []time.Duration{time.Second, 5 * time.Second, 2 * time.Minute} {
							var cut atomic.Bool
							var until atomic.Int64
							p.run(t, func(at string) error {
								if at == from && cut.CompareAndSwap(false, true) {
									until.Store(time.Now().Add(lasting).UnixNano())
								}
								matches := strings.HasPrefix(at, target) && (strings.HasSuffix(at, way) || strings.HasSuffix(at, "read"))
								if matches && cut.Load() && time.Now().UnixNano() < until.Load() {
									return errNetwork
								}
								return nil
							}, nil)
							if runs++; t.Failed() {
								t.Fatalf("from %q on %s cannot be reached for %v: nothing %s", from, target, lasting, way)
							}
						}
					}
				}
			}
			t.Logf("%d runs", runs)
		})
	}
}

// TestZombieMessages: a message that a process sent before its crash arrives at any point of
// the next one's life, or after it.
func TestZombieMessages(t *testing.T) {
	for name, p := range plots {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runs := 0
			for _, message := range p.run(t, nil)[0].labels {
				if !strings.HasSuffix(message, leaving) {
					continue
				}
				for _, at := range append(p.haunt(t, message, "after it all"), "after it all") {
					p.haunt(t, message, at)
					if runs++; t.Failed() {
						t.Fatalf("%q, sent by a process that has crashed, arrives at %q", message, at)
					}
				}
			}
			t.Logf("%d runs", runs)
		})
	}
}

// haunt delivers the last message of a crashed process when its successor passes a point.
// It returns the points of the successor.
func (p plot) haunt(t *testing.T, message, at string) (labels []string) {
	t.Helper()
	inWorld(t, func(t *testing.T, w *world) {
		var arrive sync.Once
		kept := func() {}
		x := w.start(t, nil, nil)
		x.network.keep = func(label string, deliver func() error) (lost bool) {
			if label == message {
				kept = func() { _ = deliver() }
				x.network.die()
			}
			return label == message
		}
		lives := []life{p.liveAs(t, w, x, 0)}
		for _, bank := range w.banks {
			bank.Restart()
		}
		lives = append(lives, p.live(t, w, 1, func(label string) error {
			if label == at {
				arrive.Do(kept)
			}
			return nil
		}))
		labels = lives[1].labels
		arrive.Do(kept)
		p.check(t, w, append(lives, p.live(t, w, 2, nil)))
	})
	return labels
}

// TestPausedProcess: a process that is paused at any point, until another one has finished
// its transaction, follows the decision that it then finds.
func TestPausedProcess(t *testing.T) {
	for name, p := range plots {
		if p.again {
			continue // the second one would wait for the first one's locks
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := p.run(t, nil)[0]
			for _, label := range whole.labels {
				for _, slow := range []bool{false, true} {
					bubble(t, func(t *testing.T) { p.pause(t, label, slow) })
					if t.Failed() {
						t.Fatalf("stopped at %q, slow %v", label, slow)
					}
				}
			}
		})
	}
}

// pause pauses a process at a label. If slow is set, it still waits for the journal when it
// wakes up, otherwise it has given up.
func (p plot) pause(t *testing.T, label string, slow bool) {
	w := newWorld()
	w.slow = slow
	stopped, wake := make(chan struct{}), make(chan struct{})
	x := w.start(t, func(at string) error {
		if at == label {
			close(stopped)
			<-wake
		}
		return nil
	}, nil)
	first := make(chan life, 1)
	go func() { first <- p.liveAs(t, w, x, 0) }()
	<-stopped
	other := p.finish(t, w)
	close(wake)
	synctest.Wait()
	lives := []life{<-first, other, p.finish(t, w)}
	p.check(t, w, lives)
}

// finish runs a process that has no work of its own.
func (p plot) finish(t *testing.T, w *world) life {
	return plot{deltas: p.deltas}.liveAs(t, w, w.start(t, nil, nil), 1)
}

// die ends a process while one of its messages is in transit.
func (n *network) die() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.dead {
		n.dead = true
		close(n.died)
	}
}
