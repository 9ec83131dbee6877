package lanes

import (
	"encoding/base64"
	"encoding/binary"
	"strings"
)

// Committed is what a commit stores of a partition: the offset, and the metadata beside it.
type Committed struct {
	Prefix   int64   // the offset: everything below is completed
	Next     int64   // below it everything is completed that is not pending
	pending  []int64 // in order; the first is prefix, unless there are none
	attempts []attempt
	Token    int64 // counter of the token of the assignment that committed
	Held     bool  // that assignment goes on; it has died if another one finds this
	crashes  int   // assignments that died before it, with the same prefix
}

// attempt is the number of the next attempt of pending[index], if it is not the first.
type attempt struct{ index, number int }

func (c Committed) attempt(index int) int {
	for _, a := range c.attempts {
		if a.index == index {
			return a.number
		}
	}
	return 1
}

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
	var head, runs []byte
	for _, n := range []uint64{flags, uint64(c.Token), uint64(c.crashes), uint64(c.Prefix)} {
		head = binary.AppendUvarint(head, n)
	}
	room -= len(head)
	count, whole := 0, true
	add := func(pending, completed int64) {
		pair := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(pending)), uint64(completed))
		if whole = whole && len(pair) <= room; whole {
			room -= len(pair)
			runs = append(runs, pair...)
			count += 2
		}
	}
	for i := 0; i < len(c.pending) && whole; {
		from := i
		for i++; i < len(c.pending) && c.pending[i] == c.pending[i-1]+1; i++ {
		}
		end := c.Next
		if i < len(c.pending) {
			end = c.pending[i]
		}
		add(int64(i-from), end-c.pending[i-1]-1)
	}
	all := append(binary.AppendUvarint(head, uint64(count)), runs...)
	for _, a := range c.attempts {
		pair := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(a.index)), uint64(a.number))
		if whole = whole && len(pair) <= room; !whole {
			break
		}
		room -= len(pair)
		all = append(all, pair...)
	}
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
	for left := numbers.read(); left > 0 && !numbers.bad; left -= 2 {
		pending, completed := numbers.read(), numbers.read()
		if pending > maxPending-int64(len(c.pending)) {
			break
		}
		for range pending {
			c.pending = append(c.pending, c.Next)
			c.Next++
		}
		c.Next += completed
	}
	for !numbers.bad && len(numbers.data) > 0 {
		if a := (attempt{int(numbers.read()), int(numbers.read())}); !numbers.bad {
			c.attempts = append(c.attempts, a)
		}
	}
	return c
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
