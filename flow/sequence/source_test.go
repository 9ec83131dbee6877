package sequence

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
)

var ok = testbed.OK

// pipe is a queue of events "KEY/SEQ", and the events that the handler has taken.
type pipe struct {
	*testing.T
	queue *memory.Queue
	store Memory
	lease time.Duration // an hour: nothing comes again because it was not acknowledged in time

	mu    sync.Mutex
	taken []string
	fails map[string]int        // how often the handler rejects an event
	holds map[string]chan error // the handler returns what it receives
}

func newPipe(t *testing.T) *pipe {
	return &pipe{T: t, queue: memory.NewQueue(), lease: time.Hour, fails: map[string]int{}}
}

// add adds messages without keys: each may be delivered before the others.
func (p *pipe) add(ids ...string) {
	p.Helper()
	for _, id := range ids {
		if err := p.queue.Add("q", driver.QueueMessage{ID: id, Payload: []byte(id)}); err != nil {
			p.Fatal(err)
		}
	}
}

// addInOrder adds messages that are delivered in order for each key.
func (p *pipe) addInOrder(ids ...string) {
	p.Helper()
	for _, id := range ids {
		key, _, _ := strings.Cut(id, "/")
		ok(p.T, p.queue.Add("q", driver.QueueMessage{ID: id, Key: key, Payload: []byte(id)}))
	}
}

func parseEvent(m driver.Received) (Event, error) {
	key, number, _ := strings.Cut(string(m.Payload), "/")
	seq, err := strconv.ParseInt(number, 10, 64)
	return Event{Key: key, Position: Position{Seq: seq}, Payload: m.Payload}, err
}

func (p *pipe) handle(_ context.Context, _ struct{}, d Delivery) error {
	id := string(d.Payload)
	if hold := p.holds[id]; hold != nil {
		return <-hold
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails[id] > 0 {
		switch p.fails[id]--; p.fails[id] {
		case 0:
			panic("of " + id)
		case 1:
			runtime.Goexit()
		}
		return errors.New("not yet")
	}
	p.taken = append(p.taken, id)
	return nil
}

// consume starts a sequencer and a source of it.
func (p *pipe) consume(o *Options) (*Source, func(context.Context)) {
	p.Helper()
	s, err := New("q", &p.store, p.handle, o)
	if err != nil {
		p.Fatal(err)
	}
	f, err := s.Consume(p.Context(), p.queue, "q", parseEvent, &SourceOptions{Lease: p.lease})
	if err != nil {
		p.Fatal(err)
	}
	var once sync.Once
	end := func(ctx context.Context) {
		once.Do(func() {
			_ = f.Close(ctx)
			_ = s.Close(context.WithoutCancel(ctx))
		})
	}
	p.Cleanup(func() { end(context.Background()) })
	return f, end
}

// count returns how many events the handler has taken.
func (p *pipe) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.taken)
}

