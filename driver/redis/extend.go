package redis

import (
	"context"
	"slices"
	"time"

	"github.com/redis/rueidis"
)

// extendOn extends leases on one server, all in one pipeline.
func extendOn(c *conn, ttl time.Duration) extender {
	return func(ctx context.Context, due []*holding) []extension {
		r := request{op: "renew"}
		results, err := c.evalAll(ctx, r, renewScript, renewals(due, ttl))
		extensions := make([]extension, 0, len(due))
		for i, chunk := range slices.Collect(slices.Chunk(due, batchSize)) {
			answers, err := integers(r, results, i, len(chunk), err)
			for j := range chunk {
				e := extension{err: err}
				if err == nil {
					e.ours = answers[j] == 1
				}
				extensions = append(extensions, e)
			}
		}
		return extensions
	}
}

// renewals makes the arguments of renewing requests, a batch for each chunk.
func renewals(due []*holding, ttl time.Duration) []batch {
	var batches []batch
	for chunk := range slices.Chunk(due, batchSize) {
		b := batch{args: []string{milliseconds(ttl)}}
		for _, h := range chunk {
			b.keys = append(b.keys, h.keys...)
			b.args = append(b.args, h.request.Owner)
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
