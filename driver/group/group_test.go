package group_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/interlock-dev/interlock/driver/group"
	"github.com/interlock-dev/interlock/internal/virtual"
)

// server answers after a second, and keeps what was sent in each request.
type server struct {
	*group.Group[int, int]
	tasks sync.WaitGroup

	mu   sync.Mutex
	sent [][]int
}

func newServer() *server {
	s := &server{}
	s.Group = &group.Group[int, int]{Requests: 1, Calls: 3, Limit: time.Hour, Go: s.tasks.Go,
		Alone: func(ctx context.Context, ask int) (int, error) {
			s.note(ask)
			return 2 * ask, nil
		},
		Send: func(calls []*group.Call[int, int]) {
			var all []int
			for _, c := range calls {
				all = append(all, c.Ask)
				c.Answer = 2 * c.Ask
			}
			s.note(all...)
		}}
	return s
}

func (s *server) note(asks ...int) {
	s.mu.Lock()
	s.sent = append(s.sent, asks)
	s.mu.Unlock()
	time.Sleep(time.Second) // virtual
}

// begin calls in the background, one after the other.
func (s *server) begin(ctx context.Context, key string, ask int) <-chan error {
	done := make(chan error, 1)
	go func() {
		answer, err := s.Do(ctx, key, ask)
		if err == nil && answer != 2*ask {
			err = errors.New("the answer to another call")
		}
		done <- err
	}()
	synctest.Wait()
	return done
}

func TestCallsThatWaitAreSentTogether(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newServer()
		var all []<-chan error
		for i, key := range []string{"a", "a", "a", "b", "c", "d"} {
			all = append(all, s.begin(t.Context(), key, i))
		}
		for _, done := range all {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		s.tasks.Wait()
		want := [][]int{{0}, {1, 3, 4}, {2, 5}}
		for i, asks := range want {
			if len(s.sent) != len(want) || len(s.sent[i]) != len(asks) || s.sent[i][0] != asks[0] {
				t.Fatalf("sent %v, want %v", s.sent, want)
			}
		}
		if s.begin(t.Context(), "a", 7); len(s.sent) != 4 {
			t.Error("one that need not wait does")
		}
		time.Sleep(2 * time.Second)
	})
}

func TestNoCallWaitsForLong(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newServer()
		s.Limit = 10 * time.Millisecond
		first, second := s.begin(t.Context(), "a", 1), s.begin(t.Context(), "b", 2)
		time.Sleep(20 * time.Millisecond)
		synctest.Wait()
		if len(s.sent) != 2 {
			t.Errorf("sent %v", s.sent)
		}
		if err := errors.Join(<-first, <-second); err != nil {
			t.Error(err)
		}
		s.tasks.Wait()
	})
}

func TestCallsThatAreGivenUp(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newServer()
		ctx, cancel := context.WithCancel(t.Context())
		first, second, third := s.begin(t.Context(), "a", 1), s.begin(ctx, "b", 2), s.begin(t.Context(), "c", 3)
		cancel()
		if err := <-second; !errors.Is(err, group.ErrUnsent) {
			t.Errorf("given up: %v", err)
		}
		closed := errors.New("closed")
		s.Close(closed)
		if err := <-third; err != closed {
			t.Errorf("waits at the end: %v", err)
		}
		if err := <-first; err != nil {
			t.Errorf("sent before the end: %v", err)
		}
		if _, err := s.Do(t.Context(), "a", 4); err != closed {
			t.Errorf("after the end: %v", err)
		}
		if len(s.sent) != 1 {
			t.Errorf("sent %v", s.sent)
		}
	})
}

func TestACallThatWasSentIsNotUnsent(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newServer()
		ctx, cancel := context.WithCancel(t.Context())
		first, second := s.begin(t.Context(), "a", 1), s.begin(ctx, "b", 2)
		<-first
		synctest.Wait()
		cancel()
		if err := <-second; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		s.tasks.Wait()
	})
}

func TestSeparate(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		s := newServer()
		s.Separate()
		first, second := s.begin(t.Context(), "a", 1), s.begin(t.Context(), "b", 2)
		if len(s.sent) != 2 {
			t.Errorf("sent %v", s.sent)
		}
		if err := errors.Join(<-first, <-second); err != nil {
			t.Error(err)
		}
	})
}
