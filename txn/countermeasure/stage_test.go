package countermeasure_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/txn/branch"
)

// A play is a saga: successive steps in separate transactions. If one fails for good, those before
// it are undone in reverse order.
type play struct {
	id    string
	steps []step
	ended func(done bool) // called when it has ended; may be nil
}

// A step is called again at the saga's next turn after an ErrHeld or another Retryable error.
type step struct {
	do, undo func(ctx context.Context, db driver.SQL) error
}

// A turn lets a saga run one transaction, and ends when that has.
type turn struct{ over chan struct{} }

// interleave runs sagas in separate goroutines, one transaction at a time. Each letter of the
// schedule is a turn of a saga; A is the first one. After the schedule they take turns until they
// end. It returns which ones were done, and not undone.
func (w world) interleave(schedule string, plays ...play) (done []bool) {
	w.Helper()
	done = make([]bool, len(plays))
	turns, ends := make([]chan turn, len(plays)), make([]chan struct{}, len(plays))
	for i, p := range plays {
		turns[i], ends[i] = make(chan turn), make(chan struct{})
		go func() {
			defer close(ends[i])
			done[i] = w.run(p, turns[i])
		}()
	}
	give := func(i int) (running bool) {
		t := turn{make(chan struct{})}
		select {
		case turns[i] <- t:
			<-t.over
			return true
		case <-ends[i]:
			return false
		}
	}
	for _, letter := range schedule {
		give(int(letter - 'A'))
	}
	for running, rounds := true, 0; running; rounds++ {
		if running = false; rounds > 100 {
			w.Fatalf("%s: no end in sight", schedule)
		}
		for i := range plays {
			running = give(i) || running
		}
	}
	return done
}

// run runs a saga, one transaction in each turn.
func (w world) run(p play, turns <-chan turn) (done bool) {
	act := func(fn func(ctx context.Context, db driver.SQL) error) (err error) {
		for held := true; held; {
			t := <-turns
			err = w.in(fn)
			held = err != nil && interlock.Kind(err) == interlock.Retryable
			close(t.over)
		}
		return err
	}
	if p.ended == nil {
		p.ended = func(bool) {}
	}
	for i, s := range p.steps {
		err := act(s.do)
		if err == nil {
			continue
		}
		if class, _ := branch.ClassOf(err); class != branch.ClassFail {
			w.Errorf("%s, step %d: %v", p.id, i, err)
		}
		for j := i - 1; j >= 0; j-- {
			if undo := p.steps[j].undo; undo != nil {
				if err := act(undo); err != nil {
					w.Errorf("%s, undo of step %d: %v", p.id, j, err)
				}
			}
		}
		p.ended(false)
		return false
	}
	p.ended(true)
	return true
}

// schedules returns all interleavings of sagas with these numbers of turns, up to a hundred, in an
// order of the seed.
func schedules(seed uint64, turns ...int) (all []string) {
	var letters []byte
	for i, n := range turns {
		letters = append(letters, strings.Repeat(string(rune('A'+i)), n)...)
	}
	random := rand.New(rand.NewPCG(seed, 5))
	seen := map[string]bool{}
	for range 300 {
		random.Shuffle(len(letters), func(i, j int) { letters[i], letters[j] = letters[j], letters[i] })
		if s := string(letters); !seen[s] && len(all) < 100 {
			seen[s] = true
			all = append(all, s)
		}
	}
	return all
}

// refused converts an error of a countermeasure to a refusal.
func refused[E error](err error) error {
	var e E
	if errors.As(err, &e) {
		return branch.Fail(err)
	}
	return err
}

func exec(query string, args ...any) func(ctx context.Context, db driver.SQL) error {
	return func(ctx context.Context, db driver.SQL) error {
		_, err := db.Exec(ctx, query, args...)
		return err
	}
}

var errOops = errors.New("the last step does not work out")

func oops(context.Context, driver.SQL) error { return branch.Fail(errOops) }
