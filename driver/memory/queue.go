package memory

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/leasequeue"
)

// Queue keeps queues in memory. It is the executable specification of driver.Queue: each call
// is one step under a mutex, by this process's clock.
type Queue struct {
	notifier Notifier

	mu     sync.Mutex
	queues map[string]*queue
	places int64
}

var _ driver.Queue = (*Queue)(nil)

// NewQueue returns a Queue without messages.
func NewQueue() *Queue { return &Queue{queues: map[string]*queue{}} }

// queue holds the messages of one name.
type queue struct {
	of     *Queue
	name   string
	groups map[int64]*group
	keys   map[string]*group
	dead   []driver.Received
}

// group holds the messages of one key, or one message without a key.
type group struct {
	id       int64
	key      string
	priority driver.Priority
	messages []*waitingMessage // in order
	ready    time.Time         // or when the lease ends
	leased   bool
	parked   bool
	token    interlock.Token
}

type waitingMessage struct {
	driver.Received
	from time.Time // not delivered before
}

// get returns the queue of a name. The caller holds the mutex, as in all methods below.
func (q *Queue) get(name string) *queue {
	if q.queues[name] == nil {
		q.queues[name] = &queue{of: q, name: name, groups: map[int64]*group{}, keys: map[string]*group{}}
	}
	return q.queues[name]
}

// Add appends messages to the queue of a name. It skips unique messages that are already
// unfinished.
func (q *Queue) Add(name string, messages ...driver.QueueMessage) error {
	if err := driver.CheckName("add to queue", "a queue", name, 255); err != nil {
		return err
	}
	q.mu.Lock()
	for _, m := range messages {
		q.get(name).add(m)
	}
	q.mu.Unlock()
	q.notifier.Notify(name)
	return nil
}

// add appends a message to its group, and returns that; nil if the message is skipped.
func (s *queue) add(m driver.QueueMessage) *group {
	for _, g := range s.groups {
		if m.Unique != "" && slices.ContainsFunc(g.messages, func(w *waitingMessage) bool { return w.Unique == m.Unique }) {
			return nil
		}
	}
	s.of.places++
	m.ID = cmp.Or(m.ID, rand.Text())
	m.Payload, m.Headers = slices.Clone(m.Payload), maps.Clone(m.Headers)
	now := time.Now()
	g := s.keys[m.Key]
	if m.Key == "" || g == nil {
		g = &group{id: s.of.places, key: m.Key}
		s.groups[g.id] = g
		if m.Key != "" {
			s.keys[m.Key] = g
		}
	}
	g.priority = m.Priority
	if len(g.messages) == 0 && !g.parked {
		g.ready = now.Add(m.Delay)
	}
	g.messages = append(g.messages, &waitingMessage{from: now.Add(m.Delay),
		Received: driver.Received{QueueMessage: m, Queue: s.name, Attempt: 1, Added: now, Place: s.of.places}})
	return g
}

// Join starts to consume; see [driver.Queue].
func (q *Queue) Join(_ context.Context, name string, o driver.QueueOptions) (driver.QueueConsumer, error) {
	q.mu.Lock()
	s := q.get(name)
	q.mu.Unlock()
	c, err := leasequeue.Join(s, name, o, &q.notifier)
	if err != nil {
		return nil, err // not a typed nil
	}
	return c, nil
}

// DeadLetters returns the dead letters of a queue, in the order of their addition.
func (q *Queue) DeadLetters(name string) []driver.Received {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.get(name).dead)
}

// Replay returns dead letters to their former places.
func (q *Queue) Replay(name string, ids ...string) error {
	q.mu.Lock()
	s := q.get(name)
	for _, id := range ids {
		i := slices.IndexFunc(s.dead, func(m driver.Received) bool { return m.ID == id })
		if i < 0 {
			q.mu.Unlock()
			return fail.New("replay", id, interlock.Definite, fmt.Errorf("there is no such dead letter"))
		}
		m := s.dead[i]
		s.dead = slices.Delete(s.dead, i, i+1)
		m.Delay, m.Unique = 0, "" // it is delivered in any case
		g := s.add(m.QueueMessage)
		last := len(g.messages) - 1
		g.messages[last].Place = m.Place
		slices.SortStableFunc(g.messages, func(a, b *waitingMessage) int { return cmp.Compare(a.Place, b.Place) })
		g.priority = g.messages[last].Priority // that of the last message, as after Add
	}
	q.mu.Unlock()
	q.notifier.Notify(name)
	return nil
}

