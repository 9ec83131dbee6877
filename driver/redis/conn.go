package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/join"
)

// conn sends requests. It adds to the client what a driver must guarantee: a call
// returns when its ctx is done, even while the client dials, and the requests of
// one owner reach the server in order.
type conn struct {
	client rueidis.Client
	ended  chan struct{} // closed by close
	link   *link         // nil if each request needs a goroutine
	// connectedAt is link.breaks before the latest answered request; -1 if none.
	connectedAt atomic.Int64
	// abandoned counts requests that the client may not have sent when their contexts ended;
	// settled is abandoned before the latest answered request, which was sent after them.
	abandoned, settled atomic.Int64
	// evicts checks the eviction policy before a script runs; nil disables that.
	evicts    *eviction
	groups    map[*script]*group // of requests that may be sent together
	groupFrom int64              // the constant, except in tests

	mu        sync.Mutex
	closed    bool
	running   sync.WaitGroup
	last      map[string]chan struct{} // owner to the end of its latest request
	listeners map[topic]int
}

func newConn(client rueidis.Client) *conn {
	c := &conn{client: client, ended: make(chan struct{}), link: linkOf(client), groupFrom: groupFrom, last: map[string]chan struct{}{}, listeners: map[topic]int{}}
	c.connectedAt.Store(-1)
	return c
}

// newGuardConn returns a conn that refuses scripts if keys may be evicted.
func newGuardConn(client rueidis.Client, k keeps) *conn {
	c := newConn(client)
	c.evicts = newEviction(c, k)
	return c
}

// request describes an operation, for errors, and its owners. Requests without an
// owner have no order.
type request struct {
	op, name, owner string
	owners          []string // instead of owner, for several owners
	gives           bool     // it releases something, and is never refused
	passing         bool     // its writes need no confirmation
	harmless        bool     // it changes nothing that the caller asked for: its outcome is never uncertain
}

// eachOwner yields the owners.
func (r request) eachOwner(yield func(owner string) bool) {
	if r.owner != "" {
		yield(r.owner)
		return
	}
	for _, owner := range r.owners {
		if !yield(owner) {
			return
		}
	}
}

// undated hides a deadline from the client, which may otherwise send synchronously
// and not return when ctx is cancelled before the deadline.
type undated struct{ context.Context }

func (undated) Deadline() (time.Time, bool) { return time.Time{}, false }

// hideDeadline returns ctx itself if it has no deadline.
func hideDeadline(ctx context.Context) context.Context {
	if _, bounded := ctx.Deadline(); bounded {
		return undated{ctx}
	}
	return ctx
}

// do runs send in its own goroutine and waits for it or ctx. Once ctx is done, send
// ends, at the latest when a dial of the client does.
func do[T any](ctx context.Context, c *conn, r request, send func(context.Context) (T, error)) (T, error) {
	p := &pending[T]{send: send}
	if p.begin(ctx, c, r) {
		go p.run()
	}
	return p.wait()
}

// pending is a request under way.
type pending[T any] struct {
	conn    *conn
	request request
	ctx     undated
	send    func(context.Context) (T, error)
	before  []<-chan struct{} // the ends of the owners' earlier requests
	ended   chan struct{}     // closed when value and err are set; nil if refused
	value   T
	err     error
}

// begin counts the request, and adds it to the order of its owners: a release must not
// overtake an abandoned acquire request. If the request is refused, err is the reason, and
// there is nothing to run.
func (p *pending[T]) begin(ctx context.Context, c *conn, r request) bool {
	p.conn, p.request, p.ctx = c, r, undated{ctx}
	if ctx.Err() != nil {
		p.err = unsent(r, context.Cause(ctx))
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		p.err = closed(r)
		return false
	}
	c.running.Add(1)
	p.ended = make(chan struct{})
	for owner := range r.eachOwner {
		if last := c.last[owner]; last != nil {
			p.before = append(p.before, last)
		}
		c.last[owner] = p.ended
	}
	return true
}

