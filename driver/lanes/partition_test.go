package lanes

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// world plays consumers of one partition against a log, and knows what they may do.
type world struct {
	*testing.T
	random   *rand.Rand
	metadata int
	log      []driver.Received // with gaps in their offsets
	done     map[int64]bool    // completed
	kept     map[int64]bool    // completed, and committed in metadata that had room for all
	prefix   int64             // committed
	text     string            // its metadata
	token    int64

	o         *Partition
	read      int // index of the log
	out       []*driver.Received
	now       time.Time
	commits   int
	attempts  map[int64]int            // least attempt of a next delivery
	delivered map[*driver.Received]int // attempts
}

// restart begins a new assignment at what is committed.
func (w *world) restart() {
	w.o = Restore(w.prefix, Decode(w.prefix, w.text), 1, 100)
	if w.o.Token() <= w.token {
		w.Fatalf("token %d after %d", w.o.Token(), w.token)
	}
	w.token = w.o.Token()
	for offset := range w.kept {
		if _, pending := w.o.find(offset); pending {
			w.Fatalf("offset %d was completed, and is pending again", offset)
		}
	}
	w.out, w.read = nil, 0
	for w.read < len(w.log) && w.log[w.read].Place < w.o.Prefix() {
		w.read++
	}
	for _, m := range w.log[:w.read] {
		if !w.done[m.Place] {
			w.Fatalf("offset %d is lost: the next assignment begins at %d", m.Place, w.o.Prefix())
		}
	}
	w.commit(true)
}

// commit commits, as a consumer does that may die before it has the answer.
func (w *world) commit(held bool) {
	c := w.o.Snapshot(held)
	text, whole := c.Encode(w.metadata)
	if len(text) > w.metadata {
		w.Fatalf("metadata of %d bytes", len(text))
	}
	w.prefix, w.text = c.Prefix, text
	w.commits++
	clear(w.kept)
	for offset := range w.done {
		if i, found := w.o.find(offset); whole && (!found || w.o.pending[i].completed) && offset < c.Next {
			w.kept[offset] = true
		}
	}
}

func (w *world) arrive() {
	if w.read < len(w.log) {
		m := w.log[w.read]
		if arrived := w.o.Arrive(m.Place, []byte(m.Key), len(m.Payload)); arrived != nil {
			arrived.ID = m.ID
		}
		w.read++
	}
}

func (w *world) take() {
	limit := driver.QueueLimit{Messages: 1 + w.random.IntN(6), Bytes: w.random.IntN(300)}
	all, _ := w.o.Take(nil, &limit, w.now)
	for _, m := range all {
		if m.ID != fmt.Sprint(m.Place) {
			w.Fatalf("offset %d is delivered with the record of %s", m.Place, m.ID)
		}
		if i := slices.IndexFunc(w.log, func(x driver.Received) bool { return x.Place == m.Place }); w.log[i].Key != m.Key {
			w.Fatalf("offset %d of key %q is delivered with key %q", m.Place, w.log[i].Key, m.Key)
		}
		if w.done[m.Place] && w.kept[m.Place] {
			w.Fatalf("offset %d was completed, and is delivered again", m.Place)
		}
		for _, before := range w.log {
			if before.Place < m.Place && before.Key == m.Key && m.Key != "" && !w.done[before.Place] && !slices.ContainsFunc(w.out, func(x *driver.Received) bool { return x.Place == before.Place }) {
				w.Fatalf("offset %d of key %q is delivered before %d", m.Place, m.Key, before.Place)
			}
		}
		if slices.ContainsFunc(w.out, func(x *driver.Received) bool { return x.Place == m.Place }) {
			w.Fatalf("offset %d is delivered twice", m.Place)
		}
		if m.Attempt < w.attempts[m.Place] {
			w.Fatalf("offset %d has attempt %d, want %d", m.Place, m.Attempt, w.attempts[m.Place])
		}
		if before, ok := w.delivered[m]; ok && before != m.Attempt {
			w.Fatalf("offset %d: a message of attempt %d has become one of attempt %d", m.Place, before, m.Attempt)
		}
		w.delivered[m] = m.Attempt
		w.out = append(w.out, m)
	}
}

