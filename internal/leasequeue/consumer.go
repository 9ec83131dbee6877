// Package leasequeue consumes queues whose groups of messages are leased, one batch of a group
// at a time. It renews leases, waits for messages, and counts the unsettled messages of a
// lease. A Store keeps the messages. The package calls no handlers and retries nothing.
package leasequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/hints"
	"github.com/interlock-dev/interlock/internal/join"
)

// DefaultLease is the lease of consumers without one.
const DefaultLease = 30 * time.Second

// The bounds of a lease.
const (
	MinLease = 100 * time.Millisecond
	MaxLease = 24 * time.Hour
)

// The common rules of stores.
const (
	PerGroup = 16          // most messages of a group in one lease
	Aging    = time.Minute // extra wait that equals one step of priority
)

// claimGrace bounds the wait for the answer to a claim after the end of its Receive.
const claimGrace = time.Second

// The pauses of a consumer between two claims: the first and the longest.
const (
	minPoll = time.Millisecond
	maxPoll = time.Second
)

// Consumer is a [driver.QueueConsumer] of a Store.
type Consumer struct {
	store    Store
	name     string
	options  driver.QueueOptions
	awake    chan struct{} // ends the pause of Receive
	unlisten func()

	life  context.Context
	end   context.CancelCauseFunc
	loops sync.WaitGroup // renew, and each Receive

	settling chan struct{} // capacity 1: two settlements at once might each leave the last message to the other

	mu       sync.Mutex
	held     map[*Grant]bool
	expiry   *time.Timer // runs expire when the first lease expires, or before
	expiring bool        // expiry is set, or expire is about to run
}

var _ driver.QueueConsumer = (*Consumer)(nil)

// Join returns a consumer of a store. notifier may be nil.
func Join(store Store, name string, o driver.QueueOptions, notifier driver.Notifier) (*Consumer, error) {
	const op = "join queue"
	if err := driver.CheckName(op, "a queue", name, 255); err != nil {
		return nil, err
	}
	if err := driver.CheckText("an owner", o.Owner, 0, 255); err != nil {
		return nil, &interlock.Error{Op: op, Name: name, Kind: interlock.Bug, Err: err}
	}
	o.Lease = cmp.Or(o.Lease, DefaultLease)
	if o.Lease < MinLease || o.Lease > MaxLease {
		return nil, &interlock.Error{Op: op, Name: name, Kind: interlock.Bug,
			Err: fmt.Errorf("a lease of %v: it is %v to %v", o.Lease, MinLease, MaxLease)}
	}
	c := &Consumer{store: store, name: name, options: o, awake: make(chan struct{}, 1), settling: make(chan struct{}, 1), held: map[*Grant]bool{}, unlisten: func() {}}
	c.life, c.end = context.WithCancelCause(context.Background())
	c.expiry, c.expiring = time.AfterFunc(o.Lease, c.expire), true
	if notifier != nil {
		c.unlisten = notifier.Listen(func(notified string) {
			if notified == "" || notified == name {
				hints.Signal(c.awake)
			}
		})
	}
	c.loops.Go(c.renew)
	return c, nil
}

// Receive blocks until there are messages; see [driver.QueueConsumer].
func (c *Consumer) Receive(ctx context.Context, limit driver.QueueLimit) ([]*driver.Received, error) {
	if c.enter() {
		defer c.loops.Done()
	}
	ctx, stop := join.Context(ctx, c.life)
	defer stop()
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		for _, over := range []context.Context{c.life, ctx} {
			if over.Err() != nil {
				return nil, &interlock.Error{Op: "receive", Name: c.name, Kind: interlock.Kind(context.Cause(over)), Err: context.Cause(over)}
			}
		}
		sent := boottime.Sent()
		claim, end := outlast(ctx)
		groups, wait, err := c.store.Claim(claim, c.options.Owner, c.options.Lease, limit)
		end()
		if err != nil {
			return nil, err
		}
		if len(groups) > 0 {
			return c.take(groups, sent), nil
		}
		if wait > 0 {
			pause = min(pause, wait)
		}
		c.wait(ctx, pause)
	}
}

