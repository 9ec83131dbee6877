package zookeeper

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestTransactionsOfALink: a client whose own last transaction is always 0 tells each server the
// last one that it saw, and sets its watches as of one up to which it missed nothing.
func TestTransactionsOfALink(t *testing.T) {
	servers := make(chan net.Conn, 1)
	l := &link{ctx: t.Context(), patience: time.Minute, dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		servers <- theirs
		return ours, nil
	}}
	var client, server net.Conn
	const setWatches = 101
	sent := func(w io.Writer, r io.Reader, fields ...any) []byte {
		t.Helper()
		p := packet(t, fields...)
		go func() { _, _ = w.Write(p) }()
		received := make([]byte, len(p))
		_, err := io.ReadFull(r, received)
		testbed.OK(t, err)
		return received
	}
	request := func(fields ...any) []byte { t.Helper(); return sent(client, server, fields...) }
	answer := func(fields ...any) []byte { t.Helper(); return sent(server, iotest.OneByteReader(client), fields...) }
	connect := func(session, seen int64) {
		t.Helper()
		var err error
		client, err = l.connect("tcp", "", time.Minute)
		testbed.OK(t, err)
		server = <-servers
		t.Cleanup(func() { _, _ = client.Close(), server.Close() })
		if got := request(int32(0), int64(0), int32(30_000), session, int32(0)); int64(binary.BigEndian.Uint64(got[8:])) != seen {
			t.Fatalf("the last transaction is %x, not %d", got, seen)
		}
		greeting := answer(int32(0), int32(30_000), int64(5), int32(0))
		if binary.BigEndian.Uint32(greeting[8:]) != 30_000 || binary.BigEndian.Uint64(greeting[12:]) != 5 || l.length() != 30*time.Second {
			t.Fatalf("the greeting is %x, the length %v", greeting, l.length())
		}
	}
	answered := func(number int32, transaction int64, failure int32) {
		t.Helper()
		got := answer(number, transaction, failure, int64(-1))
		if int32(binary.BigEndian.Uint32(got[4:])) != number || binary.BigEndian.Uint64(got[8:]) != 0 || int32(binary.BigEndian.Uint32(got[16:])) != failure {
			t.Fatalf("an answer is %x", got)
		}
	}
	watches := func(number int32, since int64, paths ...byte) {
		t.Helper()
		if got := request(number, int32(setWatches), int64(0), int32(0), paths); int64(binary.BigEndian.Uint64(got[12:])) != since {
			t.Fatalf("watches are set as of %x, not %d", got, since)
		}
	}

	connect(0, 0)
	answered(1, 7, 0)
	answered(-2, 8, 0) // a ping
	answered(-1, 8, 0) // an event
	connect(5, 7)
	answered(2, 9, 0) // before watches were set
	connect(5, 9)
	watches(3, 7)
	answered(3, 10, -4)
	connect(5, 10)
	watches(4, 7)
	connect(5, 10)
	watches(5, 7)
	answered(5, 11, 0)
	answered(6, 12, 0)
	connect(5, 12)
	watches(7, 12)
	answered(7, 13, 0)
	watches(8, 12) // a long list is sent in parts
	answered(9, 14, 0)
	connect(5, 14)
	watches(10, 12)
	answered(10, 15, 0)
	connect(5, 15)
	watches(11, 15, make([]byte, 127<<10)...)
	answered(11, 16, 0)
	connect(5, 16) // before the other part of the list
	watches(12, 15)
	answered(12, 17, 0)
	connect(0, 0)
	watches(13, 0)
}

// packet returns the fields behind their length.
func packet(t *testing.T, fields ...any) []byte {
	t.Helper()
	p := make([]byte, 4)
	for _, f := range fields {
		var err error
		p, err = binary.Append(p, binary.BigEndian, f)
		testbed.OK(t, err)
	}
	binary.BigEndian.PutUint32(p, uint32(len(p)-4))
	return p
}
