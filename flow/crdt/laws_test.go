package crdt

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/interlock-dev/interlock/driver"
)

var replicas = []string{"eu", "us", "ap"}

// value is a pointer to a T, which is a data type.
type value[T any] interface {
	*T
	Type
	Merge(T)
}

func encoded(t rapid.TB, x Type) []byte {
	b, err := Encode(x)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func decoded[T any, P value[T]](t rapid.TB, data []byte) *T {
	x := new(T)
	if err := Decode(data, P(x)); err != nil {
		t.Fatal(err)
	}
	return x
}

// merged returns the join of encoded values.
func merged[T any, P value[T]](t rapid.TB, all ...[]byte) []byte {
	x := new(T)
	for _, data := range all {
		P(x).Merge(*decoded[T, P](t, data))
	}
	return encoded(t, P(x))
}

// network runs operations at replicas whose deltas, as bytes, are lost, repeated and reordered.
// operate runs one operation and returns its delta; look checks each replica's value after each
// step. network checks the laws of Merge on the values and deltas. All replicas must be equal
// after each has received the states of the others.
func network[T any, P value[T]](t *testing.T, operate func(t *rapid.T, x P, replica int) T, deliver func(to, message int), look func(t *rapid.T, x P, replica int)) {
	rapid.Check(t, func(t *rapid.T) {
		states, messages := make([]T, len(replicas)), [][]byte{}
		deliver(-1, 0)
		receive := func(to, m int) {
			P(&states[to]).Merge(*decoded[T, P](t, messages[m]))
			deliver(to, m)
		}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			at := rapid.IntRange(0, len(states)-1).Draw(t, "at")
			if len(messages) > 0 && rapid.Bool().Draw(t, "deliver") {
				receive(at, rapid.IntRange(0, len(messages)-1).Draw(t, "message"))
			} else {
				before := encoded(t, P(&states[at]))
				delta := operate(t, &states[at], at)
				messages = append(messages, encoded(t, P(&delta)))
				if after := merged[T, P](t, before, messages[len(messages)-1]); !bytes.Equal(after, encoded(t, P(&states[at]))) {
					t.Fatalf("state with delta is\n%q, want\n%q", after, encoded(t, P(&states[at])))
				}
			}
			look(t, &states[at], at)
		}
		all := slices.Clone(messages)
		for i := range states {
			all = append(all, encoded(t, P(&states[i])))
		}
		draw := func(name string) []byte { return all[rapid.IntRange(0, len(all)-1).Draw(t, name)] }
		laws[T, P](t, draw("a"), draw("b"), draw("c"))
		for i := range states {
			for m := range messages {
				if rapid.Bool().Draw(t, "late") {
					receive(i, m)
				}
			}
		}
		for m := range messages { // also after losses
			for i := range states {
				receive(i, m)
			}
		}
		for i := range states {
			look(t, &states[i], i)
			if got, want := encoded(t, P(&states[i])), encoded(t, P(&states[0])); !bytes.Equal(got, want) {
				t.Fatalf("replica %d is\n%q, want\n%q", i, got, want)
			}
		}
	})
}

func laws[T any, P value[T]](t *rapid.T, a, b, c []byte) {
	join := merged[T, P]
	if !bytes.Equal(join(t, a, b), join(t, b, a)) {
		t.Fatalf("not commutative: %q, %q", a, b)
	}
	if !bytes.Equal(join(t, join(t, a, b), c), join(t, a, join(t, b, c))) {
		t.Fatalf("not associative: %q, %q, %q", a, b, c)
	}
	if ab := join(t, a, b); !bytes.Equal(join(t, ab, b), ab) || !bytes.Equal(join(t, a, a), join(t, a)) {
		t.Fatalf("not idempotent: %q, %q", a, b)
	}
}

// history has the expected knowledge of each replica: the numbers of the operations that it ran or
// received.
type history struct {
	operations []any
	known      []map[int]bool
}

func (h *history) deliver(to, message int) {
	if to < 0 {
		*h = history{known: []map[int]bool{{}, {}, {}}}
		return
	}
	h.known[to][message] = true
}

