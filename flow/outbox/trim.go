package outbox

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
)

// DefaultKeepAudit is how long it is kept what was done by hand.
const DefaultKeepAudit = 90 * 24 * time.Hour

const (
	trimEvery = time.Hour
	trimBatch = 500
)

// trim deletes old records of what was done by hand, now and then. One slice does it
// for all. What fails is tried again the next time.
func (s *service) trim(ctx context.Context) {
	if s.slice != 0 || s.options.KeepAudit < 0 || s.options.now().Before(s.trimAt) {
		return
	}
	s.trimAt = s.options.now().Add(trimEvery + time.Duration(s.options.random()*float64(trimEvery/4)))
	for n := trimBatch; n == trimBatch && ctx.Err() == nil; {
		err := transact.Do(ctx, s.db.Begin, s.table.name(), func(tx driver.Tx[driver.SQL]) error {
			st, err := s.open("trim audit", tx)
			if err == nil {
				n, err = st.trim(ctx, s.options.KeepAudit)
			}
			return err
		})
		if err != nil {
			if f := s.options.Hooks.Trouble; f != nil && ctx.Err() == nil {
				f(observe.OutboxTrouble{Slice: s.slice, Op: "trim audit", Err: err})
			}
			return
		}
	}
}

// trim deletes the oldest records if they are older than keep, a batch at most. It
// looks at no more: ids rise with time.
func (s store) trim(ctx context.Context, keep time.Duration) (int, error) {
	var old []int64
	err := s.Each(ctx, `select id, {micros start} - done_at from {audit} order by id limit 500`, nil, func(scan func(...any) error) error {
		var id, age int64
		err := scan(&id, &age)
		if age > keep.Microseconds() {
			old = append(old, id)
		}
		return err
	})
	if err != nil || len(old) == 0 {
		return 0, s.failed(err)
	}
	return len(old), s.failed(s.exec(ctx, `delete from {audit} where id in (`+list(old)+`)`))
}
