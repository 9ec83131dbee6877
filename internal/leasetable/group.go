package leasetable

import (
	"cmp"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
	"github.com/interlock-dev/interlock/internal/failure"
	"github.com/interlock-dev/interlock/internal/renewal"
)

const (
	mostRuns = 2   // concurrent statements of one group
	mostAsks = 128 // members of one statement
	// slow is the time after which a statement no longer counts as one of mostRuns: it
	// may wait for a locked row, or for a server that does not answer.
	slow = 50 * time.Millisecond
)

// An Ask is a request of one owner to take or release a name.
type Ask struct {
	driver.Request      // a release uses the name and the owner
	Free           bool // it is a release
	Row            Row  // the result of Rows.Take

	group     *group
	sent      bool
	withdrawn bool // its caller left before it was sent
	next      *Ask // of the same name and owner
	err       error
	done      chan struct{}
}

// Find returns the Ask of a name, or nil. Asks are in the order of their names.
func Find(asks []*Ask, name string) *Ask {
	i, found := slices.BinarySearchFunc(asks, name, func(a *Ask, name string) int { return strings.Compare(a.Name, name) })
	if !found {
		return nil
	}
	return asks[i]
}

// asks are the requests without an answer. Those of one name and owner are sent in order,
// each after the answer to the one before, even if its caller no longer waits.
type asks struct {
	mu      sync.Mutex
	closed  bool
	last    map[claimed]*Ask
	running sync.WaitGroup // one for each Ask and each goroutine; waited for after close
}

type claimed struct{ name, owner string }

// groups batches requests: those that wait while statements run share the next statement,
// and its commit. A context that ends cancels only its own wait.
type groups struct {
	asks
	takes, frees *group // the same one if they share statements
}

func newGroups(d failure.Driver, rows Rows, mixed bool) *groups {
	g := &groups{asks: asks{last: map[claimed]*Ask{}}}
	g.takes = &group{asks: &g.asks, driver: d, rows: rows}
	if g.frees = g.takes; !mixed {
		g.frees = &group{asks: &g.asks, driver: d, rows: rows}
	}
	return g
}

// group sends asks of one kind, or of both.
type group struct {
	*asks
	driver failure.Driver
	rows   Rows

	waiting []*Ask // guarded by asks.mu
	runs    int    // goroutines that send requests; guarded by asks.mu
}

// take sends a request to take a name, and waits for its answer or ctx.
func (g *groups) take(ctx context.Context, r driver.Request) (Row, error) {
	return g.takes.do(ctx, &Ask{Request: r})
}

// free sends a release, and waits for its answer or ctx.
func (g *groups) free(ctx context.Context, name, owner string) error {
	_, err := g.frees.do(ctx, &Ask{Request: driver.Request{Name: name, Owner: owner}, Free: true})
	return err
}

func (a *Ask) op() string {
	if a.Free {
		return "release"
	}
	return "acquire"
}

func (g *group) do(ctx context.Context, a *Ask) (Row, error) {
	a.group, a.done = g, make(chan struct{})
	if !g.begin(a) {
		return Row{}, g.driver.Closed(a.op(), a.Name)
	}
	select {
	case <-a.done:
		return a.Row, a.err
	case <-ctx.Done():
	}
	if g.withdraw(a) {
		return Row{}, g.driver.Unsent(ctx, a.op(), a.Name)
	}
	return Row{}, g.driver.Unanswered(ctx, a.op(), a.Name)
}

func (s *asks) begin(a *Ask) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	key := claimed{a.Name, a.Owner}
	before := s.last[key]
	if s.last[key] = a; before != nil {
		before.next = a
	} else {
		a.group.add(a)
	}
	return true
}

// withdraw cancels an Ask that is not yet sent, and reports whether it did.
func (s *asks) withdraw(a *Ask) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.withdrawn = !a.sent
	return a.withdrawn
}

// end completes an Ask, and queues the next one of the name and owner.
func (s *asks) end(a *Ask) {
	close(a.done)
	if a.next != nil {
		a.next.group.add(a.next)
	} else {
		delete(s.last, claimed{a.Name, a.Owner})
	}
	s.running.Done()
}

func (g *group) add(a *Ask) {
	g.waiting = append(g.waiting, a)
	g.start()
}

func (g *group) start() {
	if g.runs < mostRuns && len(g.waiting) > 0 {
		g.runs++
		g.running.Go(g.run)
	}
}

// run sends waiting requests, until there are none or a statement is slow. Then another
// run replaces it.
func (g *group) run() {
	for members := g.choose(); members != nil; members = g.choose() {
		timer := time.AfterFunc(slow, g.yield)
		err := g.send(members)
		g.settle(members, err)
		if !timer.Stop() {
			return
		}
	}
}

