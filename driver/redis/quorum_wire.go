package redis

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// wire is a second connection to a node of a quorum, for acquires and releases. Callers write
// their requests, and one goroutine reads the answers. It opens when [directAfter] requests
// lacked it within [directIdle], and closes when it is unused, or silent, for [silence].
//
// The requests of one owner stay in order: they are sent on an open wire, unless the client's
// connection has one under way. A request is sent there only after its wire's answer.
type wire struct {
	conn   net.Conn
	detach func() bool // from the end of the quorum
	breaks int64       // link.breaks when it was opened

	silence time.Duration // after which it closes: [silence], or longer in a test

	mu      sync.Mutex
	closed  bool
	out     []byte // to be written
	spare   []byte // was written
	writing bool
	calls   []*call   // without an answer, in order
	until   time.Time // when the connection is unused or silent
}

// round is one request to several nodes by their wires.
type round struct {
	quorum *Quorum
	owner  string
	calls  []call
	timer  *time.Timer
	left   atomic.Int32 // calls without an outcome, and one until all are sent
	// finish gets the outcome of each call once: whether the answer is a status or a number,
	// or an error, which is an Answer if it is that of the node.
	finish func(node int, done bool, err error)
}

// call is a request to one node.
type call struct {
	round *round
	node  int
	wire  *wire
	ended atomic.Bool
}

func (q *Quorum) newRound(asked request, finish func(node int, done bool, err error)) *round {
	r := &round{quorum: q, owner: asked.owner, calls: make([]call, len(q.nodes)), finish: finish}
	r.left.Store(1)
	q.rounds.Add(1)
	return r
}

// add sends a command to a node by its wire, at the latest in send. It returns false if there is
// no open one, or if it need not be sent there: wanted is false, and the wire has no request of
// the owner without an answer.
func (r *round) add(i int, wanted bool, command []byte) bool {
	w := r.quorum.nodes[i].wireFor(r.owner)
	if w == nil {
		return false
	}
	c := &r.calls[i]
	c.round, c.node, c.wire = r, i, w
	r.left.Add(1)
	if !w.add(c, wanted, command) {
		c.round = nil
		r.left.Add(-1)
		return false
	}
	return true
}

// send sends what was added. Calls without an answer fail after the timeout. If other rounds are
// under way, it yields first, so that requests of several callers are written together.
func (r *round) send(timeout time.Duration) {
	if r.left.Load() == 1 {
		r.leave()
		return
	}
	r.timer = time.AfterFunc(timeout, func() {
		for i := range r.calls {
			r.calls[i].end(false, errNodeSilent)
		}
	})
	if r.quorum.rounds.Load() > 1 {
		runtime.Gosched()
	}
	for i := range r.calls {
		if r.calls[i].round != nil {
			r.calls[i].wire.flush(r.quorum)
		}
	}
	r.leave()
}

// leave counts out one call, or the sender.
func (r *round) leave() {
	if r.left.Add(-1) > 0 {
		return
	}
	r.quorum.rounds.Add(-1)
	if r.timer != nil {
		r.timer.Stop()
	}
}

func (c *call) end(done bool, err error) {
	if c.round == nil || !c.ended.CompareAndSwap(false, true) {
		return
	}
	q := c.round.quorum
	if q.ended.Err() == nil { // otherwise it is unknown what the node would have done
		lost := err
		if isAnswer(err) {
			lost = nil
		}
		q.nodes[c.node].answered(lost)
	}
	c.round.finish(c.node, done, err)
	c.round.leave()
}

// add queues a call; see round.add.
func (w *wire) add(c *call, wanted bool, command []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || !wanted && !slices.ContainsFunc(w.calls, func(before *call) bool { return before.round.owner == c.round.owner }) {
		return false
	}
	if len(w.calls) == 0 {
		w.extend()
	}
	w.calls = append(w.calls, c)
	w.out = append(w.out, command...)
	return true
}

// extend begins the time of silence. w.mu is held.
func (w *wire) extend() {
	w.until = time.Now().Add(w.silence)
	_ = w.conn.SetReadDeadline(w.until)
}

// flush writes what is queued, unless another caller does. What is queued meanwhile is written
// by a goroutine of q.
func (w *wire) flush(q *Quorum) {
	out := w.take()
	if out == nil {
		return
	}
	if w.write(q, out) {
		q.spawn(func() { w.flush(q) })
	}
}

// take returns what the caller is to write.
func (w *wire) take() (out []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing || len(w.out) == 0 {
		return nil
	}
	out, w.out, w.writing = w.out, w.spare, true
	return out
}