// enter counts a Receive, whose leases Close releases. It returns false after Close.
func (c *Consumer) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return false
	}
	c.loops.Add(1)
	return true
}

// outlast returns a context that ends claimGrace after ctx. Only the answer to a claim names the leases:
// without it, its messages stay leased.
func outlast(ctx context.Context) (longer context.Context, stop func()) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(claimGrace, func() { cancel(context.Cause(ctx)) }) })
	return longer, func() { unhook(); cancel(nil) }
}

// take returns the leased messages as deliveries.
func (c *Consumer) take(groups []Group, sent boottime.Instant) (all []*driver.Received) {
	grants := make([]Grant, len(groups))
	for i := range groups {
		g := &groups[i]
		c.grant(&grants[i], g, sent)
		for j := range g.Messages {
			m := &g.Messages[j]
			m.Queue, m.Claim = c.name, &grants[i]
			all = append(all, m)
		}
	}
	left := grants[0].Remaining() // of all
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range grants {
		if left > 0 {
			c.held[&grants[i]] = true
		} else {
			c.drop(&grants[i], interlock.ErrExpired)
		}
	}
	if left > 0 && !c.expiring {
		c.expiring = true
		c.expiry.Reset(left)
	}
	return all
}

// drop ends a grant. The mutex is held.
func (c *Consumer) drop(g *Grant, cause error) {
	delete(c.held, g)
	g.lease.End()
	g.cancel(cause)
}

// expire ends the grants whose leases have expired, and sets the timer to the end of the next one.
func (c *Consumer) expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, next := boottime.Now(), time.Duration(0)
	for g := range c.held {
		if left := g.lease.RemainingAt(now); left <= 0 {
			c.drop(g, interlock.ErrExpired)
		} else if next == 0 || left < next {
			next = left
		}
	}
	if c.expiring = next > 0; c.expiring {
		c.expiry.Reset(next)
	}
}

// wait waits for a pause, a notification, or the end of ctx.
func (c *Consumer) wait(ctx context.Context, pause time.Duration) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.awake:
	case <-ctx.Done():
	}
}

// renew renews all leases until the consumer is closed.
func (c *Consumer) renew() {
	for pause := c.options.Lease / 3; backoff.Sleep(c.life, pause); {
		held, grants := c.holding()
		if pause = c.options.Lease / 3; len(held) == 0 {
			continue
		}
		sent := boottime.Sent()
		ctx, cancel := context.WithTimeout(c.life, c.options.Lease/3)
		kept, lost, err := c.store.Renew(ctx, held, c.options.Lease)
		cancel()
		if err != nil {
			pause = c.options.Lease / 10 // the next renewal precedes the lease's end
			continue
		}
		for _, h := range kept {
			grants[h].lease.Renew(sent, c.options.Lease)
		}
		c.mu.Lock()
		for _, h := range lost {
			c.lose(grants[h])
		}
		c.mu.Unlock()
	}
}

func (c *Consumer) holding() (held []Held, grants map[Held]*Grant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	grants = map[Held]*Grant{}
	for g := range c.held {
		held = append(held, g.Held)
		grants[g.Held] = g
	}
	return held, grants
}

// Close releases all leases; see [driver.QueueConsumer].
func (c *Consumer) Close(ctx context.Context) error {
	c.unlisten()
	c.mu.Lock()
	c.end(interlock.ErrClosed)
	c.mu.Unlock()
	if err := join.Wait(ctx, c.loops.Wait); err != nil {
		return err
	}
	held, grants := c.holding()
	c.mu.Lock()
	for _, g := range grants {
		c.drop(g, interlock.ErrReleased)
	}
	if c.expiry.Stop() {
		c.expiring = false
	}
	c.mu.Unlock()
	if len(held) == 0 || ctx.Err() != nil {
		return context.Cause(ctx)
	}
	free := make([]Settled, len(held))
	for i, h := range held {
		free[i] = Settled{Held: h, Finished: true}
	}
	_, err := c.store.Settle(ctx, free)
	return err
}

