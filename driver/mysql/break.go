package mysql

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/leasetable"
)

// Break releases a lock by force; see driver.Breaker. No session can release the lock of another
// one. So Break records the release, and the server then ends the holder's session, with every
// lock of that process. This requires the same database user, or the privilege CONNECTION ADMIN.
func (d *Driver) Break(ctx context.Context, b driver.Break) (driver.BreakRecord, bool, error) {
	if err := fail.CheckBreak(b); err != nil {
		return driver.BreakRecord{}, false, err
	}
	found, err := answerOf(ctx, d, "break", b.Name, func(ctx context.Context) (recordedBreak, error) { return d.record(ctx, b) })
	if err != nil || found.id == 0 {
		return driver.BreakRecord{}, false, err
	}
	if err := d.kill(ctx, b.Name, found.id); err != nil {
		return driver.BreakRecord{}, false, err
	}
	return found.BreakRecord, true, nil
}

// recordedBreak is a record, and the holder's connection, or 0.
type recordedBreak struct {
	driver.BreakRecord
	id int64
}

// insertBreak records a forced release if owner holds name, with the holder's connection, in one
// statement: a later statement might see the connection of the next holder.
const insertBreak = `insert into {ns}_break (name, owner, reason, who, counter, at, request, connection)
select name, owner, ?, ?, counter, {now}, ?, connection from {ns}_holder
where name = ? and owner = ? and connection = is_used_lock(lock_name)
returning counter, timestampdiff(microsecond, '2020-01-01', at), connection`

// insertForeignBreak is insertBreak for a connection that took the lock by hand.
const insertForeignBreak = `insert into {ns}_break (name, owner, reason, who, counter, at, request, connection)
select ?, ?, ?, ?, 0, {now}, ?, u.id from (select is_used_lock(?) as id) u
where concat('connection ', u.id) = ? and ` + takenByHand + `
returning counter, timestampdiff(microsecond, '2020-01-01', at), connection`

// record records b, if its owner has the lock. If another operator ends this session meanwhile,
// record reads the outcome.
func (d *Driver) record(ctx context.Context, b driver.Break) (recordedBreak, error) {
	request := rand.Text()
	var counter, at, id, used int64
	err := d.statement(ctx, func(s *session) (err error) {
		used = s.id
		err = one(ctx, s.conn, d.options.sql(insertBreak), []any{[]byte(b.Reason), []byte(b.By), request,
			[]byte(b.Name), []byte(b.Owner)}, &counter, &at, &id)
		if err == nil && id == 0 {
			err = one(ctx, s.conn, d.options.sql(insertForeignBreak), []any{[]byte(b.Name), []byte(b.Owner), []byte(b.Reason),
				[]byte(b.By), request, s.lockName(d.options, b.Name), []byte(b.Owner), []byte(b.Name)}, &counter, &at, &id)
		}
		return err
	})
	if err != nil && d.session == nil && ctx.Err() == nil {
		counter, at, id, err = d.recall(ctx, request, used, b, err)
	}
	if err != nil || id == 0 {
		return recordedBreak{}, err
	}
	record, err := leasetable.Broken(b, counter, serverTime(at))
	return recordedBreak{record, id}, err
}

// recall looks for a record whose answer was lost with session used.
func (d *Driver) recall(ctx context.Context, request string, used int64, b driver.Break, lost error) (counter, at, id int64, err error) {
	connections := 0
	err = d.statement(ctx, func(s *session) error {
		err := one(ctx, s.conn, `select count(*) from information_schema.processlist where id = ?`, []any{used}, &connections)
		if err != nil {
			return err
		}
		return one(ctx, s.conn, d.options.sql(`select counter, timestampdiff(microsecond, '2020-01-01', at), connection
			from {ns}_break where name = ? and request = ?`), []any{[]byte(b.Name), request}, &counter, &at, &id)
	})
	switch {
	case err != nil || id == 0 && connections != 0:
		return 0, 0, 0, lost
	case id == 0:
		return 0, 0, 0, problem("break", b.Name, interlock.Retryable, lost)
	}
	return counter, at, id, nil
}

// kill ends a session of the server, and returns when that session no longer has the lock. If it is
// this driver's session, kill closes it.
func (d *Driver) kill(ctx context.Context, name string, id int64) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for killed := false; ; killed = true {
		gone, err := answerOf(ctx, d, "break", name, func(ctx context.Context) (gone bool, err error) {
			if d.session != nil && d.session.id == id {
				d.endSession(errBroken)
			}
			err = d.statement(ctx, func(s *session) error {
				var user int64
				err := one(ctx, s.conn, `select coalesce(is_used_lock(?), 0)`, []any{s.lockName(d.options, name)}, &user)
				if err == nil && user == id && !killed {
					err = kill(ctx, s.conn, id)
				}
				gone = user != id
				return err
			})
			return gone, err
		})
		if err != nil {
			return leasetable.UncertainBreak(fail, name, err)
		}
		if gone {
			d.freed.Wake(name)
			return nil
		}
		select {
		case <-ctx.Done():
			return fail.Unanswered(ctx, "break", name)
		case <-look.C:
		}
	}
}

var errBroken = errors.New("a lock of this process was taken away by force")

// Breaks returns the recorded forced releases. They are kept until an operator deletes them.
func (d *Driver) Breaks(ctx context.Context, name string, limit int) ([]driver.BreakRecord, error) {
	found, err := onSession(ctx, d, "list breaks", name, func(ctx context.Context, s *session) ([]driver.BreakRecord, error) {
		return breaks(ctx, s.conn, d.options.sql("{ns}_break"), name, limit)
	})
	return found, ofRead(ctx, "list breaks", name, err)
}