// Resume continues a parked key.
func (q *Queue) Resume(name, key string) error {
	q.mu.Lock()
	g := q.get(name).keys[key]
	if g == nil || !g.parked {
		q.mu.Unlock()
		return fail.New("resume key", key, interlock.Definite, fmt.Errorf("it is not parked"))
	}
	if g.parked = false; !g.leased {
		g.ready = time.Now()
	}
	q.mu.Unlock()
	q.notifier.Notify(name)
	return nil
}

// Claim leases groups that are ready, by priority and waiting time.
func (s *queue) Claim(ctx context.Context, _ string, lease time.Duration, limit driver.QueueLimit) (all []leasequeue.Group, wait time.Duration, err error) {
	if ctx.Err() != nil {
		return nil, 0, fail.Unsent(ctx, "receive", s.name)
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	now := time.Now()
	var ready []*group
	for _, g := range s.groups {
		if g.parked || len(g.messages) == 0 {
			continue
		}
		from := g.ready
		if first := g.messages[0].from; first.After(from) {
			from = first
		}
		if after := from.Sub(now); after <= 0 {
			ready = append(ready, g)
		} else if wait == 0 || after < wait {
			wait = after
		}
	}
	slices.SortFunc(ready, func(a, b *group) int {
		return cmp.Or(a.rank().Compare(b.rank()), cmp.Compare(a.messages[0].Place, b.messages[0].Place))
	})
	count, bytes := 0, 0
	each := max(1, min(leasequeue.PerGroup, limit.Messages/max(1, len(ready))))
	for _, g := range ready {
		var some []driver.Received
		for _, m := range g.messages {
			if bytes += len(m.Payload); m.from.After(now) || len(some) == each || count == limit.Messages || count > 0 && bytes > limit.Bytes {
				break
			}
			some = append(some, m.Received)
			count++
		}
		if len(some) == 0 {
			break
		}
		all = append(all, g.lease(now, lease, some))
	}
	return all, wait, nil
}

func (g *group) rank() time.Time { return g.ready.Add(-time.Duration(g.priority) * leasequeue.Aging) }

// lease leases the group; a lease that expired counts as an attempt of its first message.
func (g *group) lease(now time.Time, lease time.Duration, some []driver.Received) leasequeue.Group {
	if g.leased {
		g.messages[0].Attempt++
		some[0].Attempt++
	}
	counter := max(g.token.Counter()+1, interlock.CounterAt(now))
	g.token, _ = interlock.NewToken(counter, 0) // in range until 2091
	g.leased, g.ready = true, now.Add(lease)
	return leasequeue.Group{ID: g.id, Token: g.token, Messages: some}
}

// Renew renews leases.
func (s *queue) Renew(_ context.Context, held []leasequeue.Held, lease time.Duration) (kept, lost []leasequeue.Held, err error) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	for _, h := range held {
		if g := s.groups[h.ID]; g == nil || g.token != h.Token || !g.leased {
			lost = append(lost, h)
			continue
		}
		s.groups[h.ID].ready = time.Now().Add(lease)
		kept = append(kept, h)
	}
	return kept, lost, nil
}

// Settle records outcomes.
func (s *queue) Settle(ctx context.Context, settled []leasequeue.Settled) (lost []leasequeue.Held, err error) {
	if ctx.Err() != nil {
		return nil, fail.New("settle", s.name, interlock.Retryable, context.Cause(ctx))
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	for _, x := range settled {
		g := s.groups[x.ID]
		if g == nil || g.token != x.Token {
			lost = append(lost, x.Held)
			continue
		}
		for _, o := range x.Outcomes {
			s.settle(g, o)
		}
		if x.Finished {
			s.free(g)
		}
	}
	s.of.notifier.Notify(s.name)
	return lost, nil
}

func (s *queue) settle(g *group, o driver.Settlement) {
	i := slices.IndexFunc(g.messages, func(m *waitingMessage) bool { return m.Place == o.Place })
	if i < 0 {
		return // already settled
	}
	m := g.messages[i]
	switch o.Outcome {
	case driver.Dead:
		s.dead = append(s.dead, m.Received)
		slices.SortFunc(s.dead, func(a, b driver.Received) int { return cmp.Compare(a.Place, b.Place) })
		fallthrough
	case driver.Ack:
		g.messages = slices.Delete(g.messages, i, i+1)
	case driver.Retry:
		m.from = time.Now().Add(o.After)
		if !o.Uncounted {
			m.Attempt = o.Attempt + 1
		}
	case driver.Park:
		g.parked = true
	}
}

// free ends the lease. The group stays for its token, unless it has no key.
func (s *queue) free(g *group) {
	g.leased = false
	if len(g.messages) > 0 {
		g.ready = time.Now()
		if from := g.messages[0].from; from.After(g.ready) {
			g.ready = from
		}
	} else if g.key == "" {
		delete(s.groups, g.id)
	}
}
