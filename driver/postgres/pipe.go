package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
)

// pipe sends transactions over one connection without waiting for the answers to
// the ones before, and gives each its answer. The server executes them one
// after the other, in the order of send. What waits while two are under way is sent
// together, in as few as possible. It has two goroutines.
type pipe struct {
	conn   net.Conn
	reader *pgproto3.Frontend // of receive alone
	writer encoder            // of write alone
	hooks  hooks
	loops  sync.WaitGroup

	mu      sync.Mutex
	queued  []*call // not sent yet
	batcher batcher
	asked   []*call // sent, and not answered
	flight  int     // transactions of them
	sent    int64   // transactions so far
	wake    chan struct{}
	err     error // why it is over
	keep    bool  // leave the connection open when it is over
}

// hooks receive what comes, from the reader's goroutine; they must not block.
type hooks struct {
	notify func(channel, payload string)
	// finished takes the answer to tries or unlocks that shared a transaction.
	finished func([]*call, answer)
	failed   func(error) // called once, after every call has been answered
}

// call is a transaction, or a member of one.
type call struct {
	kind    callKind
	steps   []step       // if it is alone
	on      contender    // if it is not: whose try or unlock it is
	done    func(answer) // called once, from the reader's goroutine; must not block; nil for tries
	found   bool         // a row of a member has come
	outcome outcome      // of a try
	err     error        // why there is none
	sent    boottime.Instant
	members int // of the transaction that it begins
}

// step is a prepared statement and its parameters in text form.
type step struct {
	statement string
	args      []string
}

// answer is what came of a transaction.
type answer struct {
	sent boottime.Instant // just before it left; 0 if it never did
	rows [][]field        // of all steps together; none of members
	next int              // which member the next row may be of

	process field // of the server, as the rows of members name it; valid until done returns
	err     error // a *pgconn.PgError if the server said so
	over    bool  // the connection is over, and nothing was said about this call
}

// field is a value, in text form unless it is of a member; nil is NULL.
type field []byte

var errNoAnswer = errors.New("the server did not answer in time")

// mostFlights are how many transactions may be under way when more are sent: the server
// executes one while the process handles the answer to the one before.
const mostFlights = 2

// writeTimeout bounds how long a full socket is waited for.
const writeTimeout = 5 * time.Second

// newPipe starts a pipe whose goroutines all waits for.
func newPipe(c *pgconn.HijackedConn, all *sync.WaitGroup, session int32, ttl time.Duration, h hooks) *pipe {
	p := &pipe{
		conn: c.Conn, reader: c.Frontend, hooks: h, wake: make(chan struct{}, 1),
		writer:  encoder{to: pgproto3.NewFrontend(nil, c.Conn), session: session, ttl: ttl.Milliseconds()},
		batcher: batcher{keys: map[int64]callKind{}},
	}
	for _, loop := range []func(){p.write, p.receive} {
		p.loops.Add(1)
		all.Go(func() {
			defer p.loops.Done()
			loop()
		})
	}
	return p
}

// send queues a call, which will be answered. It does not block. If the pipe
// is over it returns why, and the call is never answered.
func (p *pipe) send(c *call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	p.queued = append(p.queued, c)
	if p.flight < mostFlights {
		hints.Signal(p.wake)
	}
	return nil
}

// write sends what is queued, all at once.
func (p *pipe) write() {
	for range p.wake {
		for range 4 { // those who have just got an answer go on, and what they send goes along
			runtime.Gosched()
		}
		batch, over := p.next()
		if over {
			return
		}
		if len(batch) == 0 {
			continue
		}
		for len(batch) > 0 {
			n := batch[0].members
			p.writer.encode(batch[:n])
			batch = batch[n:]
		}
		p.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err := p.writer.to.Flush(); err != nil {
			p.end(err)
		}
	}
}

// next is what to send now; nothing if enough is under way. The result is valid until the
// next call.
func (p *pipe) next() (batch []*call, over bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil || p.flight >= mostFlights {
		return nil, p.err != nil
	}
	batch = p.batcher.arrange(p.queued)
	clear(p.queued)
	p.queued = p.queued[:0]
	sent := boottime.Now()
	for _, c := range batch {
		c.sent = sent
		if c.members > 0 {
			p.flight++
			p.sent++
		}
	}
	p.asked = append(p.asked, batch...)
	return batch, false
}

