package sequence_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"

	"github.com/interlock-dev/interlock/flow/sequence"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/observe"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // tests cause thousands of failures
	crash.Main(m, map[string]crash.Role{"consumer": consume})
}

// bound limits each wait for a condition.
const bound = 20 * time.Second

var ok, wantKind = testbed.OK, testbed.WantKind

func event(key string, seq int64) sequence.Event {
	return sequence.Event{Key: key, Position: sequence.Position{Seq: seq}, Handle: seq}
}

// journal records the actions of a sequencer: a word for each.
type journal struct {
	mu    sync.Mutex
	words []string
	fail  map[string]error // of the handler, by key:seq
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.words = append(j.words, fmt.Sprintf(format, args...))
}

// handle returns a handler for any store.
func handle[T any](j *journal) sequence.Handler[T] {
	return func(_ context.Context, _ T, d sequence.Delivery) error {
		j.mu.Lock()
		err := j.fail[fmt.Sprint(d.Key, ":", d.Seq)]
		j.mu.Unlock()
		if err != nil {
			return err
		}
		word := fmt.Sprintf("%s%d", d.Key, d.Seq)
		if d.Epoch > 0 {
			word = fmt.Sprintf("%s%v", d.Key, d.Position)
		}
		if d.Late {
			word += "-late"
		}
		j.add("%s", word)
		return nil
	}
}

// take returns the actions since the last call.
func (j *journal) take() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	words := strings.Join(j.words, " ")
	j.words = nil
	return words
}

func (j *journal) hooks() *observe.Sequence {
	gap := func(what string) func(observe.SequenceGap) {
		return func(g observe.SequenceGap) { j.add("%s(%s:%d-%d after %v)", what, g.Key, g.From, g.To, g.Waited) }
	}
	return &observe.Sequence{Gap: gap("gap"), Overdue: gap("overdue"),
		Recorded: func(g observe.SequenceGap) { j.add("recorded(%s:%d-%d)", g.Key, g.From, g.To) },
		Halted:   gap("halted"),
		Late:     func(e observe.SequenceEvent) { j.add("closes(%s%d)", e.Key, e.Seq) },
		Dropped:  func(e observe.SequenceEvent) { j.add("dropped(%s%d)", e.Key, e.Seq) },
		Failed:   func(f observe.SequenceFailed) { j.add("failed(%s, %d)", f.Key, f.Failures) }}
}

// settled records the outcome of a held event, with the source's handle.
func (j *journal) settled(e sequence.Event, o sequence.Outcome) { j.add("%v:%v", e.Handle, o) }

// sequencer returns a sequencer on Memory, which the end of the test closes.
func sequencer(t *testing.T, j *journal, o sequence.Options) (*sequence.Sequencer[struct{}], *sequence.Memory) {
	t.Helper()
	store := &sequence.Memory{}
	return over(t, store, handle[struct{}](j), j, o), store
}

func over[T any](t *testing.T, store sequence.Store[T], handler sequence.Handler[T], j *journal, o sequence.Options) *sequence.Sequencer[T] {
	t.Helper()
	o.Observe, o.Settled = j.hooks(), j.settled
	s, err := sequence.New("test", store, handler, &o)
	ok(t, err)
	t.Cleanup(func() { closed(t, s) })
	return s
}

func closed[T any](t *testing.T, s *sequence.Sequencer[T]) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), bound)
	defer cancel()
	ok(t, s.Close(ctx))
}

// offers offers events, and requires the outcome of each: "1=delivered 3=held".
func offers[T any](t *testing.T, s *sequence.Sequencer[T], key, want string) {
	t.Helper()
	for word := range strings.FieldsSeq(want) {
		at, outcome, _ := strings.Cut(word, "=")
		var p sequence.Position
		if n, _ := fmt.Sscanf(at, "%d:%d", &p.Epoch, &p.Seq); n != 2 {
			_, err := fmt.Sscan(at, &p.Seq)
			p.Epoch = 0
			ok(t, err)
		}
		got, err := s.Offer(t.Context(), sequence.Event{Key: key, Position: p, Handle: at})
		if got.String() != outcome || (err != nil) != (got == sequence.Refused) {
			t.Errorf("%s %s: %v, %v, want %s", key, at, got, err, outcome)
		}
	}
}

func (j *journal) want(t *testing.T, want string) {
	t.Helper()
	if got := j.take(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
