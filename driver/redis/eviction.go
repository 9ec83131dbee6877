package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/renewal"
)

// ErrEviction: the server may delete keys to free memory, or does not report its
// policy. A deleted mark would let a stale holder write, and a deleted lock would
// be granted again. Set maxmemory-policy to noeviction.
var ErrEviction = errors.New("the server may evict keys")

// whenever accepts an answer of any age.
const whenever = time.Duration(1<<63 - 1)

// recheck bounds the age of the last check of the server's eviction policy, and so
// the time until an operator's change is noticed.
const recheck = time.Second

// keeps says which keys must not be evicted.
type keeps int

const (
	keepsMarks keeps = iota // keys without a time to live
	keepsAll                // also keys with one
)

// judge returns why keys may be lost under a policy; nil if they are safe. It
// ignores maxmemory, which an operator can set at any time.
func (k keeps) judge(policy string) error {
	switch {
	case policy == "noeviction" || k == keepsMarks && strings.HasPrefix(policy, "volatile-"):
		return nil
	case policy == "":
		return fmt.Errorf("%w: neither INFO nor CONFIG GET reports maxmemory-policy; "+
			"permit one of them, or declare that nothing is evicted (Settings.NoEviction, ?eviction=none)", ErrEviction)
	}
	return fmt.Errorf("%w: maxmemory-policy is %s; set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)", ErrEviction, policy)
}

// eviction watches the server's eviction policy, and whether it can confirm writes
// where settings require that.
type eviction struct {
	conn  *conn
	keeps keeps

	asking chan struct{} // capacity 1: full while a goroutine asks
	wake   chan struct{}

	mu     sync.Mutex
	asked  boottime.Instant // when the latest answered request was sent; 0 if none
	reason error            // of a refusal
	due    boottime.Instant // when run checks next
}

func newEviction(c *conn, k keeps) *eviction {
	return &eviction{conn: c, keeps: k, asking: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		due: boottime.Now().Add(rescanEvery)}
}

// checkedNow records that the policy has just been checked.
func (e *eviction) checkedNow() *eviction {
	e.asked = boottime.Now()
	return e
}

// permit returns an error if the policy endangers keys. It asks the server if the
// last answer is older than longest.
func (e *eviction) permit(ctx context.Context, r request, longest time.Duration) error {
	if e == nil || !e.asks() {
		return nil
	}
	reason, known := e.known(longest)
	if !known {
		select {
		case e.asking <- struct{}{}:
		case <-ctx.Done():
			return unsent(r, context.Cause(ctx))
		}
		defer func() { <-e.asking }()
		if reason, known = e.known(longest); !known {
			var err error
			if reason, err = e.look(ctx); err != nil {
				return harmless(r, err)
			}
		}
	}
	if reason != nil {
		return problem(r, interlock.Definite, reason)
	}
	return nil
}

// asks reports whether there is anything to check.
func (e *eviction) asks() bool {
	s := settingsOf(e.conn.client)
	return s.Fsync || !s.NoEviction
}

func (e *eviction) known(longest time.Duration) (reason error, known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reason, e.asked > 0 && (longest == whenever || boottime.Now().Sub(e.asked) <= longest)
}

// forget makes the next operation check again, since it may reach another server.
func (e *eviction) forget() {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = 0
}

// look asks the server, and returns why it must not be used.
func (e *eviction) look(ctx context.Context) (reason, err error) {
	sent := boottime.Sent()
	if reason, err = e.conn.unconfirmable(ctx, e.conn.client); err != nil {
		return nil, err
	}
	if !settingsOf(e.conn.client).NoEviction {
		policies, err := e.conn.policies(ctx)
		if err != nil {
			return nil, err
		}
		for _, p := range policies {
			reason = errors.Join(reason, e.keeps.judge(p))
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked, e.reason = sent, reason
	return reason, nil
}

// run checks every few seconds, and after checkNow, until ctx ends.
func (e *eviction) run(ctx context.Context) {
	if e.asks() {
		renewal.Loop(ctx, e.wake, e.next, e.lookAgain)
	}
}

func (e *eviction) next() boottime.Instant {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.due
}

// checkNow makes run check now, since the connection may lead to another server.
func (e *eviction) checkNow() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.due = boottime.Now()
	hints.Signal(e.wake)
}

// lookAgain checks if that is due. If it fails, the last answer stays valid.
func (e *eviction) lookAgain(ctx context.Context) {
	if e.next() > boottime.Now() {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, recheck)
	defer cancel()
	next := rescanEvery
	if _, err := e.look(bounded); err != nil {
		next = recheck
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.due = boottime.Now().Add(next)
}

// nodesOf returns the server, or the nodes of a cluster.
func nodesOf(client rueidis.Client) []rueidis.Client {
	if client.Mode() != rueidis.ClientModeCluster {
		return []rueidis.Client{client}
	}
	return slices.Collect(maps.Values(client.Nodes()))
}

// othersFor is how long policies waits for other nodes after the first answer, so that one that
// does not answer delays nothing for long.
const othersFor = recheck / 4

// policies returns those of the server, or of the nodes of a cluster that answer,
// each once: a replica may be the next master.
func (c *conn) policies(ctx context.Context) ([]string, error) {
	ctx, stop := context.WithCancel(ctx)
	nodes := nodesOf(c.client)
	answers, errs := make(chan string, len(nodes)), make(chan error, len(nodes))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer stop()
	for _, node := range nodes {
		asking.Go(func() {
			if p, err := c.policy(ctx, node); err != nil {
				errs <- err
			} else {
				answers <- p
			}
		})
	}
	var found []string
	var failed error
	var late <-chan time.Time
	for n := 0; n < len(nodes); n++ {
		select {
		case p := <-answers:
			if found = append(found, p); late == nil {
				late = time.After(othersFor)
			}
		case failed = <-errs:
		case <-late:
			n = len(nodes)
		}
	}
	if len(found) == 0 {
		return nil, failed
	}
	slices.Sort(found)
	return slices.Compact(found), nil
}

// policy reads maxmemory-policy by INFO, else by CONFIG GET, which fewer users may
// run. It is empty if neither is permitted.
func (c *conn) policy(ctx context.Context, node rueidis.Client) (string, error) {
	asked := request{op: "read maxmemory-policy"}
	text, err := do(ctx, c, asked, func(ctx context.Context) (string, error) {
		return node.Do(ctx, node.B().Info().Section("memory").Build()).ToString()
	})
	if err == nil {
		if p := infoFields(text)["maxmemory_policy"]; p != "" {
			return p, nil
		}
	} else if interlock.Kind(err) != interlock.Definite || ctx.Err() != nil {
		return "", err
	}
	config, err := c.config(ctx, node, "maxmemory-policy")
	return config["maxmemory-policy"], err
}