// receive gives answers to the calls, in order, until the connection is over.
func (p *pipe) receive() {
	process := make(field, 0, 16)
	a := answer{process: process}
	var calls []*call // that are being answered
	for {
		m, err := p.reader.Receive()
		if err != nil {
			p.fail(err)
			return
		}
		switch m := m.(type) {
		case *pgproto3.DataRow:
			if calls = p.answering(calls); len(calls) > 0 {
				a.take(calls, m)
			}
		case *pgproto3.ErrorResponse:
			a.err = pgconn.ErrorResponseToPgError(m)
			if m.Severity == "FATAL" || m.SeverityUnlocalized == "FATAL" || m.SeverityUnlocalized == "PANIC" {
				p.fail(a.err)
				return
			}
		case *pgproto3.NotificationResponse:
			p.hooks.notify(m.Channel, m.Payload)
		case *pgproto3.ReadyForQuery:
			if calls = p.answering(calls); len(calls) == 0 {
				p.fail(fmt.Errorf("the server sent an unexpected answer"))
				return
			}
			p.answered(calls, a)
			clear(calls)
			calls, a = calls[:0], answer{process: process}
		}
	}
}

// answering adds the members of the transaction that waits longest to calls, unless it has
// them.
func (p *pipe) answering(calls []*call) []*call {
	if len(calls) > 0 {
		return calls
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) == 0 {
		return calls
	}
	return append(calls, p.asked[:p.asked[0].members]...)
}

// take reads a row. Those of members begin with the server's process and the key, and come
// in the order of the members unless the server chose another one.
func (a *answer) take(calls []*call, m *pgproto3.DataRow) {
	if calls[0].kind == callAlone {
		a.rows = append(a.rows, copied(m))
		return
	}
	if len(m.Values) < memberColumns {
		return // of a statement beside
	}
	a.process = strconv.AppendInt(a.process[:0], readNumber(m.Values[0]), 10)
	key := readNumber(m.Values[1])
	for range calls {
		c := calls[a.next%len(calls)]
		if a.next++; c.on.key == key {
			c.read(m.Values[2:])
			return
		}
	}
}

// memberColumns are what a row of a member has at least: the server's process, the key and a
// third.
const memberColumns = 3

// answered removes the transaction that waits longest, and gives its members the answer.
func (p *pipe) answered(calls []*call, a answer) {
	p.mu.Lock()
	p.asked = slices.Delete(p.asked, 0, len(calls))
	p.mu.Unlock()
	if a.sent = calls[0].sent; calls[0].kind == callAlone {
		calls[0].done(a)
	} else {
		p.hooks.finished(calls, a)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flight--; p.flight < mostFlights && len(p.queued) > 0 {
		hints.Signal(p.wake)
	}
}

func copied(m *pgproto3.DataRow) []field {
	row := make([]field, len(m.Values))
	for i, v := range m.Values {
		if v != nil {
			row[i] = append(field{}, v...)
		}
	}
	return row
}

// detach ends both goroutines and leaves the connection open.
func (p *pipe) detach(err error) net.Conn {
	p.mu.Lock()
	p.err = cmp.Or(p.err, err)
	p.keep = true
	p.mu.Unlock()
	p.conn.SetReadDeadline(time.Unix(1, 0))
	p.loops.Wait()
	return p.conn
}

// end closes the connection because of err; the reader does the rest.
func (p *pipe) end(err error) {
	p.mu.Lock()
	p.err = cmp.Or(p.err, err)
	p.mu.Unlock()
	p.conn.Close()
}

// fail ends the pipe and answers every call.
func (p *pipe) fail(err error) {
	p.mu.Lock()
	p.err = cmp.Or(p.err, err)
	err = p.err
	keep := p.keep
	calls := append(p.asked, p.queued...)
	p.asked, p.queued, p.flight = nil, nil, 0
	p.mu.Unlock()
	if !keep {
		p.conn.Close()
	}
	hints.Signal(p.wake)
	for _, c := range calls {
		if c.done != nil {
			c.done(answer{sent: c.sent, err: err, over: true})
		}
	}
	p.hooks.failed(err)
}

// silent is since when the oldest unanswered call has waited; ok is false if
// there is none.
func (p *pipe) silent() (since boottime.Instant, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) == 0 {
		return 0, false
	}
	return p.asked[0].sent, true
}
