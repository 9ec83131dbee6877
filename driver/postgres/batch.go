package postgres

import (
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgproto3"
)

// callKind says what a call is. All but callAlone and callRetry share a statement with those of their
// kind.
type callKind int

const (
	callAlone  callKind = iota // statements of its own
	callGive                   // releases a held lock
	callUnlock                 // releases what the owner has, if anything
	callTake                   // takes a lock that is free
	callTry                    // takes a lock, or a place in the line
	callRetry                  // a try that failed together with others, alone
)

// mostMembers bounds how many calls share a statement.
const mostMembers = 256

// batcher arranges calls in transactions: those that wait together share a statement, so
// that all of them cost one commit. It keeps the order of the calls of one key, and of those
// that are alone with all others. Releases come first, in transactions of its
// own: these neither wait for the disk nor for the row of another session, so that no two
// sessions wait for each other.
type batcher struct {
	members  [callRetry][]*call // by kind
	keys     map[int64]callKind // of their members, the latest of each key
	arranged []*call
}

// arrange returns calls in the order in which to send them. The first one of each
// transaction has the number of its members. The result is valid until the next call.
func (b *batcher) arrange(calls []*call) (arranged []*call) {
	b.arranged = b.arranged[:0]
	for _, c := range calls {
		last, repeated := b.keys[c.on.key]
		switch {
		case c.kind == callAlone, c.kind == callRetry:
			b.flush()
			b.add([]*call{c})
			continue
		case repeated && c.kind <= last, len(b.keys) == mostMembers:
			b.flush()
		}
		b.keys[c.on.key] = c.kind
		b.members[c.kind] = append(b.members[c.kind], c)
	}
	b.flush()
	return b.arranged
}

func (b *batcher) flush() {
	for kind, members := range b.members {
		b.add(members)
		b.members[kind] = members[:0]
	}
	clear(b.keys)
}

func (b *batcher) add(members []*call) {
	for i, c := range members {
		if c.members = 0; i == 0 { // it may have begun another one before
			c.members = len(members)
		}
		b.arranged = append(b.arranged, c)
	}
}

// encoder writes transactions in the server's format. It is of the writing goroutine.
type encoder struct {
	to      *pgproto3.Frontend
	session int32
	ttl     int64 // in ms
	bytes   []byte
	ends    []int // of the parameters in bytes
	bind    pgproto3.Bind
	execute pgproto3.Execute
	sync    pgproto3.Sync
}

// encode writes one transaction.
func (e *encoder) encode(calls []*call) {
	switch calls[0].kind {
	case callAlone:
		for _, s := range calls[0].steps {
			e.texts(s)
		}
	case callGive, callUnlock:
		e.contenders(calls)
		if calls[0].kind == callGive {
			e.statement(stGive, binaryFormat)
		} else {
			e.statement(stUnlock, binaryFormat)
		}
		e.keys(calls)
		e.number(int64(e.session), 4)
		e.statement(stPass, binaryFormat)
	case callTake:
		e.contenders(calls)
		e.names(calls)
		e.statement(stTake, binaryFormat)
	case callRetry:
		e.keys(calls)
		e.statement(stUndo, binaryFormat)
		fallthrough
	case callTry:
		e.contenders(calls)
		e.array(boolOID, calls, appendWaits)
		e.names(calls)
		e.statement(stTry, binaryFormat)
	}
	e.to.SendSync(&e.sync)
}

// Types of the elements of arrays, see pg_type of the server.
const (
	boolOID = 16
	int8OID = 20
	textOID = 25
)

var binaryFormat = []int16{pgproto3.BinaryFormat}

func appendKey(b []byte, c *call) []byte   { return binary.BigEndian.AppendUint64(b, uint64(c.on.key)) }
func appendOwner(b []byte, c *call) []byte { return append(b, c.on.owner...) }
func appendName(b []byte, c *call) []byte  { return append(b, c.on.name...) }

func appendWaits(b []byte, c *call) []byte {
	if c.on.noWait {
		return append(b, 0)
	}
	return append(b, 1)
}

func (e *encoder) keys(calls []*call) { e.array(int8OID, calls, appendKey) }

func (e *encoder) contenders(calls []*call) {
	e.keys(calls)
	e.array(textOID, calls, appendOwner)
}

// names adds what a grant records.
func (e *encoder) names(calls []*call) {
	e.array(textOID, calls, appendName)
	e.number(int64(e.session), 4)
	e.number(e.ttl, 8)
}

// array adds a parameter: an array of one dimension without NULLs.
func (e *encoder) array(oid uint32, calls []*call, element func([]byte, *call) []byte) {
	for _, n := range [...]uint32{1, 0, oid, uint32(len(calls)), 1} {
		e.bytes = binary.BigEndian.AppendUint32(e.bytes, n)
	}
	for _, c := range calls {
		start := len(e.bytes)
		e.bytes = element(append(e.bytes, 0, 0, 0, 0), c)
		binary.BigEndian.PutUint32(e.bytes[start:], uint32(len(e.bytes)-start-4))
	}
	e.ends = append(e.ends, len(e.bytes))
}

// number adds a parameter of so many bytes.
func (e *encoder) number(n int64, size int) {
	e.bytes = binary.BigEndian.AppendUint64(e.bytes, uint64(n)<<(64-8*size))[:len(e.bytes)+size]
	e.ends = append(e.ends, len(e.bytes))
}

func (e *encoder) texts(s step) {
	for _, a := range s.args {
		e.bytes = append(e.bytes, a...)
		e.ends = append(e.ends, len(e.bytes))
	}
	e.statement(s.statement, nil)
}

// statement writes a prepared statement with the parameters that were added.
func (e *encoder) statement(name string, format []int16) {
	e.bind.Parameters = e.bind.Parameters[:0]
	start := 0
	for _, end := range e.ends {
		e.bind.Parameters = append(e.bind.Parameters, e.bytes[start:end:end])
		start = end
	}
	e.bind.PreparedStatement, e.bind.ParameterFormatCodes, e.bind.ResultFormatCodes = name, format, format
	e.to.SendBind(&e.bind)
	e.to.SendExecute(&e.execute)
	e.bytes, e.ends = e.bytes[:0], e.ends[:0]
}
