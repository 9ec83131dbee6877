package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// This file is the way of a session lock through the package. OpenTable has another one: table.go
// and package leasetable.
//
//	acquire  submit passes the request to machine.go, which decides what to send: first stTake, which
//	         takes a free lock and draws its token; then stTry, which also enters the queue. The
//	         statements are in layout.go. batch.go sends calls that wait together in one statement, and
//	         pipe.go keeps two transactions under way.
//	token    the next value of a sequence; reserve makes durable that it was drawn, before it is returned.
//	wait     a released lock is passed to the first waiter of a living session by a notification. Without
//	         one, machine.go tries again after a heartbeat.
//	renewal  driver.go pings on the session. All claims of the process share it and its deadline.
//	loss     driver.go ends the session: every claim on it is lost, and session.go opens the next one.
//	release  stGive removes the row, frees the lock and wakes the next; stUnlock does so whatever is held.
//
// If the outcome of a try is unknown, machine.go releases what it may have taken. If a release fails, the
// session ends: it would take the lock twice.

// request is one owner's Acquire, and its outcome until it is released. All
// of it is guarded by Driver.mu.
type request struct {
	driver.Request
	result chan result     // capacity 1
	quiet  bool            // its Acquire has returned an error
	claim  *boottime.Lease // nil until it holds
}

type result struct {
	grant driver.Grant
	err   error
}

var errReplaced = errors.New("the same owner asked again")

// Acquire waits until r.Owner holds r.Name; see driver.Fenced.
func (d *Driver) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := fail.CheckNames("acquire", r.Name, r.Owner); err != nil {
		return driver.Grant{}, err
	}
	if ctx.Err() != nil {
		return driver.Grant{}, fail.Unsent(ctx, "acquire", r.Name)
	}
	q, err := d.submit(ctx, r)
	if err != nil {
		return driver.Grant{}, err
	}
	select {
	case o := <-q.result:
		return o.grant, o.err
	case <-ctx.Done():
		return d.abandon(ctx, q)
	}
}

// submit passes the request to the machine of the current session.
func (d *Driver) submit(ctx context.Context, r driver.Request) (*request, error) {
	for {
		s, err := d.connected(ctx, "acquire", r.Name)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		if d.session != s || d.closed {
			d.mu.Unlock()
			continue
		}
		q := &request{Request: r, result: make(chan result, 1)}
		id := identity{r.Name, r.Owner}
		if before := d.requests[id]; before != nil {
			q.claim = before.claim
			before.answer(result{err: problem("acquire", r.Name, interlock.Bug, errReplaced)})
		}
		d.requests[id] = q
		now := boottime.Now()
		d.perform(s, d.table.ask(now, id, d.key(r.Name), r.NoWait))
		d.reschedule(now)
		d.mu.Unlock()
		return q, nil
	}
}

// abandon stops waiting. It returns a grant that arrived at the same time.
func (d *Driver) abandon(ctx context.Context, q *request) (driver.Grant, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case o := <-q.result:
		return o.grant, o.err
	default:
	}
	q.quiet = true
	id := identity{q.Name, q.Owner}
	d.table.abandon(id)
	if d.requests[id] == q && q.claim == nil {
		delete(d.requests, id)
	}
	return driver.Grant{}, fail.Unanswered(ctx, "acquire", q.Name)
}

// answer ends the request's Acquire, if it is under way.
func (q *request) answer(o result) {
	select {
	case q.result <- o:
	default:
	}
}

// sessionOver is called under Driver.mu.
func (q *request) sessionOver(ranOut bool, cause error) {
	err := fmt.Errorf("%w: %w", interlock.ErrSessionEnded, cause)
	if q.claim == nil {
		q.answer(result{err: problem("acquire", q.Name, interlock.Uncertain, err)})
		return
	}
	q.lost(ranOut, problem("renew", q.Name, interlock.Definite, err))
}

// lost ends the claim, and reports that unless it had expired.
func (q *request) lost(ranOut bool, cause error) {
	q.claim.End()
	if hook := q.Events.Lost; hook != nil && !ranOut && !q.quiet {
		hook(cause)
	}
}

// close is called under Driver.mu.
func (q *request) close() {
	if q.claim == nil {
		q.answer(result{err: problem("acquire", q.Name, interlock.Uncertain, interlock.ErrClosed)})
	}
	q.quiet = true
}

var callOf = [...]callKind{sendTake: callTake, sendTry: callTry, sendRetry: callRetry, sendGive: callGive, sendUnlock: callUnlock}

