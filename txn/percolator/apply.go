package percolator

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// A cell is a record as last read or written.
type cell struct {
	key      string
	record   record
	text     []byte // of the record
	revision int64
	fresh    bool // it was read or written: an attempt need not read it again
	sent     bool // a swap of it took place, or may still
}

// step is a step of the machine, on the record of a key.
type step func(r record, key string) (record, answer)

// load reads the records of cells from one store in one request.
func (p place) load(ctx context.Context, cells []*cell) error {
	keys := make([]string, len(cells))
	for i, c := range cells {
		keys[i] = dataPrefix + c.key
	}
	kvs, err := p.store.Get(ctx, keys...)
	if err != nil {
		return err
	}
	for i, c := range cells {
		if err := c.set(kvs[i]); err != nil {
			return err
		}
	}
	return nil
}

// refresh loads cells unless all are fresh.
func (p place) refresh(ctx context.Context, cells []*cell) error {
	if !slices.ContainsFunc(cells, func(c *cell) bool { return !c.fresh }) {
		return nil
	}
	return p.load(ctx, cells)
}

func (c *cell) set(kv driver.KeyValue) (err error) {
	c.record, c.text = record{}, nil
	if kv.Revision > 0 {
		c.text = kv.Value
		c.record, err = decode(c.text)
	} else {
		c.text = c.record.encode()
	}
	if err != nil {
		return failed("read record", c.key, interlock.Definite, err)
	}
	c.revision, c.fresh = kv.Revision, true
	return nil
}

// apply applies a step to up to [driver.MaxSwaps] records in one atomic operation of a
// store, and returns the answers. If all is set, it changes none unless all answers are
// done or committed. It repeats the idempotent steps until the store answers, and does not
// read fresh records before the first attempt.
func (p place) apply(ctx context.Context, cells []*cell, all bool, s step) (answers []answer, err error) {
	err = persist(ctx, func() error {
		for lost := 1; ; lost++ {
			ok, err := p.attempt(ctx, cells, all, s, &answers)
			if err != nil || !ok {
				for _, c := range cells {
					c.fresh = false
				}
			}
			if err != nil || ok {
				return err
			}
			if lost > 1 && !requests.Wait(ctx, lost) {
				return failed("change records", cells[0].key, interlock.Retryable, context.Cause(ctx))
			}
		}
	})
	return answers, err
}

// attempt returns false if a record changed after it was read.
func (p place) attempt(ctx context.Context, cells []*cell, all bool, s step, answers *[]answer) (bool, error) {
	if err := p.refresh(ctx, cells); err != nil {
		return false, err
	}
	*answers = make([]answer, len(cells))
	var swaps []driver.Swap
	var changed []*cell
	var after []record
	for i, c := range cells {
		r, a := s(c.record, c.key)
		(*answers)[i] = a
		if all && a.outcome != done && a.outcome != committed {
			return true, nil
		}
		text := r.encode()
		if bytes.Equal(text, c.text) {
			continue
		}
		if len(text) > driver.MaxKeyValue {
			return false, failed("change record", c.key, interlock.Definite, fmt.Errorf("%w: the record has %d bytes; call Collect", ErrTooLarge, len(text)))
		}
		swaps = append(swaps, driver.Swap{Key: dataPrefix + c.key, Revision: c.revision, Value: text})
		changed, after = append(changed, c), append(after, r)
	}
	if len(swaps) == 0 {
		return true, nil
	}
	revision, err := p.store.Swap(ctx, swaps...)
	for i, c := range changed {
		c.sent = c.sent || err != nil || revision > 0
		if revision > 0 {
			c.record, c.text, c.revision = after[i], swaps[i].Value, revision
		}
	}
	return revision > 0, err
}

// one applies a step to one key.
func (p place) one(ctx context.Context, key string, s step) (answer, error) {
	answers, err := p.apply(ctx, []*cell{{key: key}}, false, s)
	if err != nil {
		return answer{}, err
	}
	return answers[0], nil
}
