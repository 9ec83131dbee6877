package redis

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
)

var (
	errNodeSilent = errors.New("the node did not answer in time")
	errNodeDown   = errors.New("the node is skipped, because it did not answer before")
)

// NodeHealth is the state of one node of a [Quorum], as of its latest answers.
type NodeHealth struct {
	Address  string
	Up       bool          // asked by every request; false: only probed now and then
	Failures int           // requests without an answer since the latest answered one
	Err      error         // why the last request failed; nil if it was answered
	Young    time.Duration // time until its votes count, after a recent restart
}

// node is one of the servers of a quorum.
type node struct {
	conn    *conn
	address string
	wire    atomic.Pointer[wire] // nil if none is open

	mu      sync.Mutex
	health  health
	err     error
	counted boottime.Instant // when its votes count
	opening bool             // a wire, or it is open
	since   time.Time        // from when lacking counts
	lacking int              // requests without a wire
}

func newNode(client rueidis.Client) *node {
	n := &node{conn: newConn(client), address: "unknown"}
	var addresses []string
	for address := range client.Nodes() {
		addresses = append(addresses, address)
	}
	if len(addresses) > 0 {
		n.address = slices.Min(addresses)
	}
	return n
}

// results of the batches of one request.
type results = []rueidis.RedisResult

// ask prepares to run batches of a script. Call the returned function at once: it sends the
// request, which already has its place in its owner's order, and waits for at most timeout.
func (n *node) ask(ctx context.Context, timeout time.Duration, r request, s *script, batches ...batch) (wait func() (results, error)) {
	bounded, cancel := context.WithTimeoutCause(ctx, timeout, errNodeSilent)
	p := &pending[results]{send: func(ctx context.Context) (results, error) { return n.conn.send(ctx, r, s, batches) }}
	p.begin(bounded, n.conn, r)
	return func() (results, error) {
		defer cancel()
		got, err := p.runAndWait()
		n.note(ctx, got, err)
		return got, err
	}
}

// note records the outcome of a request that was bounded by ctx, unless ctx has ended: then it is
// unknown what the node would have done.
func (n *node) note(ctx context.Context, got results, err error) {
	if ctx.Err() == nil {
		n.answered(errors.Join(err, firstLost(got)))
	}
}

// firstLost returns the first error that is not the server's answer.
func firstLost(got results) error {
	for _, r := range got {
		if err := r.NonRedisError(); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) mayAsk() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.health.up() || n.health.ask(boottime.Now(), rand.Float64())
}

func (n *node) answered(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil || n.health.failures > 0 {
		n.health.answered(boottime.Now(), err == nil, rand.Float64())
	}
	n.err = err
}

// came records the uptime that the node has just reported, and returns what its
// vote counts for.
func (n *node) came(up, delay time.Duration) vote {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.counted = 0
	v := votes(up, delay)
	if v == voteYoung {
		n.counted = boottime.Now().Add(delay + time.Second - up)
	}
	return v
}

func (n *node) state() NodeHealth {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := NodeHealth{Address: n.address, Up: n.health.up(), Failures: n.health.failures, Err: n.err}
	if n.counted > 0 {
		h.Young = max(0, n.counted.Sub(boottime.Now()))
	}
	return h
}

var errNoMajority = errors.New("too few nodes answered for a majority")

// noMajority returns the error of an attempt with too few votes: uncertain if any
// node may have granted it.
func noMajority(r request, errs []error) error {
	kind := interlock.Definite
	for _, err := range errs {
		switch k := interlock.Kind(err); {
		case k == interlock.Uncertain:
			return problem(r, k, errors.Join(append([]error{errNoMajority}, errs...)...))
		case k == interlock.Retryable:
			kind = k
		}
	}
	return problem(r, kind, errors.Join(append([]error{errNoMajority}, errs...)...))
}
