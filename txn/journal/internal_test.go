package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestSum: the sum of a record is SHA-256 over its fields in order, each after its length in
// eight bytes. It verifies exports of all versions.
func TestSum(t *testing.T) {
	number := func(n int) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }
	before := bytes.Repeat([]byte{7}, sha256.Size)
	h := sha256.New()
	for _, field := range [][]byte{[]byte("interlock journal 1"), before, []byte("order/42"), []byte("saga:order"), number(3), number(5),
		[]byte("sent"), {}, []byte("data")} {
		h.Write(number(len(field)))
		h.Write(field)
	}
	if got, want := chain(before, "order/42", "saga:order", 3, 5, "sent", "", []byte("data")), h.Sum(nil); !bytes.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

// TestUnpack: a row that was changed by hand is damaged, and read no further than it goes.
func TestUnpack(t *testing.T) {
	records := []driver.Record{{Position: 7, Kind: "done", Step: "a", Data: make([]byte, driver.MaxRecord), Sum: []byte{1}}, {Position: 8, Kind: "end", Data: []byte{}, Sum: []byte{}}}
	content := pack(nil, records)
	if found, ok := unpack(content, 7); !ok || !reflect.DeepEqual(found, records) {
		t.Errorf("%v, %+v", ok, found)
	}
	whole := len(pack(nil, records[:1]))
	for size := range content {
		if _, ok := unpack(content[:size], 7); ok != (size == whole) {
			t.Errorf("%d of %d bytes: %v", size, len(content), ok)
		}
	}
	if _, ok := unpack(binary.AppendUvarint(nil, math.MaxUint64), 1); ok {
		t.Error("a length beyond any row was read")
	}
}

// TestAllocations bounds the allocations of an append of two records, for its sums, and for the text and
// the parameters of a group's statement.
func TestAllocations(t *testing.T) {
	if testbed.Race {
		t.Skip("the race detector changes the count")
	}
	before, data := make([]byte, sha256.Size), []byte("data")
	if n := testing.AllocsPerRun(100, func() { before = chain(before, "order/42", "saga:order", 3, 5, "sent", "", data) }); n > 1 {
		t.Errorf("%v allocations a sum, at most 1", n)
	}
	parameters := func(size int) float64 {
		var group []driver.Append
		var asked []int
		for i := range size {
			group = append(group, driver.Append{Transaction: fmt.Sprint("order/", i), Shard: 1, Type: "saga:order", Epoch: 7, After: 2, Due: time.UnixMilli(1),
				Records: []driver.Record{{Kind: "done", Step: "reserve", Data: before, Sum: before}, {Kind: "sent", Step: "pay", Data: before, Sum: before}}})
			asked = append(asked, i)
		}
		return testing.AllocsPerRun(100, func() { arguments(sqltable.Arrays{}, group, asked) })
	}
	if one, many := parameters(1), parameters(41); many-one > 10 {
		t.Errorf("40 appends more allocate %v more, at most 10", many-one)
	}
	n, err := NewTable[driver.SQL](nil, "").in("append", "", maria{})
	if texts := testing.AllocsPerRun(100, func() { n.locking(appendStatement) }); texts > 1 || err != nil {
		t.Errorf("%v allocations for the text of a statement, at most 1: %v", texts, err)
	}
}

// EndIdleAfter sets the server's idle timeout for the journal's transactions.
func (t *Table[T]) EndIdleAfter(d time.Duration) { t.idle = d }