// endLocked ends the request, with conn.mu held.
func (p *pending[T]) endLocked() {
	close(p.ended)
	for owner := range p.request.eachOwner {
		if p.conn.last[owner] == p.ended {
			delete(p.conn.last, owner)
		}
	}
	p.conn.running.Done()
}

// run sends once the earlier requests have ended, and ends after them in any case.
func (p *pending[T]) run() {
	if p.err = turn(p.ctx.Context, p.before); p.err == nil {
		p.value, p.err = p.send(&p.ctx)
	}
	if p.err != nil && p.ctx.Err() != nil {
		p.conn.abandoned.Add(1) // the client may still have it
	}
	_ = turn(context.Background(), p.before)
	p.conn.mu.Lock()
	defer p.conn.mu.Unlock()
	p.endLocked()
}

// runAndWait runs a request that begin has admitted, and waits for it. It sends in
// the caller's goroutine if nothing there can block for longer than the context.
func (p *pending[T]) runAndWait() (T, error) {
	switch c := p.conn; {
	case p.ended == nil: // refused
	case len(p.before) == 0 && c.isConnected():
		c.link.inFlight.Add(1)
		p.run()
		c.link.inFlight.Add(-1)
	default:
		go p.run()
	}
	return p.wait()
}

// wait returns the answer, or an error when the request's context ends.
func (p *pending[T]) wait() (value T, err error) {
	if p.ended == nil {
		return value, p.err
	}
	ctx := p.ctx.Context
	select {
	case <-p.ended:
	default: // the context may be created when it is looked at
		select {
		case <-p.ended:
		case <-ctx.Done():
			return value, uncertain(p.request, context.Cause(ctx))
		}
	}
	if p.err != nil && ctx.Err() != nil && errors.Is(p.err, ctx.Err()) {
		return value, uncertain(p.request, context.Cause(ctx))
	}
	return p.value, failure(p.request, p.err)
}