// Grant is the lease of one group, as a [driver.Assignment]. Those of one claim are allocated together.
type Grant struct {
	Held
	key      string
	consumer *Consumer
	lease    *boottime.Lease
	ctx      context.Context
	cancel   context.CancelCauseFunc

	// The consumer's mutex guards these.
	unsettled int  // messages
	kept      bool // a message was settled and kept
	doubt     bool // a Settle of the last messages failed, and may have freed the group
	freed     bool // it has
}

var _ driver.Assignment = (*Grant)(nil)

// grant sets the lease of a group.
func (c *Consumer) grant(n *Grant, g *Group, sent boottime.Instant) {
	*n = Grant{Held: Held{g.ID, g.Token}, key: g.Messages[0].Key, consumer: c, unsettled: len(g.Messages), lease: boottime.NewLease(sent, c.options.Lease)}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
}

// Name returns the name of the queue and the key.
func (g *Grant) Name() string {
	if g.key == "" {
		return g.consumer.name
	}
	return g.consumer.name + "/" + g.key
}

// Owner returns the consumer's owner.
func (g *Grant) Owner() string { return g.consumer.options.Owner }

// Token returns the lease's token.
func (g *Grant) Token() interlock.Token { return g.Held.Token }

// Context returns a context that ends with the lease.
func (g *Grant) Context() context.Context { return g.ctx }

// Remaining returns the rest of the lease.
func (g *Grant) Remaining() time.Duration { return g.lease.Remaining() }

// Valid reports whether the lease lasts.
func (g *Grant) Valid() bool { return g.ctx.Err() == nil && g.Remaining() > 0 }

// Revoked returns a channel that is closed when the grant ends; leases are never revoked early.
func (g *Grant) Revoked() <-chan struct{} { return g.ctx.Done() }

// Finish removes messages in the user's transaction. If one is of a queue outside a database, ok
// is false and nothing is removed.
func Finish(ctx context.Context, db driver.SQL, all []driver.Received) (ok bool, err error) {
	byStore := map[Finisher][]Place{}
	for _, m := range all {
		g, ok := m.Claim.(*Grant)
		if !ok {
			return false, nil
		}
		f, ok := g.consumer.store.(Finisher)
		if !ok {
			return false, nil
		}
		byStore[f] = append(byStore[f], Place{g.Held, m.Place})
	}
	for f, places := range byStore {
		if err := f.Finish(ctx, db, places); err != nil {
			return true, err
		}
	}
	return true, nil
}

// Settle records outcomes; see [driver.QueueConsumer].
func (c *Consumer) Settle(ctx context.Context, settlements []driver.Settlement) []error {
	answers := make([]error, len(settlements))
	places := make(map[*Grant]int, len(settlements)) // in grants and settled
	grants := make([]*Grant, 0, len(settlements))
	settled := make([]Settled, 0, len(settlements))
	var outcomes []driver.Settlement // of all
	for i, s := range settlements {
		g, ok := s.Claim.(*Grant)
		if !ok || g.consumer != c {
			answers[i] = &interlock.Error{Op: "settle", Name: s.ID, Kind: interlock.Bug, Err: errForeign}
			continue
		}
		if outcomes == nil {
			outcomes = make([]driver.Settlement, 0, len(settlements)+len(s.Later))
		}
		from := len(outcomes)
		for m := range s.All() {
			one := s
			one.Received, one.Later = m, nil
			outcomes = append(outcomes, one)
		}
		these := slices.Clip(outcomes[from:])
		if at, ok := places[g]; ok {
			settled[at].Outcomes = append(settled[at].Outcomes, these...)
		} else {
			places[g] = len(grants)
			grants, settled = append(grants, g), append(settled, Settled{Held: g.Held, Outcomes: these})
		}
	}
	if len(grants) == 0 {
		return answers
	}
	lost, err := c.record(ctx, grants, settled)
	for i, s := range settlements {
		g, _ := s.Claim.(*Grant)
		switch {
		case answers[i] != nil:
		case err != nil:
			answers[i] = err
		case slices.Contains(lost, g.Held):
			answers[i] = &interlock.Error{Op: "settle", Name: s.ID, Kind: interlock.Definite, Err: interlock.ErrLost}
		}
	}
	return answers
}

