package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Journal keeps records of transactions in memory. It is the executable
// specification of driver.Journal: every method is one step under a mutex, by this
// process's clock. Use [NewJournal].
type Journal struct {
	mu           sync.Mutex
	epochs       map[int]interlock.Token
	transactions map[string]*transaction
	payloads     map[string]map[string]payload // by transaction and sum
	shards       int

	unfinished map[int][]*transaction // by shard, in the order of Due
	ended      []*transaction         // in the order of the end
	kept       []keeping              // in the order of time, including repeated ones
}

type transaction struct {
	head    driver.Head
	records []driver.Record
}

type payload struct {
	data []byte
	kept time.Time
}

var _ driver.Journal = (*Journal)(nil)

// NewJournal returns an empty journal.
func NewJournal() *Journal {
	return &Journal{epochs: map[int]interlock.Token{}, transactions: map[string]*transaction{},
		payloads: map[string]map[string]payload{}, unfinished: map[int][]*transaction{}}
}

// Enter raises the epoch of a shard; see driver.Journal.
func (j *Journal) Enter(ctx context.Context, shard int, epoch interlock.Token) error {
	const op = "enter shard"
	name := driver.ShardName(shard)
	if err := asking(ctx, op, name); err != nil {
		return err
	}
	if shard < 0 || !epoch.Valid() {
		return noToken(op, name, epoch)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if seen := j.epochs[shard]; seen > epoch {
		return fail.New(op, name, interlock.Definite, &interlock.StaleTokenError{Resource: name, Seen: seen, Got: epoch})
	}
	if err := plausible(op, name, epoch, time.Now()); err != nil {
		return err
	}
	j.epochs[shard] = epoch
	return nil
}

// Append applies each append atomically; see driver.Journal.
func (j *Journal) Append(ctx context.Context, appends []driver.Append) []error {
	errs := make([]error, len(appends))
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, a := range appends {
		if errs[i] = driver.CheckAppend(appends, i); errs[i] == nil {
			errs[i] = asking(ctx, "append", a.Transaction)
		}
		if errs[i] == nil {
			errs[i] = j.append(&appends[i])
		}
	}
	return errs
}

func (j *Journal) append(a *driver.Append) error {
	if a.Epoch != 0 {
		if err := j.owned("append", a.Shard, a.Epoch); err != nil {
			return err
		}
	}
	t := j.transactions[a.Transaction]
	if t == nil {
		t = &transaction{head: driver.Head{Transaction: a.Transaction, Shard: a.Shard, Type: a.Type}}
	}
	if t.head.Position != a.After || !t.head.Ended.IsZero() {
		return &driver.PositionError{Transaction: a.Transaction, After: a.After, Found: cloneHead(t.head)}
	}
	if t.head.Shard != a.Shard {
		return fail.New("append", a.Transaction, interlock.Bug, fmt.Errorf("it is in shard %d, not in %d", t.head.Shard, a.Shard))
	}
	if a.After == 0 && a.Shards != 0 && a.Shards != j.shards {
		return &driver.ShardsError{Stored: j.shards, Opened: a.Shards}
	}
	now := time.Now()
	if a.After == 0 {
		t.head.Began = now
	} else {
		j.unschedule(t)
	}
	for _, r := range a.Records {
		t.head.Position++
		r.Position, r.Epoch, r.Written = t.head.Position, a.Epoch, now
		r.Data, r.Sum = slices.Clone(r.Data), slices.Clone(r.Sum)
		t.records = append(t.records, r)
		t.head.Sum = r.Sum
	}
	t.head.Due, t.head.Claimed = a.Due.Truncate(time.Millisecond), false
	if a.Due.IsZero() {
		t.head.Ended, a.Ended = now, now
		j.ended = append(j.ended, t)
	} else {
		j.schedule(t)
	}
	j.transactions[a.Transaction] = t
	return nil
}

// owned rejects an epoch that is not the shard's.
func (j *Journal) owned(op string, shard int, epoch interlock.Token) error {
	name, seen := driver.ShardName(shard), j.epochs[shard]
	switch {
	case seen > epoch:
		return fail.New(op, name, interlock.Definite, &interlock.StaleTokenError{Resource: name, Seen: seen, Got: epoch})
	case seen < epoch:
		return fail.New(op, name, interlock.Bug, fmt.Errorf("no owner has entered with epoch %d", epoch))
	}
	return nil
}

// Claim moves due times; see driver.Journal.
func (j *Journal) Claim(ctx context.Context, shard int, epoch interlock.Token, by, until time.Time, limit int) ([]driver.Head, error) {
	if err := asking(ctx, "claim", driver.ShardName(shard)); err != nil {
		return nil, err
	}
	if until.IsZero() {
		return nil, fail.New("claim", driver.ShardName(shard), interlock.Bug, errors.New("the new due time is missing"))
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if err := j.owned("claim", shard, epoch); err != nil {
		return nil, err
	}
	var claimed []driver.Head
	due := j.unfinished[shard]
	n, _ := slices.BinarySearchFunc(due, by, func(t *transaction, by time.Time) int {
		if t.head.Due.After(by) {
			return 1
		}
		return -1
	})
	for _, t := range slices.Clone(due[:max(0, min(n, limit))]) {
		j.unschedule(t)
		t.head.Due, t.head.Claimed = until.Truncate(time.Millisecond), true
		j.schedule(t)
		claimed = append(claimed, cloneHead(t.head))
	}
	return claimed, nil
}

// PutPayload stores a payload; see driver.Journal.
func (j *Journal) PutPayload(ctx context.Context, name string, sum, data []byte) error {
	if err := driver.CheckPayload(name, sum, data); err != nil {
		return err
	}
	if err := asking(ctx, "keep payload", name); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.keep(keeping{name, string(sum), time.Now()}, slices.Clone(data))
	return nil
}

// Read returns a transaction's head and records; see driver.Journal.
func (j *Journal) Read(ctx context.Context, name string, after int64) (driver.Head, []driver.Record, error) {
	if err := driver.CheckTransaction("read journal", name); err != nil {
		return driver.Head{}, nil, err
	}
	if err := asking(ctx, "read journal", name); err != nil {
		return driver.Head{}, nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	t := j.transactions[name]
	if t == nil {
		return driver.Head{}, nil, nil
	}
	var records []driver.Record
	for _, r := range t.records[min(max(0, after), t.head.Position):] {
		r.Data, r.Sum = slices.Clone(r.Data), slices.Clone(r.Sum)
		records = append(records, r)
	}
	return cloneHead(t.head), records, nil
}

// Payload returns a stored payload; see driver.Journal.
func (j *Journal) Payload(ctx context.Context, name string, sum []byte) ([]byte, error) {
	if err := driver.CheckTransaction("read payload", name); err != nil {
		return nil, err
	}
	if err := asking(ctx, "read payload", name); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.payloads[name][string(sum)].data), nil
}

// Due lists unfinished transactions; see driver.Journal.
func (j *Journal) Due(ctx context.Context, shard int, behind driver.Head, limit int) ([]driver.Head, error) {
	if err := asking(ctx, "list due", driver.ShardName(shard)); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	due := j.unfinished[shard]
	if behind.Transaction != "" {
		at, found := slices.BinarySearchFunc(due, behind, func(t *transaction, h driver.Head) int { return byDue(t.head, h) })
		if found {
			at++
		}
		due = due[at:]
	}
	var heads []driver.Head
	for _, t := range due[:min(limit, len(due))] {
		heads = append(heads, cloneHead(t.head))
	}
	return heads, nil
}

// DueShards lists shards with due transactions; see driver.Journal.
func (j *Journal) DueShards(ctx context.Context, shards []int, by time.Time) ([]int, error) {
	if err := asking(ctx, "list due shards", "due index"); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	all := slices.Compact(slices.Sorted(slices.Values(shards)))
	return slices.DeleteFunc(all, func(shard int) bool {
		due := j.unfinished[shard]
		return len(due) == 0 || due[0].head.Due.After(by)
	}), nil
}

// Heads lists transactions by their ids; see driver.Journal.
func (j *Journal) Heads(ctx context.Context, behind string, limit int) ([]driver.Head, error) {
	if err := driver.CheckAfter(behind); err != nil {
		return nil, err
	}
	if err := asking(ctx, "list transactions", "all"); err != nil {
		return nil, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	var all []driver.Head
	for id, t := range j.transactions {
		if id > behind {
			all = append(all, cloneHead(t.head))
		}
	}
	slices.SortFunc(all, func(a, b driver.Head) int { return cmp.Compare(a.Transaction, b.Transaction) })
	return all[:min(limit, len(all))], nil
}

// Forget removes transactions that ended long ago; see driver.Journal.
func (j *Journal) Forget(ctx context.Context, before time.Time, limit int) (int, error) {
	if err := asking(ctx, "forget", "ended transactions"); err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for n < limit && n < len(j.ended) && j.ended[n].head.Ended.Before(before) {
		j.remove(j.ended[n].head.Transaction, before)
		n++
	}
	j.ended = j.ended[n:]
	j.sweep(before)
	return n, nil
}

// Shards stores or returns the number of shards; see driver.Journal.
func (j *Journal) Shards(ctx context.Context, from, to int) (int, error) {
	if err := asking(ctx, "read shards", "all"); err != nil {
		return 0, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if to != 0 && j.shards == from {
		j.shards = to
	}
	return j.shards, nil
}

// Reassign moves an unfinished transaction to another shard; see driver.Journal.
func (j *Journal) Reassign(ctx context.Context, h driver.Head, shard int) error {
	if err := asking(ctx, "reassign", h.Transaction); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if t := j.transactions[h.Transaction]; t != nil && t.head.Ended.IsZero() && t.head.Position == h.Position && t.head.Shard == h.Shard {
		j.unschedule(t)
		t.head.Shard = shard
		j.schedule(t)
	}
	return nil
}

// Unscheduled returns 0: the heads themselves are the due index of this journal.
func (j *Journal) Unscheduled(ctx context.Context) (int, error) {
	return 0, asking(ctx, "count unscheduled", "all")
}

func byDue(a, b driver.Head) int {
	return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.Transaction, b.Transaction))
}

func cloneHead(h driver.Head) driver.Head {
	h.Sum = slices.Clone(h.Sum)
	return h
}

// The indexes of a journal. With them, finding due or forgettable transactions takes time
// only for these. Callers hold the mutex.

// schedule adds an unfinished transaction to the index of its shard.
func (j *Journal) schedule(t *transaction) {
	due := j.unfinished[t.head.Shard]
	at, _ := slices.BinarySearchFunc(due, t.head, isDue)
	j.unfinished[t.head.Shard] = slices.Insert(due, at, t)
}

// unschedule removes it before its head changes.
func (j *Journal) unschedule(t *transaction) {
	due := j.unfinished[t.head.Shard]
	if at, found := slices.BinarySearchFunc(due, t.head, isDue); found {
		j.unfinished[t.head.Shard] = slices.Delete(due, at, at+1)
	}
}

func isDue(t *transaction, h driver.Head) int { return byDue(t.head, h) }

// keeping is a payload and a time at which it was stored.
type keeping struct {
	transaction, sum string
	at               time.Time
}

func (j *Journal) keep(k keeping, data []byte) {
	if j.payloads[k.transaction] == nil {
		j.payloads[k.transaction] = map[string]payload{}
	}
	j.payloads[k.transaction][k.sum] = payload{data, k.at}
	j.kept = append(j.kept, k)
}

// remove removes an ended transaction, with its payloads from before that time.
func (j *Journal) remove(id string, before time.Time) {
	delete(j.transactions, id)
	for sum, p := range j.payloads[id] {
		if p.kept.Before(before) {
			j.drop(id, sum)
		} else {
			j.kept = append(j.kept, keeping{id, sum, p.kept})
		}
	}
}

// sweep removes payloads that were stored before that time and whose transaction does
// not exist. Those of existing transactions are removed by remove.
func (j *Journal) sweep(before time.Time) {
	n := 0
	for ; n < len(j.kept) && j.kept[n].at.Before(before); n++ {
		k := j.kept[n]
		p, found := j.payloads[k.transaction][k.sum]
		if found && p.kept.Equal(k.at) && j.transactions[k.transaction] == nil {
			j.drop(k.transaction, k.sum)
		}
	}
	j.kept = j.kept[n:]
}

func (j *Journal) drop(id, sum string) {
	if delete(j.payloads[id], sum); len(j.payloads[id]) == 0 {
		delete(j.payloads, id)
	}
}
