package memory

import (
	"context"
	"sync"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
)

func init() {
	backend.Register(backend.Scheme{
		Kind: "memory", Form: "memory://name",
		Abilities: backend.Values | backend.Journals | backend.Guards,
		MinTTL:    time.Millisecond, MaxTTL: 24 * time.Hour,
		Connect: func(_ context.Context, u *backend.URL) (backend.Connection, error) {
			return connect(u.Namespace()), nil
		},
	})
}

// spaces are those of URLs. A space lasts while a connection to it is open.
var (
	spacesMu sync.Mutex
	spaces   = map[string]*shared{}
)

// shared is shared by the connections of one name.
type shared struct {
	space     *Space
	users     int
	journals  map[string]*Journal
	notifiers map[string]*Notifier
	requests  *Idempotency
	limits    *Limiter
	queues    *Queue
	keys      *KeyValues
}

// connection is opened by memory://name: all connections of a process to one name share
// its locks, values, marks and journals.
type connection struct {
	name  string
	to    *shared
	close func()
}

func connect(name string) connection {
	spacesMu.Lock()
	defer spacesMu.Unlock()
	s := spaces[name]
	if s == nil {
		s = &shared{space: NewSpace(), journals: map[string]*Journal{}, notifiers: map[string]*Notifier{}, requests: NewIdempotency(), limits: NewLimiter(), queues: NewQueue(), keys: NewKeyValues()}
		spaces[name] = s
	}
	s.users++
	return connection{name, s, sync.OnceFunc(func() { disconnect(name, s) })}
}

func disconnect(name string, s *shared) {
	spacesMu.Lock()
	defer spacesMu.Unlock()
	if s.users--; s.users == 0 {
		delete(spaces, name)
	}
}

// Fenced opens a [Driver].
func (c connection) Fenced(_ context.Context, o backend.LockOptions) (backend.Locks, error) {
	return c.to.space.Open(&Options{TTL: o.TTL}), nil
}

// Values returns those of the space.
func (c connection) Values(context.Context, string) (driver.Values, error) {
	return c.to.space.Values(), nil
}

// Fence returns that of the space.
func (c connection) Fence(string) driver.Fence { return c.to.space.Fence() }

// Requests returns one store for all prefixes.
func (c connection) Requests(string) driver.Idempotency { return c.to.requests }

// KeyValues returns one store for all prefixes.
func (c connection) KeyValues(string) driver.KeyValues { return c.to.keys }

// Limiter returns one for all prefixes.
func (c connection) Limiter(string) driver.Limiter { return c.to.limits }

// Queue returns one for all connections of the name.
func (c connection) Queue() driver.Queue { return c.to.queues }

// OpenQueue returns the queues of memory://name, which queue.Open consumes, to add messages to
// them. They exist until close is called and all other connections to the name are closed.
func OpenQueue(name string) (q *Queue, close func()) {
	c := connect(name)
	return c.to.queues, c.close
}

// Journal returns the one of its name.
func (c connection) Journal(_ context.Context, name string) (driver.Journal, error) {
	spacesMu.Lock()
	defer spacesMu.Unlock()
	j := c.to.journals[name]
	if j == nil {
		j = NewJournal()
		c.to.journals[name] = j
	}
	return j, nil
}

// Notifier returns the one of its name.
func (c connection) Notifier(_ context.Context, name string) (driver.Notifier, func(context.Context) error, error) {
	spacesMu.Lock()
	defer spacesMu.Unlock()
	b := c.to.notifiers[name]
	if b == nil {
		b = &Notifier{}
		c.to.notifiers[name] = b
	}
	return b, func(context.Context) error { return nil }, nil
}

// Close removes the space, unless another connection shares it.
func (c connection) Close() error {
	c.close()
	return nil
}
