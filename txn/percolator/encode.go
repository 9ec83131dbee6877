package percolator

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	// recordFormat is the first byte of a record. After it come varints, as in
	// encoding/binary, and texts with their length:
	//
	//	safe point
	//	kind and flags of the lock; if there is one, its start, expiry, lowest commit
	//	timestamp, primary, store and value; if pushBit is set, first and last push
	//	number of versions; for each its commit, start, kind with flag, and value
	//	number of aborted transactions; the start of each
	//
	// A timestamp is its difference to the one before it, since most are close together.
	recordFormat = 2
	// documentFormat is the format of the mapping and of the safe point, which are JSON.
	documentFormat = 1

	flagBit = 1 << 2 // beside the kind: Alone of a lock, Primary of a version
	lockBit = 1 << 3 // beside the kind: there is a lock
	pushBit = 1 << 4 // beside the kind: readers have raised the lowest commit timestamp
)

var errFormat = errors.New("the record is of another format or damaged")

func (r record) encode() []byte {
	size := 64 + 8*len(r.Aborted)
	if l := r.Lock; l != nil {
		size += 32 + len(l.Primary) + len(l.Store) + len(l.Value)
	}
	for _, w := range r.Writes {
		size += 12 + len(w.Value)
	}
	e := encoder{data: append(make([]byte, 0, size), recordFormat)}
	e.time(r.Safe)
	if l := r.Lock; l != nil {
		k := l.Kind | lockBit
		if l.FirstPush|l.LastPush != 0 {
			k |= pushBit
		}
		e.head(k, l.Alone)
		e.time(l.Start)
		e.time(l.Expires)
		e.number(uint64(l.MinCommit))
		e.text([]byte(l.Primary))
		e.text([]byte(l.Store))
		e.text(l.Value)
		if l.FirstPush|l.LastPush != 0 {
			e.time(l.FirstPush)
			e.time(l.LastPush)
		}
	} else {
		e.head(0, false)
	}
	e.number(uint64(len(r.Writes)))
	for _, w := range r.Writes {
		e.time(w.Commit)
		e.time(w.Start)
		e.head(w.Kind, w.Primary)
		e.text(w.Value)
	}
	e.number(uint64(len(r.Aborted)))
	for _, start := range r.Aborted {
		e.time(start)
	}
	return e.data
}

// decode reads a record. Its values are parts of data.
func decode(data []byte) (r record, err error) {
	if len(data) == 0 || data[0] != recordFormat {
		return r, fmt.Errorf("%w: it begins with %.10q, records of this version with %d", errFormat, data, recordFormat)
	}
	d := decoder{data: data[1:]}
	r.Safe = d.time()
	if k, alone := d.head(status | lockBit | pushBit); k&lockBit != 0 {
		r.Lock = &lock{Kind: k & status, Alone: alone, Start: d.time(), Expires: d.time(), MinCommit: Timestamp(d.number()),
			Primary: string(d.text()), Store: string(d.text()), Value: d.text()}
		if k&pushBit != 0 {
			r.Lock.FirstPush, r.Lock.LastPush = d.time(), d.time()
		}
	}
	if n := d.count(4); n > 0 {
		r.Writes = make([]write, n)
		for i := range r.Writes {
			w := &r.Writes[i]
			w.Commit, w.Start = d.time(), d.time()
			w.Kind, w.Primary = d.head(status)
			w.Value = d.text()
		}
	}
	if n := d.count(1); n > 0 {
		r.Aborted = make(aborts, n)
		for i := range r.Aborted {
			r.Aborted[i] = d.time()
		}
	}
	if d.failed || len(d.data) > 0 {
		return record{}, errFormat
	}
	return r, nil
}

// encoder writes an encoding.
type encoder struct {
	data []byte
	last Timestamp
}

func (e *encoder) number(n uint64) { e.data = binary.AppendUvarint(e.data, n) }

func (e *encoder) time(t Timestamp) {
	e.data = binary.AppendVarint(e.data, int64(t-e.last))
	e.last = t
}

func (e *encoder) head(k kind, flag bool) {
	if flag {
		k |= flagBit
	}
	e.data = append(e.data, byte(k))
}

func (e *encoder) text(text []byte) {
	e.number(uint64(len(text)))
	e.data = append(e.data, text...)
}

// decoder reads an encoding. After a failure it reads zeros.
type decoder struct {
	data   []byte
	last   Timestamp
	failed bool
}

func (d *decoder) fail() { d.data, d.failed = nil, true }

// skip drops the n bytes of a number; n below 1 is a failure.
func (d *decoder) skip(n int) {
	if n <= 0 {
		d.fail()
		return
	}
	d.data = d.data[n:]
}

func (d *decoder) number() uint64 {
	n, size := binary.Uvarint(d.data)
	d.skip(size)
	return n
}

func (d *decoder) time() Timestamp {
	change, size := binary.Varint(d.data)
	d.skip(size)
	d.last += Timestamp(change)
	return d.last
}

// head reads a kind, of which only the bits of mask may be set, and its flag.
func (d *decoder) head(mask kind) (k kind, flag bool) {
	if len(d.data) == 0 || kind(d.data[0])&^(mask|flagBit) != 0 {
		d.fail()
		return 0, false
	}
	k = kind(d.data[0])
	d.data = d.data[1:]
	return k &^ flagBit, k&flagBit != 0
}

// count reads the length of a list whose members have at least least bytes each.
func (d *decoder) count(least int) int {
	n := d.number()
	if n > uint64(len(d.data)/least) {
		d.fail()
		return 0
	}
	return int(n)
}

// text reads a text; an empty one is nil.
func (d *decoder) text() []byte {
	n := d.count(1)
	if n == 0 {
		return nil
	}
	text := d.data[:n:n]
	d.data = d.data[n:]
	return text
}
