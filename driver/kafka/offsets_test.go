package kafka

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/interlock-dev/interlock/driver"
)

// world plays consumers of one partition against a log, and knows what they may do.
type world struct {
	*testing.T
	random   *rand.Rand
	metadata int
	log      []*kgo.Record  // with gaps in their offsets
	done     map[int64]bool // completed
	kept     map[int64]bool // completed, and committed in metadata that had room for all
	prefix   int64          // committed
	text     string         // its metadata
	token    int64

	o        *offsets
	read     int // index of the log
	out      []*entry
	now      time.Time
	commits  int
	attempts map[int64]int // least attempt of a next delivery
}

// restart begins a new assignment at what is committed.
func (w *world) restart() {
	w.o = restore(w.prefix, decode(w.prefix, w.text), 1, 100)
	if w.o.token <= w.token {
		w.Fatalf("token %d after %d", w.o.token, w.token)
	}
	w.token = w.o.token
	w.out, w.read = nil, 0
	for w.read < len(w.log) && w.log[w.read].Offset < w.o.prefix() {
		w.read++
	}
	for _, r := range w.log[:w.read] {
		if !w.done[r.Offset] {
			w.Fatalf("offset %d is lost: the next assignment begins at %d", r.Offset, w.o.prefix())
		}
	}
	w.commit(true)
}

// commit commits, as a consumer does that may die before it has the answer.
func (w *world) commit(held bool) {
	c := w.o.snapshot(held)
	text, whole := c.encode(w.metadata)
	if len(text) > w.metadata {
		w.Fatalf("metadata of %d bytes", len(text))
	}
	w.prefix, w.text = c.prefix, text
	w.commits++
	clear(w.kept)
	for offset := range w.done {
		if i, found := w.o.find(offset); whole && (!found || w.o.pending[i].completed) && offset < c.next {
			w.kept[offset] = true
		}
	}
}

func (w *world) arrive() {
	if w.read < len(w.log) {
		w.o.arrive(w.log[w.read])
		w.read++
	}
}

func (w *world) take() {
	limit := driver.QueueLimit{Messages: 1 + w.random.IntN(6), Bytes: 1 << 20}
	w.o.take(&limit, true, w.now, func(e *entry) {
		key, attempt := string(e.record.Key), e.attempt+e.crashes
		if w.done[e.offset] && w.kept[e.offset] {
			w.Fatalf("offset %d was completed, and is delivered again", e.offset)
		}
		for _, before := range w.log {
			if before.Offset < e.offset && string(before.Key) == key && key != "" && !w.done[before.Offset] && !slices.ContainsFunc(w.out, func(x *entry) bool { return x.offset == before.Offset }) {
				w.Fatalf("offset %d of key %q is delivered before %d", e.offset, key, before.Offset)
			}
		}
		if slices.ContainsFunc(w.out, func(x *entry) bool { return x.offset == e.offset }) {
			w.Fatalf("offset %d is delivered twice", e.offset)
		}
		if attempt < w.attempts[e.offset] {
			w.Fatalf("offset %d has attempt %d, want %d", e.offset, attempt, w.attempts[e.offset])
		}
		w.out = append(w.out, e)
	})
}

// settle ends one delivery: the first of its key, as a consumer that handles a key in order.
func (w *world) settle() {
	if len(w.out) == 0 {
		return
	}
	e := w.out[w.random.IntN(len(w.out))]
	of := func(x *entry) bool { return x.lane == e.lane }
	e = w.out[slices.IndexFunc(w.out, of)]
	s := driver.Settlement{Received: driver.Received{Place: e.offset}, After: time.Duration(w.random.IntN(5)) * time.Second,
		Outcome: []driver.Outcome{driver.Ack, driver.Ack, driver.Ack, driver.Dead, driver.Retry, driver.Release, driver.Park}[w.random.IntN(7)]}
	if s.Outcome == driver.Ack || s.Outcome == driver.Dead {
		w.o.complete(e.offset)
		w.o.sweep()
		w.done[e.offset] = true
		w.out = slices.DeleteFunc(w.out, func(x *entry) bool { return x == e })
		return
	}
	if s.Outcome == driver.Park && e.lane.key == "" {
		s.Outcome = driver.Retry // nobody could resume it
	}
	if s.Outcome == driver.Retry {
		w.attempts[e.offset] = e.attempt + e.crashes + 1
	}
	for _, x := range w.out { // what is behind it is released
		if of(x) {
			w.o.giveBack(s, w.now)
			if s = (driver.Settlement{Received: driver.Received{Place: x.offset}, Outcome: driver.Release}); x != e {
				w.o.giveBack(s, w.now)
			}
		}
	}
	w.out = slices.DeleteFunc(w.out, of)
}