// perform carries out what the machine decided, under Driver.mu.
func (d *Driver) perform(s *session, effects []effect) {
	for _, e := range effects {
		switch e.kind {
		case sendTake, sendTry, sendRetry, sendGive, sendUnlock:
			d.send(s, &call{kind: callOf[e.kind], on: e.on})
		case sendRegister:
			d.run(s, step{stRegister, []string{keyText(e.on.key), e.on.owner, e.on.name, number(s.id)}})
		case sendLeave:
			d.run(s, step{stLeave, []string{keyText(e.on.key), e.on.owner}})
		case sendPass:
			d.run(s, step{stPass, []string{"{" + keyText(e.on.key) + "}", number(s.id)}})
		default:
			d.report(s, e)
		}
	}
}

func keyText(key int64) string { return strconv.FormatInt(key, 10) }

// send sends a call for the machine. If the session has ended, endSession reports that.
func (d *Driver) send(s *session, c *call) { _ = s.pipe.send(c) }

// run sends statements on whose answer nothing depends.
func (d *Driver) run(s *session, steps ...step) {
	d.send(s, &call{steps: steps, done: func(a answer) {
		if !a.over {
			d.checkAnswer(s, a)
		}
	}})
}

// finished takes the answer to calls that shared a transaction.
func (d *Driver) finished(s *session, calls []*call, a answer) {
	d.checkAnswer(s, a)
	if calls[0].kind > callUnlock {
		if s.serves(a) {
			d.reserve(s, calls, a)
		}
		return
	}
	if a.err != nil { // the session may still have the lock, and would take it twice
		s.pipe.end(fmt.Errorf("a lock could not be released: %w", a.err))
	}
	for _, c := range calls {
		switch {
		case a.err == nil && c.kind == callGive && !c.found: // without its row, the lock is still there
			c.kind = callUnlock
			if err := s.pipe.send(c); err != nil && c.done != nil {
				c.done(answer{sent: c.sent, err: err, over: true})
			}
		case c.done != nil:
			c.done(a)
		}
	}
}

func number(id int32) string { return strconv.Itoa(int(id)) }

// report passes on the outcome of a request.
func (d *Driver) report(s *session, e effect) {
	id := e.on.identity
	q := d.requests[id]
	if q == nil {
		return
	}
	switch e.kind {
	case reportGranted:
		d.grant(s, q, e.on.counter)
	case reportHeld:
		delete(d.requests, id)
		q.answer(result{err: &interlock.HeldError{Name: q.Name, Owner: e.holder, Since: e.since}})
	case reportWaiting:
		if hook := q.Events.Waiting; hook != nil && !q.quiet {
			hook(driver.Place{Ahead: -1, Holder: e.holder})
		}
	}
}

// grant answers the request with the lease of the session.
func (d *Driver) grant(s *session, q *request, counter int64) {
	token, err := interlock.NewToken(counter, 0)
	if err == nil && s.lease.Remaining() <= 0 {
		err = problem("acquire", q.Name, interlock.Uncertain, interlock.ErrExpired)
	}
	if err != nil {
		q.answer(result{err: err})
		return
	}
	if q.claim == nil {
		q.claim = s.lease.Part()
	}
	q.answer(result{grant: driver.Grant{Lease: q.claim, Token: token}})
}

// mostReserved is how many counters a session takes for reserved at once. After a repair,
// counters are far below those.
const mostReserved = 1000

// reserve passes the answers to tries on when the counters in them are reserved.
func (d *Driver) reserve(s *session, calls []*call, a answer) {
	highest := int64(0)
	for _, c := range calls {
		if counter := c.outcome.counter; counter > 0 && c.err == nil && (counter <= s.above || counter > s.reserved) {
			highest = max(highest, counter)
		}
	}
	if highest == 0 {
		d.tried(s, calls, a)
		return
	}
	calls = slices.Clone(calls)
	steps := []step{{stReserve, []string{strconv.FormatInt(highest, 10)}}, {stReserved, nil}}
	d.send(s, &call{steps: steps, done: func(r answer) {
		if r.over {
			return
		}
		d.checkAnswer(s, r)
		if a.err = r.err; a.err == nil {
			a.err = s.readReserved(r, highest)
		}
		d.tried(s, calls, a)
	}})
}

// readReserved reads what is reserved, which has to include counter.
func (s *session) readReserved(r answer, counter int64) error {
	if len(r.rows) == 0 {
		return errNotReserved
	}
	n, err := strconv.ParseInt(string(r.rows[len(r.rows)-1][0]), 10, 64) // of the last statement
	if err != nil || n < counter {
		return errors.Join(errNotReserved, err)
	}
	s.above, s.reserved = counter, min(n, counter+mostReserved)
	return nil
}