// settle ends one delivery: the first of its key, as a consumer that handles a key in order.
func (w *world) settle() {
	if len(w.out) == 0 {
		return
	}
	m := w.out[w.random.IntN(len(w.out))]
	isOf := func(x *driver.Received) bool { return x.Key == m.Key && (m.Key != "" || x.Place == m.Place) }
	m = w.out[slices.IndexFunc(w.out, isOf)]
	s := driver.Settlement{Received: m, Outcome: []driver.Outcome{driver.Ack, driver.Ack, driver.Ack, driver.Dead, driver.Retry, driver.Release, driver.Park}[w.random.IntN(7)],
		After: time.Duration(w.random.IntN(5)) * time.Second}
	if s.Outcome == driver.Ack || s.Outcome == driver.Dead {
		w.o.Complete(m.Place)
		w.o.Sweep()
		w.done[m.Place] = true
		w.out = slices.DeleteFunc(w.out, func(x *driver.Received) bool { return x.Place == m.Place })
		return
	}
	if s.Outcome == driver.Park && m.Key == "" {
		s.Outcome = driver.Retry // nobody could resume it
	}
	if s.Outcome == driver.Retry {
		w.attempts[m.Place] = m.Attempt + 1
	}
	w.o.GiveBack(&s, w.now)
	of := w.out
	w.out = slices.DeleteFunc(slices.Clone(w.out), isOf)
	if behind := slices.DeleteFunc(of, func(x *driver.Received) bool { return !isOf(x) || x == m }); len(behind) > 0 {
		w.o.GiveBack(&driver.Settlement{Received: behind[0], Later: behind[1:], Outcome: driver.Release}, w.now)
	}
}

// TestPartition plays random courses of a partition, with crashes at any point. Nothing is lost,
// the order of a key holds, a completed offset that was committed is not delivered again.
func TestPartition(t *testing.T) {
	for seed := range uint64(400) {
		w := &world{T: t, random: rand.New(rand.NewPCG(seed, 0)), metadata: 4096, done: map[int64]bool{}, kept: map[int64]bool{},
			attempts: map[int64]int{}, delivered: map[*driver.Received]int{}, now: time.Unix(0, 0)}
		if seed%4 == 0 {
			w.metadata = 64
		}
		for offset := int64(0); len(w.log) < 60; offset += 1 + int64(w.random.IntN(4)/3) {
			m := driver.Received{Place: offset}
			m.ID = fmt.Sprint(offset)
			m.Key, m.Payload = []string{"", "a", "b", "c"}[w.random.IntN(4)], make([]byte, w.random.IntN(100))
			w.log = append(w.log, m)
		}
		w.restart()
		end := w.log[len(w.log)-1].Place + 1
		for step := 0; w.o.Prefix() < end; step++ {
			if step > 100_000 {
				t.Fatalf("seed %d: %d of %d offsets completed, read to %d, %+v", seed, len(w.done), len(w.log), w.read, w.o)
			}
			w.now = w.now.Add(time.Second)
			switch n := w.random.IntN(40); {
			case n < 12:
				w.arrive()
			case n < 22:
				w.take()
			case n < 34:
				w.settle()
			case n < 38:
				w.commit(true)
			case n == 38:
				if w.random.IntN(2) == 0 {
					w.commit(false)
					w.attempts = map[int64]int{} // those of retries after the commit would be lost
				}
				clear(w.attempts)
				w.restart()
			default:
				for _, key := range []string{"a", "b", "c"} {
					w.o.Resume(key)
				}
			}
			if p := w.o.Prefix(); slices.ContainsFunc(w.log, func(m driver.Received) bool { return m.Place < p && !w.done[m.Place] }) {
				t.Fatalf("seed %d: prefix %d is above an offset that is not completed", seed, p)
			}
		}
		if len(w.done) != len(w.log) {
			t.Fatalf("seed %d: %d of %d offsets were handled", seed, len(w.done), len(w.log))
		}
		if w.o.held != (load{}) || w.o.blocked != (load{}) {
			t.Fatalf("seed %d: at the end %+v are held, and %+v blocked", seed, w.o.held, w.o.blocked)
		}
	}
}

