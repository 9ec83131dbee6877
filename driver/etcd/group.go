package etcd

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/interlock-dev/interlock"
)

// mostUnderWay is how many requests of Acquire and Release a driver has under way at once.
// What is called meanwhile waits, and is sent together.
const mostUnderWay = 4

// longestWait is how long a call waits at most before it is sent.
const longestWait = 2 * time.Millisecond

var errUnsent = errors.New("the request was not sent")

// group sends the transactions that wait in one request: each as a transaction inside
// another one, so that it has its own conditions. etcd checks the conditions of all of them
// before it carries out the first, so no two are about one line.
type group struct {
	d     *Driver
	limit time.Duration // longestWait

	mu       sync.Mutex
	closed   bool
	alone    bool // etcd has refused a request for its size, so that nothing is sent together
	underWay int
	waiting  []*call
	overdue  *time.Timer // sends what waits; nil before anything did
}

// call is one transaction that waits, or was sent with others.
type call struct {
	line  string
	txn   *pb.TxnRequest
	sent  bool
	reply *pb.TxnResponse
	err   error
	done  chan struct{} // closed when there is an answer
}

// send sends a transaction about a line. It fails with errUnsent if ctx ends before it was
// sent, and with interlock.ErrClosed if the driver is closed before.
func (g *group) send(ctx context.Context, line string, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	c, err := g.enter(line, r)
	if err != nil {
		return nil, err
	}
	if c == nil {
		defer g.leave()
		return g.d.commit(ctx, r)
	}
	select {
	case <-c.done:
		return c.reply, c.err
	case <-ctx.Done():
		return nil, g.abandon(ctx, c)
	}
}

// enter returns the call to wait for; nil if the request is to be sent at once.
func (g *group) enter(line string, r *pb.TxnRequest) (*call, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed:
		return nil, interlock.ErrClosed
	case g.underWay < mostUnderWay || g.alone:
		g.underWay++
		return nil, nil
	}
	c := &call{line: line, txn: r, done: make(chan struct{})}
	if g.waiting = append(g.waiting, c); len(g.waiting) == 1 {
		g.limitWait()
	}
	return c, nil
}

// limitWait has what waits sent after longestWait. g.mu is held.
func (g *group) limitWait() {
	if g.overdue == nil {
		g.overdue = time.AfterFunc(g.limit, g.hurry)
		return
	}
	g.overdue.Reset(g.limit)
}

// hurry sends what has waited for long beside the requests that are under way.
func (g *group) hurry() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) > 0 && !g.closed {
		g.underWay++
		g.d.tasks.Go(g.run)
	}
}

// leave counts out a request that was sent alone, and has others sent in its place.
func (g *group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 || g.closed {
		g.underWay--
		return
	}
	g.d.tasks.Go(g.run)
}

// abandon gives up the wait for c.
func (g *group) abandon(ctx context.Context, c *call) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.sent {
		return ctx.Err()
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(w *call) bool { return w == c })
	return errUnsent
}

// run sends what waits until nothing does.
func (g *group) run() {
	for calls := g.choose(); len(calls) > 0; calls = g.choose() {
		g.sendTogether(calls)
	}
}

// choose takes calls about different lines. If none waits the run ends.
func (g *group) choose() (calls []*call) {
	runtime.Gosched() // callers that have just got an answer go along with their next request
	g.mu.Lock()
	defer g.mu.Unlock()
	lines := make(map[string]bool, len(g.waiting))
	g.waiting = slices.DeleteFunc(g.waiting, func(c *call) bool {
		if lines[c.line] || len(calls) == batch {
			return false
		}
		lines[c.line], c.sent = true, true
		calls = append(calls, c)
		return true
	})
	if len(calls) == 0 {
		g.underWay--
	} else if len(g.waiting) > 0 {
		g.limitWait()
	}
	return calls
}

// sendTogether sends calls in one request. If etcd refuses it, because of one of them or
// because they are too many, nothing was done, and each is sent alone.
func (g *group) sendTogether(calls []*call) {
	ctx, cancel := g.d.bounded(g.d.ctx)
	defer cancel()
	if len(calls) == 1 {
		calls[0].reply, calls[0].err = g.d.commit(ctx, calls[0].txn)
		close(calls[0].done)
		return
	}
	r := &pb.TxnRequest{Success: make([]*pb.RequestOp, len(calls))}
	for i, c := range calls {
		r.Success[i] = &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: c.txn}}
	}
	reply, err := g.d.commit(ctx, r)
	if err != nil && kindOf(err) != interlock.Uncertain {
		g.refused(err)
		for _, c := range calls {
			g.sendTogether([]*call{c})
		}
		return
	}
	for i, c := range calls {
		if c.err = err; err == nil {
			c.reply = reply.Responses[i].GetResponseTxn()
			c.reply.Header = reply.Header
		}
		close(c.done)
	}
}

func (g *group) refused(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alone = g.alone || errors.Is(err, rpctypes.ErrTooManyOps)
}

// close refuses what is called from now on, and what waits.
func (g *group) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	for _, c := range g.waiting {
		c.err = interlock.ErrClosed
		close(c.done)
	}
	g.waiting = nil
}