// record calls Store.Settle, once at a time.
func (c *Consumer) record(ctx context.Context, grants []*Grant, settled []Settled) (lost []Held, err error) {
	select {
	case c.settling <- struct{}{}:
	case <-ctx.Done():
		return nil, &interlock.Error{Op: "settle", Name: c.name, Kind: interlock.Retryable, Err: context.Cause(ctx)}
	}
	defer func() { <-c.settling }()
	c.mu.Lock()
	for i, g := range grants {
		s := &settled[i]
		s.Finished, s.Kept = g.unsettled <= len(s.Outcomes), g.kept
	}
	c.mu.Unlock()
	lost, err = c.store.Settle(ctx, settled)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		for i, g := range grants {
			g.doubt = g.doubt || settled[i].Finished
		}
		return nil, err
	}
	return c.counted(grants, settled, lost), nil
}

// counted applies recorded outcomes to the leases, and returns those that are lost. The mutex is held.
func (c *Consumer) counted(grants []*Grant, settled []Settled, gone []Held) (lost []Held) {
	for i, g := range grants {
		s := &settled[i]
		g.unsettled -= len(s.Outcomes)
		g.kept = g.kept || slices.ContainsFunc(s.Outcomes, keeps)
		switch {
		case slices.Contains(gone, g.Held):
			if c.lose(g) {
				lost = append(lost, g.Held)
			}
		case s.Finished:
			c.drop(g, interlock.ErrReleased)
		}
	}
	return lost
}

// lose ends a grant whose lease is gone, and reports whether it is lost. While it lasts, no other consumer
// has it: then a Settle whose answer was lost has freed the group. The mutex is held.
func (c *Consumer) lose(g *Grant) bool {
	if g.freed = g.freed || g.doubt && g.lease.Remaining() > 0; g.freed {
		c.drop(g, interlock.ErrReleased)
		return false
	}
	c.drop(g, interlock.ErrLost)
	return true
}

// keeps reports whether the message stays.
func keeps(s driver.Settlement) bool { return s.Outcome != driver.Ack && s.Outcome != driver.Dead }

// A Group is the messages of one key that were leased together.
type Group struct {
	ID       int64
	Token    interlock.Token
	Messages []driver.Received // without Claim; at least one
}

// Held is a group and the token of its lease.
type Held struct {
	ID    int64
	Token interlock.Token
}

// Settled has the outcomes of messages of one group.
type Settled struct {
	Held
	Outcomes []driver.Settlement
	Finished bool // no message of the lease is left: the group is free again
	Kept     bool // an earlier outcome of the lease kept its message: Retry, Park or Release
}

// A Store keeps one queue. Each method is one atomic step. An expired lease belongs to its
// token until another owner takes the group.
type Store interface {
	// Claim leases groups that are ready, under tokens above all former ones of each group. If
	// a group's lease had expired, its first message has one more attempt. Without a ready
	// group, wait is the time until one is ready; 0 if not known.
	Claim(ctx context.Context, owner string, lease time.Duration, limit driver.QueueLimit) (groups []Group, wait time.Duration, err error)
	// Renew restarts the leases of groups. It returns the renewed ones, and the lost ones,
	// which other owners have. A group in neither is briefly locked.
	Renew(ctx context.Context, held []Held, lease time.Duration) (kept, lost []Held, err error)
	// Settle records outcomes. It does not change groups of other owners, and returns them.
	Settle(ctx context.Context, settled []Settled) (lost []Held, err error)
}

// A Place is one message of a lease.
type Place struct {
	Held
	Place int64
}

// A Finisher removes messages in the user's transaction, if the tokens still have their leases.
// Otherwise the error is an interlock.ErrLost.
type Finisher interface {
	// Finish is the last statement on the leases in that transaction.
	Finish(ctx context.Context, db driver.SQL, all []Place) error
}

var errForeign = errors.New("the message was not received by this consumer")