// add records the operation of the next message.
func (h *history) add(replica int, operation any) {
	h.known[replica][len(h.operations)] = true
	h.operations = append(h.operations, operation)
}

// sum returns the expected sum. Counts are cumulative: the latest received operation of a
// replica includes all earlier ones.
func (h *history) sum(replica int) (total int64) {
	last := map[int]int{}
	for i := range h.known[replica] {
		key := h.operations[i].(added).key()
		last[key] = max(last[key], i)
	}
	for i, operation := range h.operations {
		o := operation.(added)
		if n, ok := last[o.key()]; ok && i <= n {
			total += o.n
		}
	}
	return total
}

type added struct {
	replica int
	n       int64
}

func (o added) key() int {
	if o.n < 0 {
		return -1 - o.replica
	}
	return o.replica
}

func TestGCounter(t *testing.T)  { testCounter[GCounter](t, 0) }
func TestPNCounter(t *testing.T) { testCounter[PNCounter](t, -9) }

func testCounter[T any, P interface {
	value[T]
	Add(replica string, n int64) (T, error)
	Value() int64
}](t *testing.T, least int64) {
	var h history
	network[T, P](t, func(t *rapid.T, c P, replica int) T {
		n := rapid.Int64Range(least, 9).Draw(t, "n")
		delta, err := c.Add(replicas[replica], n)
		if err != nil {
			t.Fatal(err)
		}
		h.add(replica, added{replica, n})
		return delta
	}, h.deliver, func(t *rapid.T, c P, replica int) {
		if got, want := c.Value(), h.sum(replica); got != want {
			t.Fatalf("the value is %d, want %d", got, want)
		}
	})
}

// edit is an operation on a set, which replaces the observed additions.
type edit struct {
	element  string
	add      bool
	observed map[int]bool
}

// TestORSet: an ORSet equals a set with tombstones in which every addition is unique.
func TestORSet(t *testing.T) {
	var h history
	present := func(replica int) []string {
		elements := map[string]bool{}
		for i := range h.known[replica] {
			e := h.operations[i].(edit)
			for j := range h.known[replica] {
				e.add = e.add && !h.operations[j].(edit).observed[i]
			}
			if e.add {
				elements[e.element] = true
			}
		}
		return slices.Sorted(maps.Keys(elements))
	}
	network(t, func(t *rapid.T, s *ORSet, replica int) (delta ORSet) {
		e := edit{rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "element"), rapid.IntRange(0, 2).Draw(t, "add") > 0, map[int]bool{}}
		for i := range h.known[replica] {
			if other := h.operations[i].(edit); other.add && other.element == e.element {
				e.observed[i] = true
			}
		}
		for i := range e.observed { // earlier removals are not observed
			for j := range h.known[replica] {
				if h.operations[j].(edit).observed[i] {
					delete(e.observed, i)
				}
			}
		}
		if !e.add {
			delta = s.Remove(e.element)
		} else {
			var err error
			if delta, err = s.Add(replicas[replica], e.element); err != nil {
				t.Fatal(err)
			}
			if !s.Contains(e.element) {
				t.Fatalf("%q was added and is not there", e.element)
			}
		}
		h.add(replica, e)
		return delta
	}, h.deliver, func(t *rapid.T, s *ORSet, replica int) {
		if got, want := s.Elements(), present(replica); !slices.Equal(got, want) || s.Len() != len(want) {
			t.Fatalf("the set is %q, want %q", got, want)
		}
	})
}

// write is an operation on a map.
type write struct {
	key, value string
	at         driver.Stamp
	deleted    bool
}

func (w write) less(other write) bool {
	if order := w.at.Compare(other.at); order != 0 {
		return order < 0
	}
	if w.deleted != other.deleted {
		return w.deleted
	}
	return w.value < other.value
}

