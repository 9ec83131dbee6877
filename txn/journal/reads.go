package journal

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Group reads: transactions that are opened while others are being read are read together,
// by a store that can. At most Options.Requests requests are under way. No member of a group
// fails for another one's fault: if the request fails, each is read by itself.

// groupReader is a store that reads several transactions in one request. Those that do not
// exist are left out.
type groupReader interface {
	readGroup(ctx context.Context, ids []string) (map[string]*found, error)
}

// found is a transaction as it was read.
type found struct {
	head    driver.Head
	records []driver.Record
}

// reading waits for its group.
type reading struct {
	id    string
	found chan *found // has room for one; nil if the group failed
}

// read reads a transaction, in the company of others if as many requests are under way as may be.
func (j *Journal) read(ctx context.Context, id string) (driver.Head, []driver.Record, error) {
	store, can := j.store.(groupReader)
	if !can || driver.CheckTransaction("read journal", id) != nil {
		return j.store.Read(ctx, id, 0)
	}
	if r := j.joinReads(id); r != nil {
		select {
		case f := <-r.found:
			if f != nil {
				return f.head, f.records, nil
			}
			return j.store.Read(ctx, id, 0)
		case <-ctx.Done():
			return driver.Head{}, nil, &interlock.Error{Op: "read journal", Name: id, Kind: interlock.Definite, Err: context.Cause(ctx)}
		}
	}
	defer j.readOn(store)
	return j.store.Read(ctx, id, 0)
}

// joinReads waits for the next group; nil if one more request may be under way.
func (j *Journal) joinReads(id string) *reading {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.reads < j.options.Requests || j.closed {
		j.reads++
		return nil
	}
	r := &reading{id, make(chan *found, 1)}
	j.readings = append(j.readings, r)
	return r
}

// readOn ends a request, and begins the next one for those that wait.
func (j *Journal) readOn(store groupReader) {
	j.mu.Lock()
	defer j.mu.Unlock()
	group := j.nextReads()
	if len(group) == 0 {
		j.reads--
		return
	}
	if j.closed {
		j.reads--
		answer(append(group, j.readings...), nil)
		j.readings = nil
		return
	}
	j.work.Go(func() {
		defer j.readOn(store)
		ctx, cancel := context.WithTimeout(j.life, j.options.Patience)
		defer cancel()
		ids := make([]string, len(group))
		for i, r := range group {
			ids[i] = r.id
		}
		all, err := store.readGroup(ctx, ids)
		if err != nil {
			all = nil
		}
		answer(group, all)
	})
}

// nextReads takes those that wait, each transaction once, as many as travel together: what was
// read belongs to one caller. The caller holds the lock.
func (j *Journal) nextReads() []*reading {
	var group, rest []*reading
	taken := map[string]bool{}
	for _, r := range j.readings {
		if len(group) == j.options.Group || taken[r.id] {
			rest = append(rest, r)
			continue
		}
		taken[r.id] = true
		group = append(group, r)
	}
	j.readings = rest
	return group
}

// answer gives the members of a group what was found; nil is a group that failed.
func answer(group []*reading, all map[string]*found) {
	for _, r := range group {
		f := all[r.id]
		if f == nil && all != nil {
			f = &found{} // it does not exist
		}
		r.found <- f
	}
}