var errNotReserved = errors.New("the counter could not be reserved")

// tried passes the answers to tries to the machine.
func (d *Driver) tried(s *session, calls []*call, a answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session != s {
		return
	}
	now := boottime.Now()
	for _, c := range calls {
		id, key := c.on.identity, c.on.key
		switch {
		case a.err != nil && len(calls) > 1 && !isSessionInvalid(a.err): // one of them is at fault
			d.perform(s, d.table.again(now, id, key, sendRetry))
		case a.err != nil:
			d.refused(s, now, c, a)
		case c.err != nil:
			d.refused(s, now, c, answer{sent: a.sent, err: c.err})
		case !c.found:
			d.perform(s, d.table.again(now, id, key, sendTry)) // who has it is found out
		default:
			d.perform(s, d.table.tried(now, id, key, c.outcome))
		}
	}
	d.reschedule(now)
}

// refused takes an error about a try.
func (d *Driver) refused(s *session, now boottime.Instant, c *call, a answer) {
	id := c.on.identity
	if q := d.requests[id]; q != nil && q.claim == nil {
		delete(d.requests, id)
		q.answer(result{err: ofAnswer("acquire", id.name, a)})
	}
	d.perform(s, d.table.failed(now, id, c.on.key))
}

// read takes the row of a member, in binary format: nothing more for a released lock; the counter
// and the server's clock for a taken one; for a try also who holds and since when.
func (c *call) read(row [][]byte) {
	c.found = true
	switch {
	case c.kind <= callUnlock:
	case row[0] != nil:
		c.outcome.counter = readNumber(row[0])
		c.err = driver.Plausible(c.outcome.counter, readTime(row[1]))
	default:
		c.outcome.holder, c.outcome.since = string(row[3]), readTime(row[4])
	}
}

// readNumber reads an int or bigint in binary format.
func readNumber(f field) (n int64) {
	for _, b := range f {
		n = n<<8 | int64(b)
	}
	return n
}

// readTime reads a timestamptz in binary format, which is in microseconds since 2000; NULL is the
// zero time.
func readTime(f field) time.Time {
	if f == nil {
		return time.Time{}
	}
	return time.UnixMicro(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro() + readNumber(f))
}

// micros reads a time in microseconds since 1970; NULL is the zero time.
func micros(f field) (time.Time, error) {
	if f == nil {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(string(f), 10, 64)
	return time.UnixMicro(n), err
}

// Release releases what owner has on name; see driver.Fenced.
func (d *Driver) Release(ctx context.Context, name, owner string) error {
	if err := fail.CheckNames("release", name, owner); err != nil {
		return err
	}
	id := identity{name, owner}
	d.forget(id)
	s, err := d.connected(ctx, "release", name)
	if err != nil {
		return err
	}
	done := answers.Get().(chan answer)
	d.mu.Lock()
	now := boottime.Now()
	effects := d.table.release(now, id, d.key(name))
	err = d.releasing(s, effects, done)
	d.reschedule(now)
	d.mu.Unlock()
	if err != nil {
		return problem("release", name, interlock.Retryable, err)
	}
	select {
	case a := <-done:
		answers.Put(done)
		return ofAnswer("release", name, a)
	case <-ctx.Done():
		return fail.Unanswered(ctx, "release", name)
	}
}

// answers has unused channels without an answer.
var answers = sync.Pool{New: func() any { return make(chan answer, 1) }}

// forget ends the events of a request, and its Acquire.
func (d *Driver) forget(id identity) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := d.requests[id]; q != nil {
		if q.quiet = true; q.claim == nil {
			q.answer(result{err: problem("acquire", id.name, interlock.Uncertain, interlock.ErrReleased)})
		}
		delete(d.requests, id)
	}
}

// releasing performs the effects of a release. The caller waits for the first one.
func (d *Driver) releasing(s *session, effects []effect, done chan answer) error {
	if d.session != s {
		return interlock.ErrSessionEnded
	}
	c := &call{kind: callUnlock, on: effects[0].on, done: func(a answer) { done <- a }}
	switch effects[0].kind {
	case sendGive:
		c.kind = callGive
	case sendLeave:
		c.kind, c.steps = callAlone, []step{{stLeave, []string{keyText(c.on.key), c.on.owner}}}
		c.done = func(a answer) {
			if !a.over {
				d.checkAnswer(s, a)
			}
			done <- a
		}
	}
	err := s.pipe.send(c)
	d.perform(s, effects[1:])
	return err
}
