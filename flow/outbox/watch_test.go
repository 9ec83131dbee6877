package outbox

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// ready is a database in which slice 1 always has a message.
type ready struct{ driver.SQL }

func (ready) Begin(context.Context) (driver.Tx[driver.SQL], error) {
	return nil, errors.New("no transactions")
}
func (r ready) Autocommit(driver.Isolation) driver.SQL { return r }
func (ready) Dialect() driver.Dialect                  { return driver.Postgres }
func (ready) Query(_ context.Context, query string, _ []any, each func(func(...any) error) error) error {
	if !strings.Contains(query, "unnest") {
		return errors.New("no other statements")
	}
	for _, slice := range []int64{-1, 1} {
		err := each(func(dest ...any) error { *dest[0].(*int64) = slice; return nil })
		if err != nil {
			return err
		}
	}
	return nil
}

// slow is a notifier whose listeners end slowly.
type slow struct {
	end    chan struct{}
	ending atomic.Bool
}

func (*slow) Notify(...string) {}
func (s *slow) Listen(func(string)) func() {
	return func() { s.ending.Store(true); <-s.end }
}

// TestWatchOfTheNextService: if a service begins while the last one of its relay ends, it is watched.
func TestWatchOfTheNextService(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		notifier := &slow{end: make(chan struct{})}
		r, err := NewRelay[driver.SQL](ready{}, Table{}, sink{}, &Options{Notifier: notifier})
		if err != nil {
			t.Fatal(err)
		}
		first := r.enter(&service{Relay: r, slice: 0, awake: make(chan struct{}, 1)})
		go first()
		synctest.Wait()
		next := &service{Relay: r, slice: 1, awake: make(chan struct{}, 1)}
		leave := r.enter(next)
		synctest.Wait()
		end := r.wait(next)
		synctest.Wait()
		close(notifier.end)
		select {
		case <-next.awake:
		case <-time.After(3 * r.options.MaxPoll):
			t.Error("it is not woken")
		}
		end()
		leave()
	})
}

// TestPanicOfAFunc: the panic of a function, or the end of its goroutine, is the failure of its message
// alone.
func TestPanicOfAFunc(t *testing.T) {
	f := Func(func(_ context.Context, m Message) error {
		switch m.ID {
		case "bad":
			panic("boom")
		case "gone":
			runtime.Goexit()
		}
		return nil
	})
	errs := f.Publish(t.Context(), []Message{{ID: "bad", Topic: "t"}, {ID: "good", Topic: "t"}, {ID: "gone", Topic: "t"}})
	if interlock.Kind(errs[0]) != interlock.Uncertain || !strings.Contains(errs[0].Error(), "boom") || errs[1] != nil || interlock.Kind(errs[2]) != interlock.Uncertain || errors.Is(errs[2], driver.ErrNotSent) {
		t.Errorf("%v", errs)
	}
}

// TestPanicOfASink: the panic of a sink, or the end of its goroutine, is the failure of its messages.
func TestPanicOfASink(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		for _, end := range []func(){func() { panic("boom") }, runtime.Goexit} {
			r, err := NewRelay[driver.SQL](ready{}, Table{}, odd{end: end}, nil)
			if err != nil {
				t.Fatal(err)
			}
			s := newService(r, nil, 0, 0)
			answers := <-s.publish(t.Context(), batch{send: []row{{Message: Message{ID: "1"}}, {Message: Message{ID: "2"}}}})
			for i := range 2 {
				if err := answerTo(answers, i); interlock.Kind(err) != interlock.Uncertain {
					t.Errorf("%v", err)
				}
			}
		}
	})
}

// TestRejectionBeforeTheEnd: a message that was rejected stays rejected if another one of the call gets no
// answer before the context ends.
func TestRejectionBeforeTheEnd(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		no := &interlock.Error{Op: "send", Kind: interlock.Definite, Err: errors.New("no")}
		own := Func(func(ctx context.Context, m Message) error {
			if m.ID == "slow" {
				<-ctx.Done()
			}
			return no
		})
		caused := func(ctx context.Context) error {
			<-ctx.Done()
			return &interlock.Error{Op: "send", Kind: interlock.Definite, Err: context.Cause(ctx)}
		}
		for name, s := range map[string]Sink{"func": own, "sink": answering(func(ctx context.Context) []error { return []error{no, caused(ctx)} })} {
			r, err := NewRelay[driver.SQL](ready{}, Table{}, s, nil)
			if err != nil {
				t.Fatal(err)
			}
			gone, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(time.Second, func() { cancel(interlock.ErrReleased) })
			b := batch{send: []row{{Message: Message{ID: "bad", Topic: "t"}}, {Message: Message{ID: "slow", Topic: "t"}}}}
			if answers := <-newService(r, nil, 0, 0).publish(gone, b); !refused(answers[0]) || refused(answers[1]) {
				t.Errorf("%s: %v", name, answers)
			}
		}
	})
}

type answering func(context.Context) []error

func (a answering) Publish(ctx context.Context, _ []driver.Message) []error { return a(ctx) }

type odd struct{ end func() }

func (o odd) Publish(context.Context, []driver.Message) []error { o.end(); return nil }

type sink struct{}

func (sink) Publish(context.Context, []driver.Message) []error { return nil }