// write blocks only if the node does not read what it was sent before. It reports whether more
// is queued.
func (w *wire) write(q *Quorum, out []byte) (more bool) {
	_ = w.conn.SetWriteDeadline(time.Now().Add(q.options.NodeTimeout))
	if _, err := w.conn.Write(out); err != nil {
		_ = w.conn.Close() // read ends
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spare, w.writing = out[:0], false
	return len(w.out) > 0
}

// read passes each answer to its call, until the connection ends.
func (w *wire) read() error {
	in := bufio.NewReaderSize(w.conn, 1<<12)
	for {
		if in.Buffered() == 0 {
			w.mu.Lock()
			w.extend()
			w.mu.Unlock()
		}
		line, err := in.ReadSlice('\n')
		switch {
		case err == nil:
			if err := w.answer(string(line)); err != nil {
				return err
			}
		case !errors.Is(err, os.ErrDeadlineExceeded) || !w.isBusy():
			return err
		}
	}
}

// isBusy reports whether a call was queued since the reader began to wait, and not long ago.
// Otherwise it closes the wire.
func (w *wire) isBusy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = len(w.calls) == 0 || !time.Now().Before(w.until)
	return !w.closed
}

// answer ends the oldest call by an answer of one line.
func (w *wire) answer(line string) error {
	w.mu.Lock()
	if len(w.calls) == 0 {
		w.mu.Unlock()
		return errReply
	}
	c := w.calls[0]
	w.calls = slices.Delete(w.calls, 0, 1)
	w.mu.Unlock()
	switch line[0] {
	case '+', ':':
		c.end(true, nil)
	case '_', '$': // null
		c.end(false, nil)
	case '-':
		c.end(false, Answer(line[1:len(line)-2]))
	default:
		c.end(false, errReply)
		return errReply
	}
	return nil
}

// fail closes the wire, and ends its calls.
func (w *wire) fail(err error) {
	w.mu.Lock()
	calls := w.calls
	w.closed, w.calls = true, nil
	w.mu.Unlock()
	for _, c := range calls {
		c.end(false, err)
	}
}

// wireFor returns the open wire for a request of owner; nil if there is none, or if the
// client's connection has an earlier request under way.
func (n *node) wireFor(owner string) *wire {
	w := n.wire.Load()
	if w == nil {
		return nil
	}
	n.conn.mu.Lock()
	defer n.conn.mu.Unlock()
	if w.breaks != n.conn.link.count() || n.conn.last[owner] != nil {
		return nil
	}
	return w
}

// lacksWire counts a request that could not be sent by a wire, and opens one after enough of them.
func (q *Quorum) lacksWire(n *node) {
	if l := n.conn.link; l == nil || l.direct == nil || n.wire.Load() != nil || !n.conn.isPlain(quorumAcquireScript, request{}) {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); now.Sub(n.since) > directIdle {
		n.since, n.lacking = now, 0
	}
	if n.lacking++; n.lacking == directAfter && !n.opening {
		n.opening = q.spawn(func() { q.serveWire(n) })
	}
}

// serveWire opens a wire, and reads from it until it ends.
func (q *Quorum) serveWire(n *node) {
	w, client, err := q.openWire(n)
	if err == nil {
		n.wire.Store(w)
		err = w.read()
		w.fail(err)
		n.wire.Store(nil)
	}
	if w.conn != nil {
		w.detach()
		_ = w.conn.Close()
	}
	if client != nil {
		client.Close()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.opening, n.lacking = false, 0
}

var errNotReady = errors.New("the node is another server, or has restarted")

// openWire connects to the server of the node's client, if its votes count. Its connection
// breaks if it restarts, so they count on the wire from then on.
func (q *Quorum) openWire(n *node) (w *wire, client rueidis.Client, err error) {
	w = &wire{breaks: n.conn.link.count(), silence: q.silence}
	client, err = n.conn.link.direct.connect(q.ended, func(c net.Conn, detach func() bool) net.Conn {
		w.conn, w.detach = c, detach
		return c
	})
	if err != nil {
		return w, client, err
	}
	text, err := client.Do(context.Background(), client.B().Info().Section("server").Build()).ToString()
	switch {
	case err != nil:
	case remote(w.conn) != n.conn.link.server.Load(), n.came(parseInfo(text).up, q.options.RestartDelay) == voteYoung:
		err = errNotReady
	}
	return w, client, err
}

func isAnswer(err error) bool { return errors.As(err, new(Answer)) }

// appendCommand appends a command in the protocol of Redis.
func appendCommand(to []byte, words ...string) []byte {
	to = strconv.AppendInt(append(to, '*'), int64(len(words)), 10)
	for _, word := range words {
		to = strconv.AppendInt(append(to, "\r\n$"...), int64(len(word)), 10)
		to = append(append(to, "\r\n"...), word...)
	}
	return append(to, "\r\n"...)
}