// turn waits for the end of the earlier requests.
func turn(ctx context.Context, before []<-chan struct{}) error {
	for _, ended := range before {
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// eval runs a script once.
func (c *conn) eval(ctx context.Context, r request, s *script, b batch) (rueidis.RedisMessage, error) {
	if err := c.oneSlot(b.keys); err != nil {
		return rueidis.RedisMessage{}, problem(r, interlock.Definite, err)
	}
	if !r.gives {
		if err := c.evicts.permit(ctx, r, recheck); err != nil {
			return rueidis.RedisMessage{}, err
		}
	}
	m, err := c.evalOnce(ctx, r, s, b)
	if err != nil && interlock.Kind(err) != interlock.Definite {
		c.evicts.forget()
	}
	return m, err
}

// texts runs a script that answers with a list of texts, one at least.
func (c *conn) texts(ctx context.Context, r request, s *script, b batch) ([]string, error) {
	m, err := c.eval(ctx, r, s, b)
	if err != nil {
		return nil, err
	}
	answer, err := m.AsStrSlice()
	if err != nil || len(answer) == 0 {
		return nil, uncertain(r, errReply)
	}
	return answer, nil
}

// number runs a script that answers with a number.
func (c *conn) number(ctx context.Context, r request, s *script, b batch) (int64, error) {
	m, err := c.eval(ctx, r, s, b)
	if err != nil {
		return 0, err
	}
	n, err := m.AsInt64()
	if err != nil {
		return 0, uncertain(r, errReply)
	}
	return n, nil
}

// fields reads a hash; it has none if it does not exist.
func (c *conn) fields(ctx context.Context, r request, key string) (map[string]string, error) {
	r.harmless = true
	return do(ctx, c, r, func(ctx context.Context) (map[string]string, error) {
		return c.client.Do(ctx, c.client.B().Hgetall().Key(key).Build()).AsStrMap()
	})
}

// evalOnce sends a request in one of four ways. If it needs only the script, and the client's
// connection is open, these are tried in this order:
//
//   - with other requests of its script, if many are under way: see [group]
//   - on the second connection, if it is alone: see [direct]
//   - on the client's connection, in the caller's goroutine
//
// Otherwise, and if an earlier request of its owner is under way, a goroutine sends it.
func (c *conn) evalOnce(ctx context.Context, r request, s *script, b batch) (rueidis.RedisMessage, error) {
	plain := c.isPlain(s, r)
	if plain {
		if g := c.groups[s]; g.takes(b) {
			return g.eval(ctx, r, b)
		}
		if n := c.enter(ctx, r); n > 0 {
			defer c.leave()
			if n == 1 && r.owner != "" && c.abandoned.Load() == c.settled.Load() {
				if l := c.link.direct.take(ctx); l != nil {
					return c.sendDirect(ctx, l, r, s, b)
				}
			}
			return c.sendHere(ctx, r, s, b)
		}
	}
	return do(ctx, c, r, func(ctx context.Context) (rueidis.RedisMessage, error) {
		if plain {
			return c.sendOne(ctx, s, b).ToMessage()
		}
		results, err := s.run(ctx, c.client, r, []batch{b})
		if err != nil {
			return rueidis.RedisMessage{}, err
		}
		return results[0].ToMessage()
	})
}

// send runs a script on each batch in one pipeline, on the client's connection if only the
// script is needed.
func (c *conn) send(ctx context.Context, r request, s *script, batches []batch) ([]rueidis.RedisResult, error) {
	if len(batches) == 1 && c.isPlain(s, r) {
		return []rueidis.RedisResult{c.sendOne(ctx, s, batches[0])}, nil
	}
	return s.run(ctx, c.client, r, batches)
}

// sendOne runs a script once on the client's connection, and records that it is open.
func (c *conn) sendOne(ctx context.Context, s *script, b batch) rueidis.RedisResult {
	breaks, abandoned := c.link.count(), c.abandoned.Load()
	result := s.runOne(ctx, c.client, b)
	if result.NonRedisError() == nil {
		c.connectedAt.Store(breaks)
		c.settled.Store(abandoned)
	}
	return result
}

// sendHere runs a script once on the client's connection, in the caller's goroutine.
func (c *conn) sendHere(ctx context.Context, r request, s *script, b batch) (rueidis.RedisMessage, error) {
	m, err := c.sendOne(hideDeadline(ctx), s, b).ToMessage()
	if err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		c.abandoned.Add(1)
		return m, uncertain(r, context.Cause(ctx))
	}
	return m, failure(r, err)
}

// sendDirect runs a script once on l. If ctx ends before the answer, the owner's next
// request waits for the answer.
func (c *conn) sendDirect(ctx context.Context, l *line, r request, s *script, b batch) (rueidis.RedisMessage, error) {
	result := l.client.Do(context.Background(), s.known(l.client.B(), b))
	c.link.look(result)
	answered, interrupted := result.NonRedisError() == nil, l.interrupted.Load()
	if !answered || interrupted {
		c.link.direct.drop(l)
	}
	switch m, err := result.ToMessage(); {
	case interrupted && !answered:
		drain := &pending[bool]{send: func(context.Context) (bool, error) { defer l.close(); return true, l.drain() }}
		if drain.begin(context.WithoutCancel(ctx), c, r) {
			go drain.run()
		} else {
			l.close()
		}
		return m, uncertain(r, context.Cause(ctx))
	case !answered || interrupted:
		l.close()
		return m, failure(r, err)
	case isUnknown(err):
		return c.sendHere(ctx, r, s, b)
	default:
		return m, failure(r, err)
	}
}

// enter counts a request that its caller sends, if the connection is open and no earlier
// request of the owner is under way. It returns how many such requests there are, and 0
// if this one is refused. The client queues it before later requests of its owner, even
// if its context ends.
func (c *conn) enter(ctx context.Context, r request) int64 {
	if ctx.Err() != nil || !c.isConnected() {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0
	}
	for owner := range r.eachOwner {
		if c.last[owner] != nil {
			return 0
		}
	}
	c.running.Add(1)
	return c.link.inFlight.Add(1)
}

// isConnected reports whether the client can send without a dial or a wait for its queue.
func (c *conn) isConnected() bool {
	return c.link != nil && c.connectedAt.Load() == c.link.breaks.Load() && c.link.inFlight.Load() < maxInFlight
}

func (c *conn) leave() {
	c.link.inFlight.Add(-1)
	c.running.Done()
}

// isPlain reports whether a run of s needs only the script: no confirmation, and no
// protection against moving slots.
func (c *conn) isPlain(s *script, r request) bool {
	return !s.confirms(c.client, r) && c.client.Mode() != rueidis.ClientModeCluster
}

// oneSlot rejects keys that a cluster cannot have in one script.
func (c *conn) oneSlot(keys []string) error {
	if c.client.Mode() != rueidis.ClientModeCluster {
		return nil
	}
	for _, key := range keys {
		if slotOf(key) != slotOf(keys[0]) {
			return fmt.Errorf("%q and %q are in different slots of the cluster: give them the same {tag}", keys[0], key)
		}
	}
	return nil
}

// evalAll runs a script on each batch in one pipeline. The error is that of all
// batches; each result can have its own. In a cluster each batch is sent by itself, so that
// a node that does not answer fails only the batches in its slots.
func (c *conn) evalAll(ctx context.Context, r request, s *script, batches []batch) ([]rueidis.RedisResult, error) {
	if c.client.Mode() == rueidis.ClientModeCluster && len(batches) > 1 {
		return c.evalApart(ctx, r, s, batches), nil
	}
	return do(ctx, c, r, func(ctx context.Context) ([]rueidis.RedisResult, error) {
		return c.send(ctx, r, s, batches)
	})
}

// evalApart sends all batches at the same time, each with its own outcome. With confirmations
// each has its own connection: then atOnce start at once, and the next ones when these are
// answered, or after turnFor.
func (c *conn) evalApart(ctx context.Context, r request, s *script, batches []batch) []rueidis.RedisResult {
	turns := make(chan struct{}, len(batches))
	if s.confirms(c.client, r) {
		turns = make(chan struct{}, atOnce)
	}
	results := make([]rueidis.RedisResult, len(batches))
	var all sync.WaitGroup
	for i := range batches {
		turns <- struct{}{}
		end := sync.OnceFunc(func() { <-turns })
		all.Go(func() {
			defer end()
			defer time.AfterFunc(turnFor, end).Stop()
			one, err := do(ctx, c, r, func(ctx context.Context) ([]rueidis.RedisResult, error) {
				return c.send(ctx, r, s, batches[i:i+1])
			})
			if err != nil {
				one = []rueidis.RedisResult{rueidis.NewErrorResult(err)}
			}
			results[i] = one[0]
		})
	}
	all.Wait()
	return results
}

// A batch has a turn of evalApart until it is answered, but not for longer than turnFor: a node
// that does not answer must not delay the batches of others.
const (
	atOnce  = 16
	turnFor = 50 * time.Millisecond
)

// load loads the scripts into the server, so that the first use of each costs no
// more than the others.
func (c *conn) load(ctx context.Context, scripts ...*script) error {
	if c.client.Mode() == rueidis.ClientModeCluster {
		return nil // each node gets a script when it first runs it
	}
	for _, s := range scripts {
		_, err := do(ctx, c, request{op: "load script"}, func(ctx context.Context) (string, error) {
			return c.client.Do(ctx, c.client.B().ScriptLoad().Script(s.source()).Build()).ToString()
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// close refuses further requests; it returns false if that was done before.
func (c *conn) close() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.closed = true
	close(c.ended)
	return true
}

func (c *conn) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// wait waits for the loops and the requests under way.
func (c *conn) wait(ctx context.Context, loops ...*sync.WaitGroup) error {
	err := join.Wait(ctx, func() {
		for _, l := range append(loops, &c.running) {
			l.Wait()
		}
	})
	if err != nil {
		return uncertain(request{op: "close"}, err)
	}
	return nil
}
