package redis

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/leasequeue"
)

// streamMost is how many entries a claim indexes, and messages it takes, at most, and streamPerLane
// how many of them of one key. Lua can unpack about 8,000 values. A claim reads streamAhead entries at
// least, as far as there are any.
const (
	streamMost    = 256
	streamPerLane = 64
	streamAhead   = 64
)

// streamAudit is about how many records of manual operations are kept.
const streamAudit = 10000

var streamConstants = fmt.Sprintf("local MOST, PER_LANE, AHEAD, AGING_MS, MAX_DELAY_MS, MAX_AUDIT = %d, %d, %d, %d, %d, %d\n",
	streamMost, streamPerLane, streamAhead, leasequeue.Aging.Milliseconds(), maxDelay.Milliseconds(), streamAudit)

var (
	streamPutScript    = newScript(streamLua("put"))
	streamClaimScript  = newDrainingScript("claim")
	streamRenewScript  = newDrainingScript("renew")
	streamSettleScript = newDrainingScript("settle")
)

// streamLua returns the text of a script of queues.
func streamLua(name string) source {
	return lua("clock", "draw", "stream_queue", "stream_"+name).after(constants + streamConstants)
}

// newDrainingScript returns a script of a queue that runs even if the server's memory is full,
// since finishing messages frees memory. If such a script were refused half way, a lane could
// be lost.
func newDrainingScript(name string) *script {
	const flags = "#!lua flags=allow-oom\n"
	s := newStepwiseScript(streamLua(name).after(flags))
	s.whole = newStepwiseScript(streamLua(name).after(flags + "table.remove(KEYS)\n"))
	return s
}

// streamStore is a stream as a [leasequeue.Store].
type streamStore struct {
	queue *Queue
	name  string
	keys  []string
}

var _ leasequeue.Store = (*streamStore)(nil)

func (s *streamStore) eval(ctx context.Context, op string, script *script, args []string) ([]rueidis.RedisMessage, error) {
	asked := request{op: op, name: s.name, harmless: script.reads}
	m, err := s.queue.conn.eval(ctx, asked, script, batch{s.keys, args})
	if err != nil {
		return nil, err
	}
	all, err := m.ToArray()
	if err != nil {
		return nil, uncertain(asked, errReply)
	}
	return all, nil
}

// Claim leases lanes, by one request; see [leasequeue.Store].
func (s *streamStore) Claim(ctx context.Context, _ string, lease time.Duration, limit driver.QueueLimit) (all []leasequeue.Group, wait time.Duration, err error) {
	answer, err := s.eval(ctx, "receive", streamClaimScript,
		[]string{s.queue.options.Group, milliseconds(lease), strconv.Itoa(min(limit.Messages, streamMost)), strconv.Itoa(limit.Bytes)})
	if err != nil {
		return nil, 0, err
	}
	all, wait, err = s.parseGroups(answer)
	if err != nil {
		return nil, 0, uncertain(request{op: "receive", name: s.name}, errReply)
	}
	return all, wait, nil
}

// parseGroups parses the answer to a claim.
func (s *streamStore) parseGroups(answer []rueidis.RedisMessage) (all []leasequeue.Group, wait time.Duration, err error) {
	if len(answer) < 2 {
		return nil, 0, errReply
	}
	ms, err := answer[0].AsInt64()
	if err != nil || len(answer) == 2 {
		return nil, time.Duration(ms) * time.Millisecond, err
	}
	counter, err := answer[1].AsInt64()
	if err != nil {
		return nil, 0, err
	}
	token, err := interlock.NewToken(counter, 0)
	if err != nil {
		return nil, 0, err
	}
	all = make([]leasequeue.Group, 0, len(answer)/fewest)
	for rest := answer[2:]; len(rest) > 0; {
		g := leasequeue.Group{Token: token}
		if rest, err = parseGroup(&g, rest); err != nil {
			return nil, 0, err
		}
		all = append(all, g)
	}
	return all, time.Duration(ms) * time.Millisecond, nil
}

// fewest is about the least number of parts of a leased lane.
const fewest = 4

// parseGroup parses the next lane of an answer, and returns the rest.
func parseGroup(g *leasequeue.Group, answer []rueidis.RedisMessage) (rest []rueidis.RedisMessage, err error) {
	messages, err := answer[0].ToString()
	if err != nil {
		return nil, err
	}
	lane, messages, known := strings.Cut(messages, " ")
	messages, failures, _ := strings.Cut(messages, " ")
	if !known { // a new lane, which has the name of its first place
		lane, messages = lane[:min(len(lane), 16)], lane
	}
	if g.ID, err = strconv.ParseInt(lane, 10, 64); err != nil || messages == "" {
		return nil, errReply
	}
	answer = answer[1:]
	g.Messages = make([]driver.Received, strings.Count(messages, ","))
	for i := range g.Messages {
		var message, failed string
		message, messages, _ = strings.Cut(messages, ",")
		place, entry, _ := strings.Cut(message, ":")
		failed, failures, _ = strings.Cut(failures, ",")
		if len(answer) == 0 {
			return nil, errReply
		}
		n, err := answer[0].AsInt64()
		names := usualFields[n]
		n = cmp.Or(int64(len(names)), n)
		if err != nil || n < 0 || n >= int64(len(answer)) {
			return nil, errReply
		}
		r := &g.Messages[i]
		if err := setReceived(r, place, entry, cmp.Or(failed, "0")); err != nil {
			return nil, err
		}
		if err := setFields(r, names, answer[1:1+n]); err != nil {
			return nil, err
		}
		answer = answer[1+n:]
	}
	return answer, nil
}