// wait waits until the handler has taken some events, in this order for each key.
func (p *pipe) wait(want ...string) {
	p.Helper()
	testbed.Eventually(p.T, fmt.Sprintf("%v are taken", want), testbed.Patience, func() bool {
		return p.count() >= len(want)
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	if got := slices.SortedStableFunc(slices.Values(p.taken), func(a, b string) int { return strings.Compare(a[:1], b[:1]) }); !slices.Equal(got, want) {
		p.Errorf("taken %v, want %v", got, want)
	}
}

// left waits until n messages are not settled.
func (p *pipe) left(f *Source, n int) {
	p.Helper()
	testbed.Eventually(p.T, fmt.Sprintf("%d messages are unsettled", n), testbed.Patience, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return DefaultInFlight-f.room.Messages == n
	})
}

// TestSource: events arrive out of order, twice, or never; invalid messages become dead letters;
// an event whose handler fails, panics or ends its goroutine is offered again.
func TestSource(t *testing.T) {
	p := newPipe(t)
	p.fails["b/2"] = 3
	p.add("a/3", "a/1", "b/1", "nonsense", "a/0", "a/1", "b/2")
	f, _ := p.consume(&Options{Wait: time.Hour})
	p.wait("a/1", "b/1", "b/2")
	p.left(f, 1) // a/3 is held
	p.add("a/2")
	p.wait("a/1", "a/2", "a/3", "b/1", "b/2")
	p.left(f, 0)
	var dead []string
	for _, m := range p.queue.DeadLetters("q") {
		dead = append(dead, m.ID)
	}
	if slices.Sort(dead); !slices.Equal(dead, []string{"a/0", "nonsense"}) {
		t.Errorf("dead letters %v", dead)
	}
}

// TestSourceKeepsOrderOfFailures: while the handler fails for an event, the events behind it wait, and it is not
// passed over as missing.
func TestSourceKeepsOrderOfFailures(t *testing.T) {
	p := newPipe(t)
	p.fails["a/1"] = 4
	p.addInOrder("a/1", "a/2", "a/3", "a/4", "a/5")
	f, _ := p.consume(&Options{Wait: time.Millisecond, Buffer: 2})
	p.wait("a/1", "a/2", "a/3", "a/4", "a/5")
	p.left(f, 0)
}

// TestSourceKeepsWhatIsHeld: held events are not acknowledged. After the process dies, the next one
// receives them again.
func TestSourceKeepsWhatIsHeld(t *testing.T) {
	p := newPipe(t)
	p.lease = 200 * time.Millisecond // of a process that dies
	p.add("a/1", "a/3", "a/4")
	f, end := p.consume(&Options{Wait: time.Hour})
	p.wait("a/1")
	p.left(f, 2)
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	end(dead)
	p.add("a/2")
	f, _ = p.consume(&Options{Wait: time.Hour})
	p.wait("a/1", "a/2", "a/3", "a/4")
	p.left(f, 0)
}

// TestSourceCloses: Close releases held messages at once, and another process continues.
func TestSourceCloses(t *testing.T) {
	p := newPipe(t)
	p.add("a/2")
	f, end := p.consume(&Options{Halt: true, Wait: time.Millisecond})
	p.left(f, 1)
	end(t.Context())
	other, err := p.queue.Join(t.Context(), "q", driver.QueueOptions{})
	ok(t, err)
	defer other.Close(context.Background())
	got, err := other.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 100})
	if err != nil || len(got) != 1 || got[0].Attempt != 1 {
		t.Errorf("received %+v, %v", got, err)
	}
}

// TestSourceClosesWithoutAHandler: a handler that ignores the end of its context does not hold up Close.
func TestSourceClosesWithoutAHandler(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := newPipe(t)
		p.holds = map[string]chan error{"a/1": make(chan error)}
		p.add("a/1")
		s, err := New("q", &p.store, p.handle, nil)
		ok(t, err)
		defer s.Close(context.Background())
		f, err := s.Consume(t.Context(), p.queue, "q", parseEvent, &SourceOptions{Lease: p.lease})
		ok(t, err)
		defer close(p.holds["a/1"])
		p.left(f, 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		closed := make(chan error, 1)
		go func() { closed <- f.Close(ctx) }()
		select {
		case err := <-closed:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		case <-time.After(time.Minute):
			t.Error("Close waits for the handler")
		}
	})
}

// TestSourceForgetsWhatIsReleased: events that are held under a claim, and those that were fetched for them, leave the
// sequencer with it.
func TestSourceForgetsWhatIsReleased(t *testing.T) {
	p := newPipe(t)
	p.add("a/2", "a/4", "b/3")
	fetch := func(context.Context, Hole) ([]Event, error) {
		return []Event{{Key: "b", Position: Position{Seq: 2}, Payload: []byte("b/2")}}, nil
	}
	s, err := New("q", &p.store, p.handle, &Options{Halt: true, Wait: time.Millisecond, Fetch: fetch})
	ok(t, err)
	defer s.Close(context.Background())
	f, err := s.Consume(t.Context(), p.queue, "q", parseEvent, &SourceOptions{Lease: p.lease})
	ok(t, err)
	testbed.Eventually(t, "two keys hold events", time.Minute, func() bool { return s.Load() == Load{Keys: 2, Bytes: 16} })
	ok(t, f.Close(t.Context()))
	testbed.Eventually(t, "nothing is held", time.Minute, func() bool { return s.Load() == Load{} })
}