func drawWrite(t *rapid.T, keys ...string) write {
	return write{
		key:     rapid.SampledFrom(keys).Draw(t, "key"),
		value:   rapid.SampledFrom([]string{"", "x", "\x00", "y"}).Draw(t, "value"),
		at:      driver.Stamp{Version: rapid.SampledFrom([]int64{1, 2, 10}).Draw(t, "version"), Tie: rapid.SampledFrom([]string{"", "a", "ab", "b"}).Draw(t, "tie")},
		deleted: rapid.IntRange(0, 3).Draw(t, "delete") == 0,
	}
}

// last returns the greatest write of a key that a replica knows.
func (h *history) last(replica int, key string) (last write, ok bool) {
	for i := range h.known[replica] {
		if w := h.operations[i].(write); w.key == key && (!ok || last.less(w)) {
			last, ok = w, true
		}
	}
	return last, ok
}

func TestMap(t *testing.T) {
	var h history
	network(t, func(t *rapid.T, m *Map, replica int) Map {
		w := drawWrite(t, "", "k", "l")
		delta, err := Map{}, error(nil)
		if w.deleted {
			w.value = ""
			delta, err = m.Delete(w.key, w.at)
		} else {
			delta, err = m.Set(w.key, w.value, w.at)
		}
		if err != nil {
			t.Fatal(err)
		}
		h.add(replica, w)
		return delta
	}, h.deliver, func(t *rapid.T, m *Map, replica int) {
		var keys []string
		for _, key := range []string{"", "k", "l"} {
			want, known := h.last(replica, key)
			if value, at, ok := m.Get(key); value != want.value || at != want.at || ok != (known && !want.deleted) {
				t.Fatalf("%q is %q at %v, %v; want %+v", key, value, at, ok, want)
			}
			if known && !want.deleted {
				keys = append(keys, key)
			}
		}
		if got := m.Keys(); !slices.Equal(got, keys) {
			t.Fatalf("the keys are %q, want %q", got, keys)
		}
	})
}

func TestRegister(t *testing.T) {
	var h history
	network(t, func(t *rapid.T, r *Register, replica int) Register {
		w := drawWrite(t, "")
		w.deleted = false
		delta, err := r.Set(w.value, w.at)
		if err != nil {
			t.Fatal(err)
		}
		h.add(replica, w)
		return delta
	}, h.deliver, func(t *rapid.T, r *Register, replica int) {
		want, _ := h.last(replica, "")
		if value, at := r.Value(); value != want.value || at != want.at {
			t.Fatalf("it is %q at %v, want %+v", value, at, want)
		}
	})
}

// TestBounded: many replicas sell units. No replica's value is ever below zero, and in the end
// exactly the untaken units remain.
func TestBounded(t *testing.T) {
	var h history
	network(t, func(t *rapid.T, b *Bounded, replica int) (delta Bounded) {
		own, to := replicas[replica], replicas[(replica+1+rapid.IntRange(0, 1).Draw(t, "to"))%len(replicas)]
		share, n := b.Share(own), rapid.Int64Range(0, 6).Draw(t, "n")
		change, err := int64(0), error(nil)
		switch rapid.IntRange(0, 3).Draw(t, "operation") {
		case 0:
			delta, err = b.Add(own, n)
			change = n
		case 1:
			delta, err = b.Move(own, to, n)
		default:
			delta, err = b.Take(own, n)
			change = -n
		}
		if short, found := errors.AsType[*ShortError](err); err != nil && (change > 0 || n <= share || !found || *short != ShortError{own, n, share}) {
			t.Fatalf("%d of %d units: %v", n, share, err)
		}
		if err != nil {
			change = 0
		}
		h.add(replica, change)
		return delta
	}, h.deliver, func(t *rapid.T, b *Bounded, replica int) {
		left, shares := int64(0), int64(0)
		for _, change := range h.operations {
			left += change.(int64)
		}
		for _, r := range replicas {
			shares += b.Share(r)
		}
		if b.Value() < 0 || left < 0 {
			t.Fatalf("the value is %d, %d units are left", b.Value(), left)
		}
		if all := len(h.known[replica]) == len(h.operations); all && (b.Value() != left || shares != left) {
			t.Fatalf("the value is %d, the shares are %d, %d units are left", b.Value(), shares, left)
		}
	})
}