// usualFields are the names of the values that follow a number in the answer to a claim.
var usualFields = map[int64][]string{-2: {"id", "payload"}, -3: {"id", "key", "payload"}}

// received is the number of parts of a message in a list of parts: place, failures, entry, fields.
const received = 4

// parseReceived parses the first parts of a message.
func parseReceived(r *driver.Received, parts []rueidis.RedisMessage) error {
	if len(parts) < received {
		return errReply
	}
	place, placeErr := parts[0].ToString()
	failures, failErr := parts[1].AsInt64()
	entry, entryErr := parts[2].ToString()
	fields, fieldErr := parts[3].ToArray()
	if err := errors.Join(placeErr, failErr, entryErr, fieldErr); err != nil {
		return err
	}
	return cmp.Or(setReceived(r, place, entry, strconv.FormatInt(failures, 10)), setFields(r, nil, fields))
}

// setReceived sets the parts of a message that are not in fields.
func setReceived(r *driver.Received, place, entry, failures string) error {
	clock, _, _ := strings.Cut(entry, "-")
	added, addedErr := driver.ParseInt(clock)
	failed, failedErr := driver.ParseInt(failures)
	number, placeErr := strconv.ParseInt(place, 10, 64)
	if addedErr != nil || failedErr != nil || placeErr != nil {
		return errReply
	}
	r.Place, r.Attempt, r.Added = number, int(failed)+1, time.UnixMilli(added).UTC()
	r.ID = entry
	return nil
}

// setFields sets the fields of a message: the values with the names, or, without names, names and values.
func setFields(r *driver.Received, names []string, parts []rueidis.RedisMessage) error {
	for len(parts) > 0 {
		var name string
		var err error
		if len(names) > 0 {
			name, names = names[0], names[1:]
		} else if name, err = parts[0].ToString(); err != nil || len(parts) == 1 {
			return errReply
		} else {
			parts = parts[1:]
		}
		value, err := parts[0].ToString()
		if err != nil {
			return errReply
		}
		setField(&r.QueueMessage, name, value)
		parts = parts[1:]
	}
	return nil
}

// setField sets a field of a message, which any client may have written.
func setField(m *driver.QueueMessage, name, value string) {
	switch name {
	case "id":
		m.ID = cmp.Or(value, m.ID)
	case "key":
		m.Key = value
	case "payload":
		m.Payload = []byte(value)
	case "unique":
		m.Unique = value
	case "headers":
		if m.Headers = nil; value != "" && json.Unmarshal([]byte(value), &m.Headers) != nil {
			m.Headers = map[string]string{name: value}
		}
	case "delay":
		delay, _ := driver.ParseInt(value)
		m.Delay = time.Duration(min(max(delay, 0), maxDelay.Milliseconds())) * time.Millisecond
	case "priority":
		priority, _ := driver.ParseInt(value)
		m.Priority = driver.Priority(min(max(priority, -1), 1))
	}
}

// Renew renews leases, up to 1024 in one request; see [leasequeue.Store].
func (s *streamStore) Renew(ctx context.Context, held []leasequeue.Held, lease time.Duration) (kept, lost []leasequeue.Held, err error) {
	for some := range slices.Chunk(held, 4*streamMost) {
		a := arguments{all: append(make([]string, 0, 1+2*len(some)), milliseconds(lease))}
		for _, h := range some {
			a.all = append(a.all, strconv.FormatInt(h.Token.Counter(), 10))
		}
		for _, h := range some {
			a.number("", h.ID, "")
		}
		answer, err := s.flags(ctx, "renew", streamRenewScript, a.all, len(some))
		if err != nil {
			return nil, nil, err
		}
		for i, h := range some {
			if answer[i] {
				kept = append(kept, h)
			} else {
				lost = append(lost, h)
			}
		}
	}
	return kept, lost, nil
}