// TestOffsets plays random courses of a partition, with crashes at any point. Nothing is lost,
// the order of a key holds, a completed offset that was committed is not delivered again.
func TestOffsets(t *testing.T) {
	for seed := range uint64(400) {
		w := &world{T: t, random: rand.New(rand.NewPCG(seed, 0)), metadata: DefaultMetadata, done: map[int64]bool{}, kept: map[int64]bool{},
			attempts: map[int64]int{}, now: time.Unix(0, 0)}
		if seed%4 == 0 {
			w.metadata = 64
		}
		for offset := int64(0); len(w.log) < 60; offset += 1 + int64(w.random.IntN(4)/3) {
			w.log = append(w.log, &kgo.Record{Offset: offset, Key: []byte([]string{"", "a", "b", "c"}[w.random.IntN(4)])})
		}
		w.restart()
		end := w.log[len(w.log)-1].Offset + 1
		for step := 0; w.o.prefix() < end; step++ {
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
					w.o.resume(key)
				}
			}
			if p := w.o.prefix(); slices.ContainsFunc(w.log, func(r *kgo.Record) bool { return r.Offset < p && !w.done[r.Offset] }) {
				t.Fatalf("seed %d: prefix %d is above an offset that is not completed", seed, p)
			}
		}
		if len(w.done) != len(w.log) {
			t.Fatalf("seed %d: %d of %d offsets were handled", seed, len(w.done), len(w.log))
		}
	}
}

// TestOffsetsAllocations: a record costs two allocations, its entry and its id, if its key has others.
func TestOffsetsAllocations(t *testing.T) {
	const n = 500
	var keys [100][]byte
	for i := range keys {
		keys[i] = []byte{byte(i)}
	}
	a := &assignment{offsets: restore(0, committed{}, 1, 100)}
	o, offset := a.offsets, int64(0)
	all := make([]driver.Received, 0, n)
	allocations := testing.AllocsPerRun(10, func() {
		records := make([]kgo.Record, n)
		for i := range records {
			records[i] = kgo.Record{Topic: "t", Offset: offset, Key: keys[i%len(keys)]}
			o.arrive(&records[i])
			offset++
		}
		limit := driver.QueueLimit{Messages: n, Bytes: 1}
		all = all[:0]
		o.take(&limit, true, time.Time{}, func(e *entry) { all = append(all, received(e, a)) })
		for _, m := range all[:n-len(keys)] { // the keys stay
			o.complete(m.Place)
		}
		o.sweep()
	})
	if len(all) != n || all[n-1].Place != offset-1 || allocations > 2*n+20 {
		t.Errorf("%d records took %.0f allocations", len(all), allocations)
	}
}

// TestMetadata: what is encoded is decoded, as far as there is room.
func TestMetadata(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		c := committed{prefix: int64(random.IntN(1 << 30)), token: int64(random.IntN(1 << 40)), held: random.IntN(2) == 0, crashes: random.IntN(3)}
		c.next = c.prefix
		for range random.IntN(300) {
			c.pending = append(c.pending, c.next)
			if random.IntN(9) == 0 {
				c.attempts = append(c.attempts, attempt{len(c.pending) - 1, 2 + random.IntN(200)})
			}
			if c.next++; random.IntN(2) == 0 {
				c.next += int64(random.IntN(500))
			}
		}
		limit := 128 + random.IntN(1500)
		text, whole := c.encode(limit)
		d := decode(c.prefix, text)
		if len(text) > limit || d.token != c.token || d.held != c.held || d.crashes != c.crashes || d.prefix != c.prefix {
			t.Fatalf("%d bytes of %d: %+v became %+v", len(text), limit, c, d)
		}
		if !slices.Equal(d.pending, c.pending[:len(d.pending)]) || d.next > c.next || len(d.pending) < len(c.pending) && d.next > c.pending[len(d.pending)] {
			t.Fatalf("%+v became %+v", c, d)
		}
		if whole && (d.next != c.next || len(d.pending) != len(c.pending) || !slices.Equal(d.attempts, c.attempts)) {
			t.Fatalf("%+v became %+v", c, d)
		}
	}
	c := committed{prefix: 7, next: 9, pending: []int64{7}, token: 5, held: true}
	text, _ := c.encode(DefaultMetadata)
	if d := decode(8, text); d.next != 8 || len(d.pending) > 0 || d.token != 5 {
		t.Errorf("another offset: %+v", d)
	}
	for _, text := range []string{"", "consumer-1", mark, mark + "!", mark + "AA", mark + strings.Repeat("/", 30), text[:len(text)-3]} {
		if d := decode(3, text); d.prefix != 3 || d.next < 3 {
			t.Errorf("%q: %+v", text, d)
		}
	}
}

// FuzzMetadata: no text breaks what reads it.
func FuzzMetadata(f *testing.F) {
	text, _ := committed{prefix: 3, next: 90, pending: []int64{3, 4, 9}, attempts: []attempt{{1, 2}}}.encode(DefaultMetadata)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text string) {
		c := decode(3, text)
		o := restore(3, c, 1, 10)
		if o.prefix() < 3 || len(o.pending) > maxPending {
			t.Error(fmt.Sprint(c))
		}
	})
}
