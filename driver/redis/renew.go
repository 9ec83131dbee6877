package redis

import (
	"context"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock/internal/renewal"
)

// newKeeper returns what renews leases. Their confirmation may take some time.
func newKeeper(extend func(context.Context, []*renewal.Holding) []renewal.Extension, ttl time.Duration, s Settings) *renewal.Keeper {
	bound := time.Second
	if s.Fsync {
		bound = silence + fsyncFor
	}
	return renewal.New(renewal.Config{Driver: "redis", TTL: ttl, Bound: min(bound, ttl/3), Extend: extend})
}

// extend extends leases, all in one pipeline.
func (k *keyspace) extend(ctx context.Context, due []*renewal.Holding) []renewal.Extension {
	r := request{op: "renew"}
	parts, results, err := evalParts(ctx, k.conn, r, renewScript, chunks(k.layout, due, k.layout.held),
		func(parts [][]*renewal.Holding) []batch { return k.layout.renewals(parts, k.ttl) })
	found := make(map[*renewal.Holding]renewal.Extension, len(due))
	for i, part := range parts {
		answers, err := integers(r, results, i, len(part), err)
		for j, h := range part {
			found[h] = renewal.Extension{Ours: err == nil && answers[j] == 1, Err: err}
		}
	}
	extensions := make([]renewal.Extension, len(due))
	for i, h := range due {
		extensions[i] = found[h]
	}
	return extensions
}

// held returns the key of a lock that is held.
func (l layout) held(h *renewal.Holding) string { return l.prefix + h.Name }

// renewals returns the arguments of renewals, a batch for each part.
func (l layout) renewals(parts [][]*renewal.Holding, ttl time.Duration) []batch {
	var batches []batch
	for _, part := range parts {
		var b batch
		for _, h := range part {
			b.keys = append(b.keys, l.held(h))
			b.args = append(b.args, h.Owner, milliseconds(h.Lease(ttl)))
		}
		batches = append(batches, b)
	}
	return batches
}

// integers reads the answer to batch i, which has n numbers.
func integers(r request, results []rueidis.RedisResult, i, n int, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	numbers, err := results[i].AsIntSlice()
	if err == nil && len(numbers) != n {
		err = errReply
	}
	return numbers, failure(r, err)
}
