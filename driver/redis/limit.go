package redis

import (
	"context"
	_ "embed"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

//go:embed script/limit.lua
var limitLua string

var limitScript = newScript(limitLua)

// Limiter keeps limits in Redis: one script decides up to driver.MaxCharges charges by the
// server's clock. It implements driver.Limiter. A limit is the text
// interlock:{TAG}:limit:PREFIX+KEY, which expires when nothing of it counts any more. In a
// cluster the keys of one call are in one slot: give them the same {tag}. What a crash without
// appendfsync always, or a failover to a replica, loses was not consumed, as far as Redis knows.
type Limiter struct {
	conn   *conn
	prefix string
}

var _ driver.Limiter = (*Limiter)(nil)

// NewLimiter keeps limits under a prefix, which may be empty; it sends nothing. The client stays
// the caller's.
func NewLimiter(client rueidis.Client, prefix string) *Limiter {
	return &Limiter{newGuardConn(client, keepsAll), prefix}
}

// limitBatch is calls for one run of the script.
type limitBatch struct {
	batch
	calls []int // which they are
}

// Take decides calls; see driver.Limiter.
func (l *Limiter) Take(ctx context.Context, calls []driver.LimitCall) []driver.LimitAnswer {
	answers := make([]driver.LimitAnswer, len(calls))
	batches := l.batches(calls, answers)
	if len(batches) == 0 {
		return answers
	}
	asked := request{op: "limit", name: calls[batches[0].calls[0]][0].Key}
	messages, errs := l.eval(ctx, asked, batches)
	for i, b := range batches {
		numbers, err := []int64(nil), errs[i]
		if err == nil {
			if numbers, err = messages[i].AsIntSlice(); err != nil || len(numbers) != 5*len(b.keys) {
				err = uncertain(asked, errReply)
			}
		}
		for _, call := range b.calls {
			if answers[call].Err = err; err == nil {
				answers[call].Decisions, numbers = limitDecisions(numbers, len(calls[call]))
			}
		}
	}
	return answers
}

// batches refuses impossible calls, and divides the others by slots and by size.
func (l *Limiter) batches(calls []driver.LimitCall, answers []driver.LimitAnswer) (all []*limitBatch) {
	cluster := l.conn.client.Mode() == rueidis.ClientModeCluster
	last := map[int]*limitBatch{}
	for i, call := range calls {
		keys, args := make([]string, len(call)), append(make([]string, 0, 1+8*len(call)), strconv.Itoa(len(call)))
		if answers[i].Err = call.Check(); answers[i].Err != nil {
			continue
		}
		for j, c := range call {
			keys[j] = fenceKey("limit", l.prefix+c.Key)
			args = appendCharge(args, c)
		}
		if err := l.conn.oneSlot(keys); err != nil {
			answers[i].Err = problem(request{op: "limit", name: call[0].Key}, interlock.Definite, err)
			continue
		}
		slot := 0
		if cluster {
			slot = slotOf(keys[0])
		}
		b := last[slot]
		if b == nil || len(b.keys)+len(keys) > driver.MaxCharges {
			b = &limitBatch{}
			last[slot], all = b, append(all, b)
		}
		b.keys, b.args, b.calls = append(b.keys, keys...), append(b.args, args...), append(b.calls, i)
	}
	return all
}

func appendCharge(args []string, c driver.Charge) []string {
	for _, n := range c.Numbers() {
		args = append(args, strconv.FormatInt(n, 10))
	}
	return args
}

// eval runs the script on each batch.
func (l *Limiter) eval(ctx context.Context, asked request, all []*limitBatch) (messages []rueidis.RedisMessage, errs []error) {
	messages, errs = make([]rueidis.RedisMessage, len(all)), make([]error, len(all))
	if len(all) == 1 {
		messages[0], errs[0] = l.conn.eval(ctx, asked, limitScript, all[0].batch)
		return messages, errs
	}
	batches := make([]batch, len(all))
	for i, b := range all {
		batches[i] = b.batch
	}
	err := l.conn.evicts.permit(ctx, asked, recheck)
	var results []rueidis.RedisResult
	if err == nil {
		results, err = l.conn.evalAll(ctx, asked, limitScript, batches)
	}
	for i := range all {
		if errs[i] = err; err == nil {
			messages[i], err = results[i].ToMessage()
			errs[i], err = failure(asked, err), nil
		}
	}
	return messages, errs
}

// limitDecisions reads n decisions, and returns what is behind them.
func limitDecisions(numbers []int64, n int) (all []driver.Decision, rest []int64) {
	for range n {
		all = append(all, driver.Decision{Allowed: numbers[0] == 1, Granted: numbers[1], Remaining: numbers[2],
			RetryAfter: time.Duration(numbers[3]) * time.Microsecond, ResetAfter: time.Duration(numbers[4]) * time.Microsecond})
		numbers = numbers[5:]
	}
	return all, numbers
}
