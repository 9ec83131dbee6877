package postgres

import (
	"cmp"
	"context"
	"math"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// ask sends a call of one statement and waits for its answer.
func (d *Driver) ask(ctx context.Context, op, name, statement string, args ...string) (*session, answer, error) {
	if ctx.Err() != nil {
		return nil, answer{}, fail.Unsent(ctx, op, name)
	}
	s, err := d.connected(ctx, op, name)
	if err != nil {
		return nil, answer{}, err
	}
	a, err := d.askOn(ctx, s, op, name, step{statement, args})
	return s, a, err
}

func (d *Driver) askOn(ctx context.Context, s *session, op, name string, steps ...step) (answer, error) {
	done := make(chan answer, 1)
	err := s.pipe.send(&call{steps: steps, done: func(a answer) {
		if !a.over {
			d.checkAnswer(s, a)
		}
		done <- a
	}})
	if err != nil {
		return answer{}, problem(op, name, interlock.Retryable, err)
	}
	select {
	case a := <-done:
		return a, ofAnswer(op, name, a)
	case <-ctx.Done():
		return answer{}, fail.Unanswered(ctx, op, name)
	}
}

// Lock shows one name; see driver.Inspector. Holders and waiters whose session
// is gone are not shown. A session that took the lock by hand is shown as a foreign
// holder, "process" and the number of its server process; Locks does not show it, because
// the lock does not have its name.
func (d *Driver) Lock(ctx context.Context, name string) (driver.LockState, error) {
	state := driver.LockState{Name: name}
	if err := fail.CheckNames("inspect", name, "-"); err != nil {
		return state, err
	}
	_, a, err := d.ask(ctx, "inspect", name, stShow, keyText(d.key(name)), name)
	if err != nil {
		return state, err
	}
	for _, row := range a.rows {
		if err := show(&state, row); err != nil {
			return state, problem("inspect", name, interlock.Bug, err)
		}
	}
	return state, nil
}

// Locks lists names; see driver.Inspector.
func (d *Driver) Locks(ctx context.Context, prefix string, limit int) ([]driver.LockState, bool, error) {
	if prefix != "" {
		if err := fail.CheckNames("list", prefix, "-"); err != nil {
			return nil, false, err
		}
	}
	limit = min(max(limit, 0), math.MaxInt-1)
	_, a, err := d.ask(ctx, "list", "", stList, prefix, strconv.Itoa(limit+1))
	if err != nil {
		return nil, false, err
	}
	var locks []driver.LockState
	for _, row := range a.rows {
		name := string(row[0])
		if len(locks) == 0 || locks[len(locks)-1].Name != name {
			locks = append(locks, driver.LockState{Name: name})
		}
		if err := show(&locks[len(locks)-1], row[1:]); err != nil {
			return nil, false, problem("list", "", interlock.Bug, err)
		}
	}
	if len(locks) > limit {
		return locks[:limit], true, nil
	}
	return locks, false, nil
}

// show adds a row of owner, counter, since and what is left, to state.
func show(state *driver.LockState, row []field) error {
	c := driver.Contender{Owner: string(row[0])}
	counter, err := strconv.ParseInt(string(row[1]), 10, 64)
	left, failed := strconv.ParseInt(string(row[3]), 10, 64)
	since, undated := micros(row[2])
	if err = cmp.Or(err, failed, undated); err != nil {
		return err
	}
	c.Since = since
	if counter < 0 { // it was taken by hand
		if state.Holder == nil {
			state.Holder = &driver.Contender{Owner: c.Owner, Foreign: true}
		}
		return nil
	}
	if counter == 0 {
		state.Waiters = append(state.Waiters, c)
		return nil
	}
	c.Expires = time.Duration(left) * time.Millisecond
	if c.Token, err = interlock.NewToken(counter, 0); err != nil {
		return err
	}
	if state.Holder == nil {
		state.Holder = &c
	}
	return nil
}