// TestMetadata: what is encoded is decoded, as far as there is room.
func TestMetadata(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		c := Committed{Prefix: int64(random.IntN(1 << 30)), Token: int64(random.IntN(1 << 40)), Held: random.IntN(2) == 0, crashes: random.IntN(3)}
		c.Next = c.Prefix
		pending := 0
		for range random.IntN(150) {
			r := run{int64(1 + random.IntN(4)), int64(random.IntN(500))}
			if random.IntN(5) == 0 {
				c.attempts = append(c.attempts, attempt{pending, 2 + random.IntN(200)})
			}
			c.runs = append(c.runs, r)
			c.Next += r.pending + r.completed
			pending += int(r.pending)
		}
		limit := 128 + random.IntN(1500)
		text, whole := c.Encode(limit)
		d := Decode(c.Prefix, text)
		if len(text) > limit || d.Token != c.Token || d.Held != c.Held || d.crashes != c.crashes || d.Prefix != c.Prefix {
			t.Fatalf("%d bytes of %d: %+v became %+v", len(text), limit, c, d)
		}
		end := c.Prefix
		for _, r := range d.runs {
			end += r.pending + r.completed
		}
		if !slices.Equal(d.runs, c.runs[:len(d.runs)]) || d.Next != end || !slices.Equal(d.attempts, c.attempts[:len(d.attempts)]) {
			t.Fatalf("%+v became %+v", c, d)
		}
		if whole && (d.Next != c.Next || len(d.attempts) != len(c.attempts)) {
			t.Fatalf("%+v became %+v", c, d)
		}
	}
	c := Committed{Prefix: 7, Next: 9, runs: []run{{1, 1}}, Token: 5, Held: true}
	text, _ := c.Encode(4096)
	if d := Decode(8, text); d.Next != 8 || len(d.runs) > 0 || d.Token != 5 {
		t.Errorf("another offset: %+v", d)
	}
	for _, text := range []string{"", "consumer-1", mark, mark + "!", mark + "AA", mark + strings.Repeat("/", 30), text[:len(text)-3]} {
		if d := Decode(3, text); d.Prefix != 3 || d.Next < 3 {
			t.Errorf("%q: %+v", text, d)
		}
	}
}

// FuzzMetadata: no text breaks what reads it.
func FuzzMetadata(f *testing.F) {
	text, _ := Committed{Prefix: 3, Next: 90, runs: []run{{2, 4}, {1, 80}}, attempts: []attempt{{1, 2}}}.Encode(4096)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text string) {
		c := Decode(3, text)
		o := Restore(3, c, 1, 10)
		if o.Prefix() < 3 || len(o.pending) > maxPending {
			t.Error(fmt.Sprint(c))
		}
	})
}

// TestDeadLetterOfEndedAssignment: a partition that is given up while a handler runs commits nothing of
// its message unless the dead letter is written.
func TestDeadLetterOfEndedAssignment(t *testing.T) {
	c, a := newBare()
	written := 0
	c.DeadLetters = func(_ context.Context, dead []driver.Settlement) []error {
		written += len(dead)
		return make([]error, len(dead))
	}
	c.Update(func() { c.Arrive(a, 0, []byte("k"), 1) })
	all, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 1, Bytes: 1})
	if err != nil {
		t.Fatal(err)
	}
	a.End(interlock.ErrLost) // as GiveUp does, before its last commit
	answer := c.Settle(t.Context(), []driver.Settlement{{Received: all[0], Outcome: driver.Dead}})[0]
	if done := a.Offsets.Prefix() == 1; done && written == 0 || !done && !errors.Is(answer, interlock.ErrLost) {
		t.Errorf("%d dead letters are written, the offset to commit is %d, and the answer is %v", written, a.Offsets.Prefix(), answer)
	}
}

