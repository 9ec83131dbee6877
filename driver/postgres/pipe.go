package postgres

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
)

// pipe sends statements over one connection without waiting for the answers to
// the ones before, and gives each its answer. The server executes them one
// after the other, in the order of send. It has two goroutines.
type pipe struct {
	conn   net.Conn
	reader *pgproto3.Frontend // of receive alone
	writer *pgproto3.Frontend // of write alone
	notify func(channel, payload string)
	failed func(error) // called once, after every call has been answered
	loops  sync.WaitGroup

	mu     sync.Mutex
	queued []*call // not sent yet
	asked  []*call // sent, and not answered
	sent   int64   // calls so far
	wake   chan struct{}
	err    error // why it is over
	keep   bool  // leave the connection open when it is over
}

// call is one transaction of one or more statements.
type call struct {
	steps []step
	done  func(answer) // called once, from the reader's goroutine; must not block
	sent  boottime.Instant
}

// step is a prepared statement and its parameters in text form.
type step struct {
	statement string
	args      []string
}

// answer is what came of a call.
type answer struct {
	sent boottime.Instant // just before it left; 0 if it never did
	rows [][]field        // of all steps together
	err  error            // a *pgconn.PgError if the server said so
	over bool             // the connection is over, and nothing was said about this call
}

// field is a value in text form; nil is NULL.
type field []byte

var errNoWord = errors.New("the server did not answer in time")

// writeTimeout bounds how long a full socket is waited for.
const writeTimeout = 5 * time.Second

// newPipe starts a pipe whose goroutines all waits for.
func newPipe(c *pgconn.HijackedConn, all *sync.WaitGroup, notify func(channel, payload string), failed func(error)) *pipe {
	p := &pipe{
		conn: c.Conn, reader: c.Frontend, writer: pgproto3.NewFrontend(nil, c.Conn),
		notify: notify, failed: failed, wake: make(chan struct{}, 1),
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

// send queues a call, whose done will be called. It does not block. If the pipe
// is over it returns why, and the call is never done.
func (p *pipe) send(c *call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	p.queued = append(p.queued, c)
	p.sent++
	hints.Signal(p.wake)
	return nil
}

// write sends what is queued, all at once.
func (p *pipe) write() {
	for range p.wake {
		p.mu.Lock()
		batch := p.queued
		p.queued = nil
		p.asked = append(p.asked, batch...)
		sent := boottime.Now()
		for _, c := range batch {
			c.sent = sent
		}
		over := p.err != nil
		p.mu.Unlock()
		if over {
			return
		}
		for _, c := range batch {
			p.encode(c)
		}
		p.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err := p.writer.Flush(); err != nil {
			p.end(err)
		}
	}
}

func (p *pipe) encode(c *call) {
	for _, s := range c.steps {
		args := make([][]byte, len(s.args))
		for i, a := range s.args {
			args[i] = []byte(a)
		}
		p.writer.SendBind(&pgproto3.Bind{PreparedStatement: s.statement, Parameters: args})
		p.writer.SendExecute(&pgproto3.Execute{})
	}
	p.writer.SendSync(&pgproto3.Sync{})
}

// receive gives answers to the calls, in order, until the connection is over.
func (p *pipe) receive() {
	var a answer
	for {
		m, err := p.reader.Receive()
		if err != nil {
			p.fail(err)
			return
		}
		switch m := m.(type) {
		case *pgproto3.DataRow:
			a.rows = append(a.rows, copied(m))
		case *pgproto3.ErrorResponse:
			a.err = pgconn.ErrorResponseToPgError(m)
			if m.Severity == "FATAL" || m.SeverityUnlocalized == "FATAL" || m.SeverityUnlocalized == "PANIC" {
				p.fail(a.err)
				return
			}
		case *pgproto3.NotificationResponse:
			p.notify(m.Channel, m.Payload)
		case *pgproto3.ReadyForQuery:
			c := p.answered()
			if c == nil {
				p.fail(fmt.Errorf("the server answered what was not asked"))
				return
			}
			a.sent = c.sent
			c.done(a)
			a = answer{}
		}
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

// answered takes the call that waits longest.
func (p *pipe) answered() *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.asked) == 0 {
		return nil
	}
	c := p.asked[0]
	p.asked = p.asked[1:]
	return c
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
	p.asked, p.queued = nil, nil
	p.mu.Unlock()
	if !keep {
		p.conn.Close()
	}
	hints.Signal(p.wake)
	for _, c := range calls {
		c.done(answer{sent: c.sent, err: err, over: true})
	}
	p.failed(err)
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
