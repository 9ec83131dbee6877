package postgres

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

// Break takes a lock away; see driver.Breaker. It is recorded first. No session
// can give up the lock of another, so the server is told to end the holder's
// session, and with it every lock of that process, whose holders are all told.
// Only what this driver holds itself is taken away alone. It needs the holder's
// database role, or pg_signal_backend.
func (d *Driver) Break(ctx context.Context, b driver.Break) (driver.Broken, bool, error) {
	if err := breakable(b); err != nil {
		return driver.Broken{}, false, err
	}
	key := strconv.FormatInt(d.key(b.Name), 10)
	s, a, err := d.ask(ctx, "break", b.Name, stBreak, key, b.Name, b.Owner, b.Reason, b.By)
	if err != nil || len(a.rows) == 0 {
		return driver.Broken{}, false, err
	}
	row := a.rows[0]
	record, err := broken(b, row[0], row[1])
	if err != nil {
		return driver.Broken{}, false, problem("break", b.Name, interlock.Bug, err)
	}
	if string(row[2]) == number(s.id) {
		return record, true, d.drop(ctx, s, b)
	}
	return record, true, d.endSession(ctx, s, b.Name, string(row[2]))
}

func breakable(b driver.Break) error {
	if err := text("break", b.Name, b.Owner); err != nil {
		return err
	}
	for _, s := range []string{b.Reason, b.By} {
		if err := text("break", s, "-"); err != nil {
			return problem("break", b.Name, interlock.Bug,
				fmt.Errorf("a reason and who says so are needed, of 1 to %d bytes of UTF-8 each", driver.MaxName))
		}
	}
	return nil
}

func broken(b driver.Break, counter, at field) (driver.Broken, error) {
	n, err := strconv.ParseInt(string(counter), 10, 64)
	if err != nil {
		return driver.Broken{}, err
	}
	token, err := interlock.NewToken(n, 0)
	if err != nil {
		return driver.Broken{}, err
	}
	when, err := micros(at)
	return driver.Broken{Break: b, Token: token, At: when}, err
}

// drop gives up what this driver holds, and tells the holder.
func (d *Driver) drop(ctx context.Context, s *session, b driver.Break) error {
	id := identity{b.Name, b.Owner}
	done := make(chan answer, 1)
	d.mu.Lock()
	if q := d.requests[id]; q != nil && q.claim != nil {
		q.lost(false, problem("renew", b.Name, interlock.Definite, fmt.Errorf("%w: taken away by %s", interlock.ErrLost, b.By)))
		delete(d.requests, id)
	}
	err := d.releasing(s, d.table.release(boottime.Now(), id, d.key(b.Name)), done)
	d.mu.Unlock()
	if err != nil {
		return problem("break", b.Name, interlock.Uncertain, err)
	}
	select {
	case a := <-done:
		return ofAnswer("break", b.Name, a)
	case <-ctx.Done():
		return unanswered("break", b.Name, ctx)
	}
}

// endSession ends another session and returns when it is gone.
func (d *Driver) endSession(ctx context.Context, s *session, name, id string) error {
	if _, err := d.askOn(ctx, s, "break", name, step{stEnd, []string{id}}); err != nil {
		return err
	}
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		a, err := d.askOn(ctx, s, "break", name, step{stGone, []string{id}})
		if err != nil || string(a.rows[0][0]) == "t" {
			return err
		}
		select {
		case <-ctx.Done():
			return unanswered("break", name, ctx)
		case <-look.C:
		}
	}
}

// Breaks shows what was recorded, which is kept until somebody deletes it.
func (d *Driver) Breaks(ctx context.Context, name string, limit int) ([]driver.Broken, error) {
	if name != "" {
		if err := text("list breaks", name, "-"); err != nil {
			return nil, err
		}
	}
	_, a, err := d.ask(ctx, "list breaks", name, stBreaks, name, strconv.Itoa(max(limit, 0)))
	if err != nil {
		return nil, err
	}
	var all []driver.Broken
	for _, row := range a.rows {
		b := driver.Break{Name: string(row[0]), Owner: string(row[1]), Reason: string(row[2]), By: string(row[3])}
		record, err := broken(b, row[4], row[5])
		if err != nil {
			return nil, problem("list breaks", name, interlock.Bug, err)
		}
		all = append(all, record)
	}
	return all, nil
}
