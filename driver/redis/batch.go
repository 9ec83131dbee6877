package redis

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/boottime"
)

var _ driver.Batch = (*Driver)(nil)

var errNotDistinct = errors.New("names and owners are required, each once")

// AcquireAll acquires up to a hundred names in one request, or none; see
// driver.Batch.
func (d *Driver) AcquireAll(ctx context.Context, requests []driver.Request) ([]driver.Grant, error) {
	ws, err := d.all(requests)
	if err != nil {
		return nil, err
	}
	asked := request{op: "acquire all"}
	if err := d.evicts.permit(ctx, asked, whenever); err != nil {
		return nil, err
	}
	for _, w := range ws {
		d.held.StopEvents(w.request.Owner)
		asked.owners = append(asked.owners, w.request.Owner)
	}
	sent := boottime.Sent()
	m, err := d.conn.eval(ctx, asked, contendScript, d.contention(together, ws...))
	if err != nil {
		return nil, err
	}
	obstacle, replies, err := parseTogether(m, len(ws))
	switch {
	case err != nil:
		return nil, uncertain(asked, err)
	case obstacle == 0:
		return d.grantedAll(ws, sent, replies)
	}
	for _, w := range ws { // the script released what an earlier call had acquired
		d.held.Remove(w.request.Owner)
	}
	w := ws[obstacle-1]
	if replies[0].status == statusFailed {
		return nil, replies[0].failure(w.operation())
	}
	return nil, replies[0].heldError(w.request.Name)
}

// all returns the contenders of a batch. They wait for nothing, so they get no
// pushes.
func (d *Driver) all(requests []driver.Request) ([]*waiter, error) {
	asked := request{op: "acquire all"}
	switch {
	case !driver.Distinct(requests):
		return nil, problem(asked, interlock.Bug, errNotDistinct)
	case len(requests) > batchSize:
		return nil, problem(asked, interlock.Definite,
			fmt.Errorf("%w: at most %d", driver.ErrNotInOneStep, batchSize))
	}
	if d.layout.cluster && len(chunks(d.layout, requests, func(r driver.Request) string { return d.layout.prefix + r.Name })) > 1 {
		return nil, problem(asked, interlock.Definite,
			fmt.Errorf("%w: they are in several slots of the cluster; give them the same {tag}", driver.ErrNotInOneStep))
	}
	ws := make([]*waiter, len(requests))
	for i, r := range requests {
		lock, err := d.layout.key(r.Name, r.Owner)
		if err != nil {
			return nil, err
		}
		ws[i] = newWaiter(r, lock)
	}
	return ws, nil
}

func (d *Driver) grantedAll(ws []*waiter, sent boottime.Instant, replies []reply) ([]driver.Grant, error) {
	grants := make([]driver.Grant, len(ws))
	for i, w := range ws {
		var err error
		if grants[i], err = d.granted(w, w.grantedAt(sent, replies[i].counter, d.ttl)); err != nil {
			return nil, err
		}
	}
	return grants, nil
}

// parseTogether parses the answer for n contenders of AcquireAll: the number of the
// refused one, counted from 1, and its reply, or 0 and n grants.
func parseTogether(m rueidis.RedisMessage, n int) (obstacle int, replies []reply, err error) {
	items, err := m.ToArray()
	if err != nil || len(items) == 0 {
		return 0, nil, errors.Join(errReply, err)
	}
	at, err := items[0].AsInt64()
	if err != nil || at < 0 || at > int64(n) {
		return 0, nil, errors.Join(errReply, err)
	}
	want, granted := n, true
	if at > 0 {
		want, granted = 1, false
	}
	for _, item := range items[1:] {
		r, err := parseReply(item)
		if err != nil {
			return 0, nil, err
		}
		if granted != (r.status == statusGranted) {
			return 0, nil, errReply
		}
		replies = append(replies, r)
	}
	if len(replies) != want {
		return 0, nil, errReply
	}
	return int(at), replies, nil
}