// TestDeadLettersAreWrittenOnce: a commit fails after dead letters are written. The repetition commits, and writes none again.
func TestDeadLettersAreWrittenOnce(t *testing.T) {
	c, a := newBare()
	var written []int64
	c.DeadLetters = func(_ context.Context, dead []driver.Settlement) []error {
		for _, s := range dead {
			written = append(written, s.Place)
		}
		return make([]error, len(dead))
	}
	failed := errors.New("not stored")
	c.Commit = func(context.Context, []*bare) map[*bare]error { return map[*bare]error{a: failed} }
	c.Update(func() {
		for i := range int64(3) {
			c.Arrive(a, i, []byte("k"), 1)
		}
	})
	all, err := c.Receive(t.Context(), driver.QueueLimit{Messages: 3, Bytes: 3})
	if err != nil {
		t.Fatal(err)
	}
	dead := []driver.Settlement{{Received: all[0], Later: all[1:], Outcome: driver.Dead}}
	for _, want := range []error{failed, failed, nil} {
		if want == nil {
			c.Commit = func(context.Context, []*bare) map[*bare]error { return nil }
		}
		if answer := c.Settle(t.Context(), dead)[0]; !errors.Is(answer, want) {
			t.Errorf("settled: %v, want %v", answer, want)
		}
	}
	if !slices.Equal(written, []int64{0, 1, 2}) || a.Offsets.Prefix() != 3 {
		t.Errorf("the dead letters %v are written, and the offset to commit is %d", written, a.Offsets.Prefix())
	}
}

// TestGiveUpReportsItsOwnPartitions: a commit is shared, and another partition of it may fail.
func TestGiveUpReportsItsOwnPartitions(t *testing.T) {
	failed := errors.New("not stored")
	for _, own := range []bool{false, true} {
		c, a := newBare()
		c.Commit = func(context.Context, []*bare) map[*bare]error {
			if own {
				return map[*bare]error{a: failed}
			}
			return map[*bare]error{a: nil, {}: failed}
		}
		if err := c.GiveUp(t.Context(), time.Second, time.Second, a); errors.Is(err, failed) != own {
			t.Errorf("its own failure: %v, reported: %v", own, err)
		}
	}
}

// bare is a driver that stores nothing.
type bare struct{ Assignment }

// newBare is a consumer with one partition.
func newBare() (*Consumer[*bare], *bare) {
	c := NewConsumer(Hooks[*bare]{Queue: "q", Owner: "o",
		Problem: func(_, _ string, _ interlock.ErrorKind, err error) error { return err },
		Commit:  func(context.Context, []*bare) map[*bare]error { return nil }})
	a := &bare{NewAssignment("q", 0, "o", boottime.NewLease(boottime.Sent(), time.Hour))}
	if err := a.Begin(Restore(0, Committed{}, 1, 1000)); err != nil {
		panic(err)
	}
	a.Ready = true
	c.Parts[0] = a
	return c, a
}

// pass has n messages pass a consumer: they arrive, are received, and settled.
func pass(c *Consumer[*bare], a *bare, n int, keys [][]byte) {
	c.Update(func() {
		for range n {
			place := a.Offsets.next
			c.Arrive(a, place, keys[int(place)%len(keys)], 0)
		}
	})
	all, err := c.Receive(context.Background(), driver.QueueLimit{Messages: n, Bytes: 1 << 30})
	if err != nil || len(all) != n {
		panic(fmt.Sprint(len(all), err))
	}
	settlements := make([]driver.Settlement, 0, len(all))
	for len(all) > 0 {
		same := 1
		for same < len(all) && all[same].Key == all[0].Key {
			same++
		}
		settlements = append(settlements, driver.Settlement{Received: all[0], Later: all[1:same], Outcome: driver.Ack})
		all = all[same:]
	}
	c.Settle(context.Background(), settlements)
	if o := a.Offsets; o.Prefix() != o.next {
		panic(fmt.Sprint(o.next-o.Prefix(), " are not settled"))
	}
}

// TestAllocations: a message costs no allocation of its own, also if its key had none for a while.
func TestAllocations(t *testing.T) {
	c, a := newBare()
	const records = 500
	keys := manyKeys(1000)
	pass(c, a, records, keys[:10]) // settlements of 50 messages
	pass(c, a, records, keys)      // half of the keys; AllocsPerRun begins with the others
	if n := testing.AllocsPerRun(20, func() { pass(c, a, records, keys) }); n > 25 {
		t.Errorf("%d messages took %.0f allocations", records, n)
	}
}

func manyKeys(n int) (keys [][]byte) {
	for i := range n {
		keys = append(keys, fmt.Append(nil, "key/", i))
	}
	return keys
}
