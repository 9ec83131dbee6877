package queue

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/leasequeue"
	"github.com/interlock-dev/interlock/internal/sqltable"
)

// owned is a locked group.
type owned struct{ lane, token, state int64 }

// isOf reports whether the lease has a token.
func (o owned) isOf(token interlock.Token) bool { return o.token == token.Counter() }

// owned locks groups in the order of their lanes. lock ends the query.
func (q tables) owned(ctx context.Context, name string, lanes []int64, lock string) (map[int64]owned, error) {
	of, args := q.of(name, lanes)
	all, err := sqltable.List(ctx, q.Tables, `select lane, token, state from {groups} where `+of+` order by lane for update`+lock, args,
		func(o *owned) []any { return []any{&o.lane, &o.token, &o.state} })
	by := map[int64]owned{}
	for _, o := range all {
		by[o.lane] = o
	}
	return by, err
}

// Renew renews leases; see [leasequeue.Store]. It skips groups that a transaction of a handler has
// locked.
func (s *store) Renew(ctx context.Context, held []leasequeue.Held, lease time.Duration) (kept, lost []leasequeue.Held, err error) {
	err = s.do(ctx, "renew leases", func(q tables) error {
		var lanes []int64
		for _, h := range held {
			lanes = append(lanes, h.ID)
		}
		groups, err := q.owned(ctx, s.name, lanes, ` skip locked`)
		if err != nil {
			return err
		}
		lanes = nil
		for _, h := range held {
			switch o, ok := groups[h.ID]; {
			case !ok: // locked; or deleted, then the lease expires
			case o.isOf(h.Token) && o.state&leased != 0:
				kept, lanes = append(kept, h), append(lanes, h.ID)
			default:
				lost = append(lost, h)
			}
		}
		if len(lanes) == 0 {
			return nil
		}
		of, args := q.of(s.name, lanes)
		_, err = q.Exec(ctx, `update {groups} set ready_at = {micros start} + ? where `+of, append([]any{lease.Microseconds()}, args...)...)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return kept, lost, nil
}

// Settle records outcomes; see [leasequeue.Store].
func (s *store) Settle(ctx context.Context, settled []leasequeue.Settled) (lost []leasequeue.Held, err error) {
	run, simple := s.do, acked(settled)
	if simple {
		run = s.single
	}
	err = run(ctx, "settle", func(q tables) error {
		if simple && !q.Maria() {
			lost, err = q.acknowledge(ctx, s.name, settled)
			return err
		}
		lost, err = q.settle(ctx, s.name, settled)
		return err
	})
	if err != nil {
		return nil, err
	}
	return lost, nil
}

// settle records outcomes of groups whose leases have the given tokens, and returns the others.
func (q tables) settle(ctx context.Context, name string, settled []leasequeue.Settled) (lost []leasequeue.Held, err error) {
	var lanes []int64
	for _, x := range settled {
		lanes = append(lanes, x.ID)
	}
	groups, err := q.owned(ctx, name, lanes, ``)
	if err != nil {
		return nil, err
	}
	var e effects
	for _, x := range settled {
		if groups[x.ID].isOf(x.Token) {
			e.add(x)
		} else {
			lost = append(lost, x.Held)
		}
	}
	return lost, q.apply(ctx, name, e)
}

// effects are the changes of settlements.
type effects struct {
	failed   []driver.Settlement // of messages that stay, or become dead letters
	gone     []int64             // messages to delete
	parked   []int64             // groups
	finished []int64             // groups without leased messages
}

func (e *effects) add(s leasequeue.Settled) {
	if s.Finished {
		e.finished = append(e.finished, s.ID)
	}
	for _, o := range s.Outcomes {
		switch o.Outcome {
		case driver.Ack, driver.Dead:
			e.gone = append(e.gone, o.Place)
		case driver.Park:
			e.parked = append(e.parked, s.ID)
		}
		if o.Outcome != driver.Ack && o.Outcome != driver.Release {
			e.failed = append(e.failed, o)
		}
	}
}

// apply records effects. Dead letters are copied before they are deleted, and groups are freed last.
func (q tables) apply(ctx context.Context, name string, e effects) error {
	if err := q.fail(ctx, e.failed); err != nil {
		return err
	}
	if _, err := q.remove(ctx, e.gone); err != nil {
		return err
	}
	if err := q.park(ctx, name, e.parked); err != nil {
		return err
	}
	return q.free(ctx, name, e.finished)
}

// fail records failures and copies dead letters.
func (q tables) fail(ctx context.Context, all []driver.Settlement) error {
	var dead []int64
	for _, o := range all {
		attempts, after := o.Attempt, int64(0)
		if o.Uncounted || o.Outcome == driver.Park {
			attempts--
		}
		if o.Outcome == driver.Retry {
			after = o.After.Microseconds()
		}
		if o.Outcome == driver.Dead {
			dead = append(dead, o.Place)
		}
		if _, err := q.Exec(ctx, `update {messages} set attempts = ?, last_error = {?}, not_before = {micros start} + ? where id = ?`, attempts, o.Reason, after, o.Place); err != nil {
			return err
		}
	}
	if len(dead) == 0 {
		return nil
	}
	these, args := q.among("id", dead)
	_, err := q.Exec(ctx, `insert into {dead} (id, queue, lane, message_id, msg_key, headers, payload, class, attempts, last_error, added, died)
		select id, queue, lane, message_id, msg_key, headers, payload, class, attempts, last_error, added, {micros start} from {messages} where `+these, args...)
	return err
}

// remove deletes messages, and returns how many there were.
func (q tables) remove(ctx context.Context, places []int64) (int64, error) {
	if len(places) == 0 {
		return 0, nil
	}
	slices.Sort(places)
	these, args := q.among("id", places)
	return q.Exec(ctx, `delete from {messages} where `+these, args...)
}

// park marks groups until an operator resumes them.
func (q tables) park(ctx context.Context, name string, lanes []int64) error {
	if len(lanes) == 0 {
		return nil
	}
	of, args := q.of(name, lanes)
	_, err := q.Exec(ctx, `update {groups} set state = `+strconv.Itoa(leased|parked)+` where `+of, args...)
	return err
}

// Finish removes messages in the user's transaction; see [leasequeue.Finisher].
func (s *store) Finish(ctx context.Context, db driver.SQL, all []leasequeue.Place) error {
	q, err := s.table.open("finish message", s.name, db)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b leasequeue.Place) int { return cmp.Compare(a.ID, b.ID) })
	removed, err := q.finish(ctx, s.name, all)
	if err == nil && removed != len(all) { // another consumer has a lease, or another transaction has finished a message
		err = q.Refused(interlock.ErrLost)
	}
	return err
}

// finish removes messages whose leases have the given tokens, and returns how many.
func (q tables) finish(ctx context.Context, name string, all []leasequeue.Place) (removed int, err error) {
	if !q.Maria() {
		return q.finishPostgres(ctx, name, all)
	}
	var lanes, places []int64
	for _, p := range all {
		lanes = append(lanes, p.ID)
	}
	groups, err := q.owned(ctx, name, lanes, ``)
	if err != nil {
		return 0, err
	}
	for _, p := range all {
		if groups[p.ID].isOf(p.Token) {
			places = append(places, p.Place)
		}
	}
	n, err := q.remove(ctx, places)
	return int(n), err
}
