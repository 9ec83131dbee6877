package redis

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/leasequeue"
)

//go:embed script/stream_queue.lua
var streamQueueLua string

//go:embed script/stream_claim.lua
var streamClaimLua string

//go:embed script/stream_renew.lua
var streamRenewLua string

//go:embed script/stream_settle.lua
var streamSettleLua string

//go:embed script/stream_put.lua
var streamPutLua string

// streamMost is how many entries a claim indexes, and messages it takes, at most. Lua can unpack
// about 8,000 values.
const streamMost = 256

// streamAudit is about how many records of manual operations are kept.
const streamAudit = 10000

var streamConstants = fmt.Sprintf("local MOST, PER_LANE, AGING_MS, MAX_DELAY_MS, MAX_AUDIT = %d, %d, %d, %d, %d\n",
	streamMost, leasequeue.PerGroup, leasequeue.Aging.Milliseconds(), maxDelay.Milliseconds(), streamAudit)

var (
	streamPutScript    = newScript(constants + streamConstants + clockLua + drawLua + streamQueueLua + streamPutLua)
	streamClaimScript  = newDrainingScript(streamClaimLua)
	streamRenewScript  = newDrainingScript(streamRenewLua)
	streamSettleScript = newDrainingScript(streamSettleLua)
)

// newDrainingScript returns a script of a queue that runs even if the server's memory is full,
// since finishing messages frees memory. If such a script were refused half way, a lane could
// be lost.
func newDrainingScript(source string) *script {
	const flags = "#!lua flags=allow-oom\n"
	source = constants + streamConstants + clockLua + drawLua + streamQueueLua + source
	s := newStepwiseScript(flags + source)
	s.whole = newStepwiseScript(flags + "table.remove(KEYS)\n" + source)
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
	asked := request{op: op, name: s.name}
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
	damaged := uncertain(request{op: "receive", name: s.name}, errReply)
	if len(answer) == 0 {
		return nil, 0, damaged
	}
	ms, err := answer[0].AsInt64()
	for _, m := range answer[1:] {
		g, bad := parseGroup(m)
		err = errors.Join(err, bad)
		all = append(all, g)
	}
	if err != nil {
		return nil, 0, damaged
	}
	return all, time.Duration(ms) * time.Millisecond, nil
}

// parseGroup parses a leased lane.
func parseGroup(m rueidis.RedisMessage) (g leasequeue.Group, err error) {
	parts, err := m.ToArray()
	if err != nil || len(parts) != 3 {
		return g, errReply
	}
	id, err := parts[0].AsInt64()
	if err != nil {
		return g, errReply
	}
	counter, err := parts[1].AsInt64()
	if err != nil {
		return g, errReply
	}
	token, err := interlock.NewToken(counter, 0)
	if err != nil {
		return g, err
	}
	messages, err := parts[2].ToArray()
	if err != nil || len(messages) == 0 {
		return g, errReply
	}
	g = leasequeue.Group{ID: id, Token: token}
	for _, m := range messages {
		r, _, err := parseReceived(m)
		if err != nil {
			return g, err
		}
		g.Messages = append(g.Messages, r)
	}
	return g, nil
}

// parseReceived parses a message: place, failures, entry, fields. It returns the rest.
func parseReceived(m rueidis.RedisMessage) (r driver.Received, rest []rueidis.RedisMessage, err error) {
	parts, err := m.ToArray()
	if err != nil || len(parts) < 4 {
		return r, nil, errReply
	}
	place, placeErr := parts[0].AsInt64()
	failures, failErr := parts[1].AsInt64()
	entry, entryErr := parts[2].ToString()
	fields, fieldErr := parts[3].AsStrMap()
	clock, _, _ := strings.Cut(entry, "-")
	added, addedErr := driver.ParseInt(clock)
	if errors.Join(placeErr, failErr, entryErr, fieldErr, addedErr) != nil {
		return r, nil, errReply
	}
	delay, _ := driver.ParseInt(fields["delay"]) // may be of another client
	priority, _ := driver.ParseInt(fields["priority"])
	r = driver.Received{Place: place, Attempt: int(failures) + 1, Added: time.UnixMilli(added).UTC(), QueueMessage: driver.QueueMessage{
		ID: fields["id"], Key: fields["key"], Payload: []byte(fields["payload"]), Unique: fields["unique"],
		Delay: time.Duration(min(max(delay, 0), maxDelay.Milliseconds())) * time.Millisecond, Priority: driver.Priority(min(max(priority, -1), 1))}}
	if r.ID == "" {
		r.ID = entry
	}
	if text := fields["headers"]; text != "" && json.Unmarshal([]byte(text), &r.Headers) != nil {
		r.Headers = map[string]string{"headers": text} // may be of another client
	}
	return r, parts[4:], nil
}

// Renew renews leases, up to 1024 in one request; see [leasequeue.Store].
func (s *streamStore) Renew(ctx context.Context, held []leasequeue.Held, lease time.Duration) (kept, lost []leasequeue.Held, err error) {
	for some := range slices.Chunk(held, 4*streamMost) {
		args := []string{milliseconds(lease)}
		for _, h := range some {
			args = append(args, laneOf(h), counterOf(h))
		}
		answer, err := s.flags(ctx, "renew", streamRenewScript, args, len(some))
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
		args := []string{s.queue.options.Group, flag(s.queue.options.Keep)}
		for n < len(settled) && (n == 0 || n+outcomes+len(settled[n].Outcomes) <= 2*streamMost) {
			x := settled[n]
			args = append(args, laneOf(x.Held), counterOf(x.Held), flag(x.Finished), strconv.Itoa(len(x.Outcomes)))
			for _, o := range x.Outcomes {
				args = append(args, outcomeArgs(o)...)
			}
			n, outcomes = n+1, outcomes+len(x.Outcomes)
		}
		answer, err := s.flags(ctx, "settle", streamSettleScript, args, n)
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

// outcomeArgs returns the arguments of a settlement.
func outcomeArgs(o driver.Settlement) []string {
	failures, kind := o.Attempt-1, "release"
	switch o.Outcome {
	case driver.Ack:
		kind = "ack"
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
	return []string{strconv.FormatInt(o.Place, 10), kind, strconv.Itoa(failures), milliseconds(min(max(0, o.After), maxDelay)), o.Unique, o.ID, o.Reason}
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

// laneOf returns the name of a lane in the scripts.
func laneOf(h leasequeue.Held) string { return fmt.Sprintf("%016d", h.ID) }

func counterOf(h leasequeue.Held) string { return strconv.FormatInt(h.Token.Counter(), 10) }

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
			pause(ctx, streamPause)
		}
		if stop() {
			release()
		}
		pause(ctx, resubscribe.Delay(failed, rand.Float64()))
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