// Settle records outcomes, up to 512 leases and outcomes in one request; see [leasequeue.Store].
func (s *streamStore) Settle(ctx context.Context, settled []leasequeue.Settled) (lost []leasequeue.Held, err error) {
	for len(settled) > 0 {
		n, outcomes := 0, 0
		for n < len(settled) && (n == 0 || n+outcomes+len(settled[n].Outcomes) <= 2*streamMost) {
			n, outcomes = n+1, outcomes+len(settled[n].Outcomes)
		}
		a := arguments{all: append(make([]string, 0, 3+2*n+2*outcomes), s.queue.options.Group, flag(s.queue.options.Keep), strconv.Itoa(n))}
		a.texts.Grow(16*n + 48*outcomes)
		for _, x := range settled[:n] {
			a.number("", x.ID, "")
		}
		var last interlock.Token
		var token string // of last: leases of one claim have the same
		for _, x := range settled[:n] {
			if x.Token != last || token == "" {
				last, token = x.Token, strconv.FormatInt(x.Token.Counter(), 10)
			}
			a.settled(x, token)
		}
		answer, err := s.flags(ctx, "settle", streamSettleScript, a.all, n)
		if err != nil {
			return nil, err
		}
		for i, held := range answer {
			if !held {
				lost = append(lost, settled[i].Held)
			}
		}
		settled = settled[n:]
	}
	return lost, nil
}

// arguments are those of a script. Lanes and places share an allocation.
type arguments struct {
	all   []string
	texts strings.Builder
}

// number appends a lane or a place as the scripts format it, between other texts.
func (a *arguments) number(before string, n int64, after string) {
	var digits [16]byte
	for i := len(digits) - 1; i >= 0; i-- {
		digits[i], n = byte('0'+n%10), n/10
	}
	from := a.texts.Len()
	a.texts.WriteString(before)
	a.texts.Write(digits[:])
	a.texts.WriteString(after)
	a.all = append(a.all, a.texts.String()[from:])
}

// settled appends the outcomes of a lease, whose token is a text. See stream_settle.lua.
func (a *arguments) settled(x leasequeue.Settled, token string) {
	if !x.Finished || len(x.Outcomes) == 0 || slices.ContainsFunc(x.Outcomes, hasMore) {
		a.all = append(a.all, strconv.Itoa(len(x.Outcomes)), token, flag(x.Finished))
		for _, o := range x.Outcomes {
			a.outcome(o)
		}
		return
	}
	if n := len(x.Outcomes); n > 1 {
		a.all = append(a.all, strconv.Itoa(-n))
	}
	for i, o := range x.Outcomes {
		if i == 0 {
			a.number(token+" 1 0 0 0 ", o.Place, ":")
		} else {
			a.number("", o.Place, "")
		}
	}
}

// hasMore reports whether a settlement has more arguments than a place.
func hasMore(o driver.Settlement) bool { return o.Outcome != driver.Ack || o.Unique != "" }

// outcome appends the arguments of a settlement.
func (a *arguments) outcome(o driver.Settlement) {
	failures, kind := o.Attempt-1, "release"
	switch o.Outcome {
	case driver.Ack:
		kind = "finish"
	case driver.Dead:
		kind, failures = "dead", o.Attempt
	case driver.Park:
		kind = "park"
	case driver.Retry:
		kind = "retry"
		if !o.Uncounted {
			failures = o.Attempt
		}
	}
	a.number("", o.Place, "")
	a.all = append(a.all, kind, strconv.Itoa(failures), milliseconds(min(max(0, o.After), maxDelay)), o.Unique, o.Reason)
}

// flags runs a script that answers 0 or 1 for each of n.
func (s *streamStore) flags(ctx context.Context, op string, script *script, args []string, n int) ([]bool, error) {
	answer, err := s.eval(ctx, op, script, args)
	if err != nil {
		return nil, err
	}
	flags := make([]bool, n)
	for i, m := range answer {
		value, err := m.AsInt64()
		if err != nil || len(answer) != n {
			return nil, uncertain(request{op: op, name: s.name}, errReply)
		}
		flags[i] = value == 1
	}
	return flags, nil
}

// streamBlock bounds one command's wait for entries, and streamPause is the least time between
// two. In between consumers poll.
const (
	streamBlock = 5 * time.Second
	streamPause = 20 * time.Millisecond
)

// subscribe reports new entries until ctx ends, on a connection of its own.
func (s *streamStore) subscribe(ctx context.Context, deliver func(string)) {
	for failed := 0; ctx.Err() == nil; failed++ {
		node, release := s.queue.conn.client.Dedicate()
		stop := context.AfterFunc(ctx, node.Close)
		for s.await(ctx, node) == nil {
			failed = 0
			deliver("")
			backoff.Sleep(ctx, streamPause)
		}
		if stop() {
			release()
		}
		resubscribe.Wait(ctx, failed)
	}
}

// await waits for an entry, or for streamBlock.
func (s *streamStore) await(ctx context.Context, node rueidis.DedicatedClient) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err := node.Do(context.WithoutCancel(ctx), node.B().Xread().Count(1).Block(streamBlock.Milliseconds()).Streams().Key(s.keys[0]).Id("$").Build()).Error()
	if rueidis.IsRedisNil(err) {
		return nil
	}
	return err
}
