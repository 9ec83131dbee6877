package redis

import (
	"context"
	"time"

	"github.com/redis/rueidis"
)

// extend extends leases, all in one pipeline.
func (k *keyspace) extend(ctx context.Context, due []*holding) []extension {
	r := request{op: "renew"}
	parts := chunks(k.layout, due, func(h *holding) string { return h.lock })
	results, err := k.conn.evalAll(ctx, r, renewScript, renewals(parts, k.ttl))
	found := make(map[*holding]extension, len(due))
	for i, part := range parts {
		answers, err := integers(r, results, i, len(part), err)
		for j, h := range part {
			e := extension{err: err}
			if err == nil {
				e.ours = answers[j] == 1
			}
			found[h] = e
		}
	}
	extensions := make([]extension, len(due))
	for i, h := range due {
		extensions[i] = found[h]
	}
	return extensions
}

// renewals returns the arguments of renewals, a batch for each part.
func renewals(parts [][]*holding, ttl time.Duration) []batch {
	var batches []batch
	for _, part := range parts {
		var b batch
		for _, h := range part {
			b.keys = append(b.keys, h.lock)
			b.args = append(b.args, h.request.Owner, milliseconds(h.request.Lease(ttl)))
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
