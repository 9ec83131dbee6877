package crdt

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// MaxEncoded is the longest encoding, in bytes.
const MaxEncoded = 1 << 20

// format is the first byte of every encoding; the second is the kind.
const format = 1

// Encode writes a value or a delta. One value has one encoding. It is a Bug if it is longer than
// [MaxEncoded].
func Encode(t Type) ([]byte, error) {
	b := encode(t.kind(), *t.state())
	if len(b) > MaxEncoded {
		return nil, bug("encode", t.kind().String(), fmt.Errorf("it has %d bytes, at most %d are allowed", len(b), MaxEncoded))
	}
	return b, nil
}

func encode(k kind, l driver.Lattice) []byte {
	b := []byte{format, byte(k)}
	b = binary.AppendUvarint(b, uint64(len(l.Max)))
	for _, field := range slices.Sorted(maps.Keys(l.Max)) {
		b = appendText(appendText(b, field), l.Max[field])
	}
	b = binary.AppendUvarint(b, uint64(len(l.Dots)))
	for _, d := range slices.SortedFunc(maps.Keys(l.Dots), compareDots) {
		b = appendText(binary.AppendUvarint(appendText(b, d.Replica), uint64(d.N)), l.Dots[d])
	}
	b = binary.AppendUvarint(b, uint64(len(l.Seen)))
	for _, replica := range slices.Sorted(maps.Keys(l.Seen)) {
		b = binary.AppendUvarint(appendText(b, replica), uint64(len(l.Seen[replica])))
		for _, r := range l.Seen[replica] {
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(r.First)), uint64(r.Last))
		}
	}
	return b
}

func appendText(b []byte, text string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}

func compareDots(a, b driver.Dot) int {
	return cmp.Or(strings.Compare(a.Replica, b.Replica), cmp.Compare(a.N, b.N))
}

// Decode replaces t by an encoded value. It validates the bytes: if they are not the encoding of a value
// of t's type, the error is Definite and t is unchanged.
func Decode(data []byte, t Type) error {
	l, err := decode(data, t.kind())
	if err == nil {
		err = replace(t, l)
	}
	if err != nil {
		return problem("decode", t.kind().String(), interlock.Definite, err)
	}
	return nil
}

// replace sets the state of t to l, if l is valid.
func replace(t Type, l driver.Lattice) error {
	old := *t.state()
	*t.state() = l
	if err := validate(t); err != nil {
		*t.state() = old
		return err
	}
	t.changed()
	return nil
}

func decode(data []byte, want kind) (l driver.Lattice, err error) {
	if len(data) < 2 || len(data) > MaxEncoded || data[0] != format || kind(data[1]) != want {
		return l, errors.New("not an encoding of this type and version")
	}
	l = driver.Lattice{Max: map[string]string{}, Dots: map[driver.Dot]string{}, Seen: map[string]driver.Ranges{}}
	r := reader{data: data[2:]}
	for range r.length(2) {
		field := r.text()
		l.Max[field] = r.text()
	}
	for range r.length(3) {
		d := driver.Dot{Replica: r.text(), N: r.number()}
		l.Dots[d] = r.text()
	}
	for range r.length(4) {
		replica := r.text()
		for range r.length(2) {
			l.Seen[replica] = append(l.Seen[replica], driver.Range{First: r.number(), Last: r.number()})
		}
	}
	if r.failed || !bytes.Equal(encode(want, l), data) {
		return l, errors.New("damaged")
	}
	return l, nil
}

// reader reads an encoding. After a failure it reads zeros.
type reader struct {
	data   []byte
	failed bool
}

func (r *reader) number() int64 {
	n, size := binary.Uvarint(r.data)
	if size <= 0 || n > MaxCount {
		r.data, r.failed = nil, true
		return 0
	}
	r.data = r.data[size:]
	return int64(n)
}

// length reads the length of a list whose members have at least some bytes each.
func (r *reader) length(least int64) int64 {
	n := r.number()
	if n > int64(len(r.data))/least {
		r.data, r.failed = nil, true
		return 0
	}
	return n
}

func (r *reader) text() string {
	n := r.length(1)
	text := string(r.data[:n])
	r.data = r.data[n:]
	return text
}
