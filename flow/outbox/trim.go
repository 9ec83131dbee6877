package outbox

import (
	"context"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/transact"
	"github.com/interlock-dev/interlock/observe"
)

// DefaultKeepAudit is the default of Options.KeepAudit.
const DefaultKeepAudit = 90 * 24 * time.Hour

const (
	trimEvery = time.Hour
	trimBatch = 500
)

// trim deletes old audit records, about once an hour. Slice 0 does it for all. After an error it tries
// again the next time.
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

// trim deletes those of the oldest records that are older than keep, one batch at most. It reads no
// other records: ids increase with time.
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
