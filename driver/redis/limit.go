package redis

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var limitScript, limitOneScript = newScript(lua("limit")), newScript(lua("limit_one"))

// Limiter keeps limits in Redis: one script decides up to driver.MaxCharges charges by the
// server's clock. It implements driver.Limiter. A limit is the string
// interlock:{TAG}:limit:PREFIX+KEY, which expires when nothing of it counts any more. In a
// cluster the keys of one call must be in one slot: give them the same {tag}. Consumption lost
// by a crash without appendfsync always, or by a failover to a replica, no longer counts.
type Limiter struct {
	conn   *conn
	prefix string
}

var _ driver.LimitInspector = (*Limiter)(nil)

// NewLimiter keeps limits under a prefix, which may be empty; it sends nothing. The caller
// closes the client.
func NewLimiter(client rueidis.Client, prefix string) *Limiter {
	return &Limiter{newGuardConn(client, keepsAll), prefix}
}

// limitBatch holds the calls of one run of the script.
type limitBatch struct {
	batch
	calls []int // their indexes

	group  int // where in args the last group begins, with the number of its calls
	size   int // that number
	charge [8]int64
}

// add adds a call. Calls of one charge with equal numbers form a group, which is sent once.
func (b *limitBatch) add(place int, call driver.LimitCall, keys []string) {
	b.keys, b.calls = append(b.keys, keys...), append(b.calls, place)
	first := call[0].Numbers()
	if len(call) == 1 && b.size > 0 && first == b.charge {
		b.size++
		b.args[b.group] = strconv.Itoa(b.size)
		return
	}
	b.group, b.size, b.charge = len(b.args), 1, first
	if len(call) > 1 {
		b.size = 0 // no call joins it
	}
	b.args = append(b.args, "1", strconv.Itoa(len(call)))
	for _, c := range call {
		b.args = appendCharge(b.args, c)
	}
}

// Take decides calls; see driver.Limiter.
func (l *Limiter) Take(ctx context.Context, calls []driver.LimitCall) []driver.LimitAnswer {
	answers := make([]driver.LimitAnswer, len(calls))
	if len(calls) == 1 && isShort(calls[0]) && l.takeOne(ctx, calls[0], &answers[0]) {
		return answers
	}
	batches := l.batches(calls, answers)
	if len(batches) == 0 {
		return answers
	}
	asked := request{op: "limit", name: calls[batches[0].calls[0]][0].Key}
	messages, errs := l.eval(ctx, asked, batches)
	for i, b := range batches {
		err := errs[i]
		if err == nil {
			if err = l.read(b, messages[i], calls, answers); err != nil {
				err = uncertain(asked, errReply)
			}
		}
		if err != nil {
			for _, call := range b.calls {
				answers[call] = driver.LimitAnswer{Err: err}
			}
		}
	}
	return answers
}

// takeOne decides one call of one bucket. It returns false if the other script must decide.
func (l *Limiter) takeOne(ctx context.Context, call driver.LimitCall, a *driver.LimitAnswer) bool {
	c := call[0]
	if a.Err = c.Check(); a.Err != nil {
		return true
	}
	asked := request{op: "limit", name: c.Key}
	m, err := l.conn.eval(ctx, asked, limitOneScript, batch{[]string{fenceKey("limit", l.prefix+c.Key)}, argsOfOne(c.Numbers())})
	if err != nil {
		a.Err = err
		return true
	}
	level, err := m.AsInt64()
	switch {
	case err != nil:
		a.Err = uncertain(asked, errReply)
	case level < 0:
		return false
	default:
		a.Decisions = []driver.Decision{c.Bucket(level)}
	}
	return true
}

// argsOfOne returns the arguments of limitOneScript. It leaves out a cost and a least of 1.
func argsOfOne(n [8]int64) []string {
	numbers := [...]int64{n[4], n[5], n[3] * n[4], n[6], n[7]}
	some := numbers[:]
	if n[6] == 1 && n[7] == 1 {
		some = some[:3]
	}
	args := make([]string, len(some))
	for i, x := range some {
		args[i] = strconv.FormatInt(x, 10)
	}
	return args
}

// isShort reports whether the answer to a call is one number: the level of its bucket.
func isShort(call driver.LimitCall) bool {
	return len(call) == 1 && call[0].Rate.Algorithm == driver.GCRA && call[0].Cost >= 0
}

// read parses the answers of the script to the calls of a batch.
func (l *Limiter) read(b *limitBatch, m rueidis.RedisMessage, calls []driver.LimitCall, answers []driver.LimitAnswer) error {
	left, err := m.ToArray()
	decisions := make([]driver.Decision, len(b.keys)) // a kept decision keeps the others
	for _, i := range b.calls {
		n := 5 * len(calls[i])
		if isShort(calls[i]) {
			n = 1
		}
		if err == nil && len(left) >= n {
			answers[i], err = l.answer(calls[i], left[:n], decisions[:len(calls[i]):len(calls[i])])
		}
		if err != nil || len(left) < n {
			return errReply
		}
		left, decisions = left[n:], decisions[len(calls[i]):]
	}
	if len(left) > 0 {
		return errReply
	}
	return nil
}

// answer parses that to one call: numbers, or the content of a key that is no limit.
func (l *Limiter) answer(call driver.LimitCall, messages []rueidis.RedisMessage, decisions []driver.Decision) (a driver.LimitAnswer, err error) {
	for i, m := range messages {
		if m.IsString() {
			held, err := m.ToString()
			c := call[i/5]
			return driver.LimitAnswer{Err: driver.DamagedLimit(c.Key, "the key "+fenceKey("limit", l.prefix+c.Key), held)}, err
		}
	}
	a.Decisions = decisions
	if isShort(call) {
		level, err := messages[0].AsInt64()
		a.Decisions[0] = call[0].Bucket(level)
		return a, err
	}
	for i := range call {
		var n [5]int64
		for j := range n {
			if n[j], err = messages[5*i+j].AsInt64(); err != nil {
				return a, err
			}
		}
		a.Decisions[i] = driver.Decision{Allowed: n[0] == 1, Granted: n[1], Remaining: n[2],
			RetryAfter: time.Duration(n[3]) * time.Microsecond, ResetAfter: time.Duration(n[4]) * time.Microsecond}
	}
	return a, nil
}

// batches rejects invalid calls, and divides the others by slot and size.
func (l *Limiter) batches(calls []driver.LimitCall, answers []driver.LimitAnswer) (all []*limitBatch) {
	cluster := l.conn.client.Mode() == rueidis.ClientModeCluster
	last := map[int]*limitBatch{}
	var keys []string
	for i, call := range calls {
		if answers[i].Err = call.Check(); answers[i].Err != nil {
			continue
		}
		keys = keys[:0]
		for _, c := range call {
			keys = append(keys, fenceKey("limit", l.prefix+c.Key))
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
		b.add(i, call, keys)
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