// TestSourceReleasesWhatFollows: if an event is given back because the source closes, so are those behind it.
// Otherwise they would be held as events after a gap.
func TestSourceReleasesWhatFollows(t *testing.T) {
	p := newPipe(t)
	p.holds = map[string]chan error{"a/1": make(chan error), "b/1": make(chan error)}
	p.addInOrder("a/1", "a/2", "b/1")
	finish := sync.OnceFunc(func() { close(p.holds["b/1"]) })
	defer finish()
	f, end := p.consume(&Options{Wait: time.Hour})
	p.left(f, 3)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		end(context.Background()) // waits for b/1
	}()
	<-f.intake.Done()
	p.holds["a/1"] <- errors.New("not yet")
	p.left(f, 1)
	finish()
	<-closed
}

// TestSourceOffersAgain: events without room are offered again, until the hole before them
// is recorded.
func TestSourceOffersAgain(t *testing.T) {
	p := newPipe(t)
	p.add("a/2", "a/3", "a/4", "a/5")
	f, _ := p.consume(&Options{Buffer: 1, Wait: 300 * time.Millisecond})
	p.wait("a/2", "a/3", "a/4", "a/5")
	p.left(f, 0)
}

// TestSourceOffersEarlierEventsAtOnce: an event does not wait until a later one of its key, which was refused, is offered
// again. It was passed over as missing if that took longer than Options.Wait.
func TestSourceOffersEarlierEventsAtOnce(t *testing.T) {
	virtual.Test(t, func(t *testing.T) {
		p := newPipe(t)
		p.add("a/2", "a/3")
		s, err := New("q", &p.store, p.handle, &Options{Buffer: 1, Wait: time.Hour})
		ok(t, err)
		defer s.Close(context.Background())
		added, refused := make(chan time.Time, 1), 0
		f, err := s.Consume(t.Context(), p.queue, "q", parseEvent, &SourceOptions{Lease: time.Hour, Trouble: func(error) {
			if refused++; refused == 8 { // the next pause is at least 5 s / 8
				p.add("a/1")
				added <- time.Now()
			}
		}})
		ok(t, err)
		defer f.Close(context.Background())
		at := <-added
		for p.count() == 0 {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(at); took > 100*time.Millisecond {
			t.Errorf("a/1 was offered after %v", took)
		}
		p.wait("a/1", "a/2", "a/3")
	})
}

// TestSourceReasons: the reason of a dead letter is text that every queue stores. A queue in a database refused others,
// together with the outcomes of other messages, again and again.
func TestSourceReasons(t *testing.T) {
	f := &Source{}
	x := &flight{source: f, message: &driver.Received{}}
	x.done(driver.Dead, errors.New("bad \xff\x00"))
	if got := f.ended[0].Reason; got != "bad \uFFFD\uFFFD" {
		t.Errorf("%q", got)
	}
}

func TestSourceBadInput(t *testing.T) {
	p := newPipe(t)
	s, err := New("q", &p.store, p.handle, nil)
	ok(t, err)
	defer s.Close(context.Background())
	for name, consume := range map[string]func() (*Source, error){
		"queue": func() (*Source, error) { return s.Consume(t.Context(), nil, "q", parseEvent, nil) },
		"event": func() (*Source, error) { return s.Consume(t.Context(), p.queue, "q", nil, nil) },
		"name":  func() (*Source, error) { return s.Consume(t.Context(), p.queue, "", parseEvent, nil) },
		"room": func() (*Source, error) {
			return s.Consume(t.Context(), p.queue, "q", parseEvent, &SourceOptions{InFlight: -1})
		},
	} {
		if _, err := consume(); interlock.Kind(err) != interlock.Bug || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestIdleKeysAreForgotten: the number of cached idle keys is bounded, and an
// evicted key continues at its position.
func TestIdleKeysAreForgotten(t *testing.T) {
	for cached, want := range map[int]int{-1: 0, 7: 7} {
		s, err := New("test", &Memory{}, func(context.Context, struct{}, Delivery) error { return nil }, &Options{Cached: cached})
		ok(t, err)
		for seq := range int64(3) {
			for i := range 1000 {
				e := Event{Key: fmt.Sprint(i), Position: Position{Seq: seq + 1}}
				if o, err := s.Offer(t.Context(), e); o != Delivered {
					t.Fatal(o, err)
				}
			}
		}
		if n := len(s.keys); n != want || s.idle.Len() != want {
			t.Errorf("%d keys are cached, want %d", n, want)
		}
		ok(t, s.Close(t.Context()))
	}
}
