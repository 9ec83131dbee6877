package lanes

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/interlock-dev/interlock"
)

// Committed is what a commit stores of a partition: the offset, and the metadata beside it.
type Committed struct {
	Prefix   int64 // the offset: everything below is completed
	Next     int64 // below it everything is completed that is not pending
	runs     []run // from Prefix to Next, unless nothing is pending
	attempts []attempt
	Token    int64 // counter of the token of the assignment that committed
	Held     bool  // that assignment goes on; it has died if another one finds this
	crashes  int   // assignments that died before it, with the same prefix
}

// run is a number of pending offsets, and of completed ones that follow them.
type run struct{ pending, completed int64 }

// attempt is the number of the next attempt of a pending offset, if it is not the first. index is
// the number of pending offsets before it.
type attempt struct{ index, number int }

// mark begins metadata, so that those of other clients are not taken for ours.
const mark = "interlock/1:"

const isHeld = 1

// Encode returns the metadata, in at most limit bytes. whole reports whether all of it has
// room; if not, less is known of the offsets that come last: those are pending, with attempt 1.
//
// The metadata is the mark and the base64 form of numbers (varints): flags, token, crashes,
// prefix; the number of runs, and the lengths of runs of offsets from prefix on, in turn
// pending and completed; then an index and a number for each attempt.
func (c Committed) Encode(limit int) (text string, whole bool) {
	room := (limit-len(mark))/4*3 - binary.MaxVarintLen32 // of bytes before base64; the number of runs takes some
	flags := uint64(0)
	if c.Held {
		flags |= isHeld
	}
	var head, runs, attempts []byte
	for _, n := range []uint64{flags, uint64(c.Token), uint64(c.crashes), uint64(c.Prefix)} {
		head = binary.AppendUvarint(head, n)
	}
	room -= len(head)
	whole = true
	add := func(to []byte, a, b uint64) []byte {
		longer := binary.AppendUvarint(binary.AppendUvarint(to, a), b)
		if size := len(longer) - len(to); whole && size <= room {
			room -= size
			return longer
		}
		whole = false
		return to
	}
	count := uint64(0)
	for _, r := range c.runs {
		if runs = add(runs, uint64(r.pending), uint64(r.completed)); !whole {
			break
		}
		count += 2
	}
	for _, a := range c.attempts {
		attempts = add(attempts, uint64(a.index), uint64(a.number))
	}
	all := slices.Concat(binary.AppendUvarint(head, count), runs, attempts)
	return mark + base64.RawStdEncoding.EncodeToString(all), whole
}

// Decode reads metadata that were committed with an offset. Those of other clients, and of
// another offset, say nothing of it.
func Decode(offset int64, text string) (c Committed) {
	c.Prefix, c.Next = offset, offset
	text, ok := strings.CutPrefix(text, mark)
	data, err := base64.RawStdEncoding.DecodeString(text)
	if !ok || err != nil {
		return c
	}
	numbers := &numbers{data: data}
	flags, token, crashes, prefix := numbers.read(), numbers.read(), numbers.read(), numbers.read()
	if numbers.bad {
		return c
	}
	c.Token = token
	if prefix != offset { // somebody has moved the offset
		return c
	}
	c.Held, c.crashes = flags&isHeld != 0, int(crashes)
	pending := int64(0)
	for left := numbers.read(); left > 0 && !numbers.bad; left -= 2 {
		r := run{numbers.read(), numbers.read()}
		if r.pending > maxPending-pending || r.completed > math.MaxInt64-c.Next-r.pending {
			break
		}
		c.runs = append(c.runs, r)
		pending += r.pending
		c.Next += r.pending + r.completed
	}
	for !numbers.bad && len(numbers.data) > 0 {
		if a := (attempt{int(numbers.read()), int(numbers.read())}); !numbers.bad {
			c.attempts = append(c.attempts, a)
		}
	}
	return c
}

// Until returns what is still true if the log has lost all from end on: other records may follow there.
func (c Committed) Until(end int64) Committed {
	if c.Next <= end {
		return c
	}
	first := min(c.Prefix, end)
	return Committed{Prefix: first, Next: first, Token: c.Token, Held: c.Held}
}

// maxPending bounds what is believed of metadata.
const maxPending = 1 << 20

// numbers reads varints.
type numbers struct {
	data []byte
	bad  bool
}

func (n *numbers) read() int64 {
	x, size := binary.Uvarint(n.data)
	if size <= 0 || int64(x) < 0 {
		n.data, n.bad = nil, true
		return 0
	}
	n.data = n.data[size:]
	return int64(x)
}

// Commits stores the state of assignments. One commit runs at a time. Requests that arrive
// meanwhile share the next one.
type Commits[A comparable] struct {
	// Send stores the present state of the assignments that are the keys of answers, and sets the
	// error of each. It limits its own time.
	Send func(answers map[A]error)
	// Problem is the error of an assignment whose state is not stored, or may not be.
	Problem func(a A, kind interlock.ErrorKind, err error) error

	mu      sync.Mutex
	next    *batch[A]
	sending bool
	closed  bool
	sender  sync.WaitGroup
}

// batch is one commit, shared by all who asked for it while the former one ran.
type batch[A comparable] struct {
	answers map[A]error
	done    chan struct{}
}

// Commit stores the present state of assignments, and returns an error for each.
func (c *Commits[A]) Commit(ctx context.Context, parts []A) map[A]error {
	kind, err := interlock.Definite, interlock.ErrLost
	if b := c.join(parts); b != nil {
		select {
		case <-b.done:
			return b.answers
		case <-ctx.Done():
			kind, err = interlock.Uncertain, context.Cause(ctx)
		}
	}
	answers := map[A]error{}
	for _, a := range parts {
		answers[a] = c.Problem(a, kind, err)
	}
	return answers
}

// join adds assignments to the next commit; nil after Close.
func (c *Commits[A]) join(parts []A) *batch[A] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	if c.next == nil {
		c.next = &batch[A]{map[A]error{}, make(chan struct{})}
	}
	for _, a := range parts {
		c.next.answers[a] = nil
	}
	if !c.sending {
		c.sending = true
		c.sender.Go(c.send)
	}
	return c.next
}

// send sends batches until there is none.
func (c *Commits[A]) send() {
	for {
		c.mu.Lock()
		b := c.next
		if c.next = nil; b == nil {
			c.sending = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		c.Send(b.answers)
		close(b.done)
	}
}

// Close waits for the commit that runs. Nothing is stored afterwards.
func (c *Commits[A]) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.sender.Wait()
}