// send sends a statement, which the driver bounds.
func (g *group) send(members []*Ask) error {
	if slices.ContainsFunc(members, func(a *Ask) bool { return !a.Free }) {
		return g.rows.Take(context.Background(), members)
	}
	return g.rows.Free(context.Background(), members)
}

// yield starts another run in place of a slow one.
func (g *group) yield() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.runs--
	g.start()
}

// choose returns the requests of the next statement: different names in order, so that
// groups cannot deadlock. If none waits, it returns nil, and the run ends.
func (g *group) choose() (members []*Ask) {
	for range 4 { // callers that just got an answer can add their next request
		runtime.Gosched()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for members == nil && len(g.waiting) > 0 {
		members = g.pick()
	}
	if members == nil {
		g.runs--
	}
	return members
}

func (g *group) pick() (members []*Ask) {
	waiting := g.waiting
	g.waiting = nil
	names := make(map[string]bool, len(waiting))
	for _, a := range waiting {
		switch {
		case a.withdrawn:
			g.end(a)
		case names[a.Name] || len(members) == mostAsks:
			g.waiting = append(g.waiting, a)
		default:
			names[a.Name], a.sent = true, true
			members = append(members, a)
		}
	}
	slices.SortFunc(members, func(a, b *Ask) int { return strings.Compare(a.Name, b.Name) })
	return members
}

// settle completes the requests of a statement. If it was refused as a whole, because of
// one of them or a locked row, nothing was done: each is sent again alone.
func (g *group) settle(members []*Ask, err error) {
	refused := err != nil && (interlock.Kind(err) == interlock.Definite || errors.Is(err, interlock.ErrHeld))
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range members {
		if len(members) > 1 && refused {
			g.running.Go(func() { g.alone(a) })
			continue
		}
		a.err = failure.About(a.op(), a.Name, err)
		g.end(a)
	}
}

func (g *group) alone(a *Ask) {
	a.Row = Row{}
	members := []*Ask{a}
	g.settle(members, g.send(members))
}

// close rejects further requests.
func (s *asks) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// alike divides leases by statement: one renews leases of one TTL, in the order of their names.
func (t *Table) alike(due []*renewal.Holding) (parts [][]*renewal.Holding) {
	slices.SortFunc(due, func(a, b *renewal.Holding) int {
		return cmp.Or(cmp.Compare(a.TTL, b.TTL), strings.Compare(a.Name, b.Name))
	})
	for len(due) > 0 {
		n := slices.IndexFunc(due, func(h *renewal.Holding) bool { return h.TTL != due[0].TTL })
		if n < 0 {
			n = len(due)
		}
		n = min(n, t.Batch)
		parts, due = append(parts, due[:n]), due[n:]
	}
	return parts
}

// extend extends leases of one TTL by one statement. If a row is locked for long, it extends the
// others.
func (t *Table) extend(ctx context.Context, due []*renewal.Holding) []renewal.Extension {
	extensions, held := t.extendWithin(ctx, due, min(due[0].Lease(t.TTL)/12, 250*time.Millisecond))
	if held {
		return t.extendUnlocked(ctx, due)
	}
	return extensions
}

// extendUnlocked extends the leases whose rows are not locked. It finds them by halves.
func (t *Table) extendUnlocked(ctx context.Context, due []*renewal.Holding) []renewal.Extension {
	extensions, held := t.extendWithin(ctx, due, 0)
	if half := len(due) / 2; held && half > 0 {
		return append(t.extendUnlocked(ctx, due[:half]), t.extendUnlocked(ctx, due[half:])...)
	}
	return extensions
}

// extendWithin extends leases by one statement. held reports that a row was locked for longer than
// patience.
func (t *Table) extendWithin(ctx context.Context, due []*renewal.Holding, patience time.Duration) (extensions []renewal.Extension, held bool) {
	var names, owners []string
	for _, h := range due {
		names, owners = append(names, h.Name), append(owners, h.Owner)
	}
	lost, err := t.rows.Renew(ctx, names, owners, due[0].Lease(t.TTL), patience)
	extensions = make([]renewal.Extension, len(due))
	for i, owner := range owners {
		extensions[i] = renewal.Extension{Ours: !slices.Contains(lost, owner), Err: err}
	}
	return extensions, errors.Is(err, interlock.ErrHeld)
}

// Schedule is the time of sweeps: at an interval, and at once if more rows are left.
type Schedule struct {
	Every time.Duration
	Next  boottime.Instant
}

// Due reports whether a sweep is due, and sets the next one.
func (s *Schedule) Due(now boottime.Instant) bool {
	if now < s.Next {
		return false
	}
	s.Next = now.Add(s.Every)
	return true
}

// sweep removes rows when due. If it fails, the next sweep repeats it.
func (t *Table) sweep(life context.Context) {
	if !t.Sweeps.Due(boottime.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(life, t.TTL/4)
	defer cancel()
	if more, err := t.rows.Sweep(ctx); err == nil && more {
		t.Sweeps.Next = boottime.Now()
	}
}
