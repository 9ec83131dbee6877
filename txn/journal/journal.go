// Package journal is the durable, fenced log of transactions. It makes no decisions and drives
// nothing. It cannot stop a former owner from acting, but rejects what it writes.
//
// Promised: appended records are durable before Append returns; each has the position that its
// writer expected; after a new owner has entered a shard, no append under an older epoch
// succeeds.
//
//	j, err := journal.New(store, nil)                 // store: memory.NewJournal(), etcd, Table …
//	log, err := j.Begin(ctx, "order/42", "order", due, journal.Entry{Kind: "begin", Data: input})
//	if errors.Is(err, journal.ErrExists) {
//		log, entries, err := j.Open(ctx, "order/42")  // the first one's
//	}
//
//	// The owner of a shard, under a claim of claim/partition or of any fenced lock:
//	shard, err := j.Own(ctx, claim, n)
//	for log, err := range shard.Unfinished(ctx) { … }  // at take-over
//	logs, err := shard.Claim(ctx, now, now.Add(time.Minute), 100)
//	err = log.Append(ctx, due, journal.Entry{Kind: "sent", Step: "charge"})
//
// A transaction is in the shard that its first append names: by the hash of its id, or one of the
// process that begins it. Until it ends it has a due time, by which [Shard.Claim] finds it. Concurrent appends share requests (group commit). Large data is stored
// beside the records. Each record has a checksum over itself and all records before it, so an
// export shows changes made by hand.
//
// Times are the caller's: the journal reads no clock.
package journal

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/internal/failure"
)

// ErrExists rejects the begin of a transaction that exists, or existed and was not forgotten. It
// is Definite, unless an earlier answer was lost, which may have been that of its begin. The
// error is a [*driver.PositionError].
var ErrExists = errors.New("the transaction exists already")

// ErrConflict rejects an append to a transaction to which another writer has appended. It is
// Definite, unless the answer to an earlier append was lost. The error is a
// [*driver.PositionError]. Open the transaction and decide again.
var ErrConflict = errors.New("another process appended to the transaction")

// Options of a journal; nil and the zero value work.
type Options struct {
	// Shards is the number of shards; 0 means 64, at most 4096. The first user of a journal
	// stores it. Another number is rejected with a [*ShardsError]. [SetShards] changes it.
	Shards int
	// Inline is the maximum size of data in a record, in bytes. Larger data is stored beside
	// the records. 0 means 4096, at most driver.MaxRecord - 1.
	Inline int
	// Group is the maximum number of appends in one request to the store; 0 means 100.
	Group int
	// Requests is the maximum number of such requests at once; 0 means 2. Another one is sent
	// once as many appends wait as are under way, or after the duration of the last request.
	Requests int
	// Patience bounds how long an append is retried; 0 means 10 seconds.
	Patience time.Duration
}

func (o *Options) resolve() (Options, error) {
	r := *cmp.Or(o, &Options{})
	for _, d := range []struct {
		value     *int
		byDefault int
		name      string
		most      int
	}{{&r.Shards, 64, "Shards", maxShards}, {&r.Inline, 4096, "Inline", driver.MaxRecord - 1}, {&r.Group, 100, "Group", 1000}, {&r.Requests, 2, "Requests", 100}} {
		if *d.value == 0 {
			*d.value = d.byDefault
		}
		if *d.value < 1 || *d.value > d.most {
			return r, failure.Bug("open journal", "", "%s is %d; it must be 1 to %d", d.name, *d.value, d.most)
		}
	}
	if r.Patience = cmp.Or(r.Patience, 10*time.Second); r.Patience < 0 {
		return r, failure.Bug("open journal", "", "Patience is %v, below zero", r.Patience)
	}
	return r, nil
}

// A Journal has the transactions of a store. It is safe for concurrent use.
type Journal struct {
	store         driver.Journal
	options       Options
	random        func() float64  // in [0,1), for backoff
	requestCtx    context.Context // of requests, which outlast their callers
	end           context.CancelFunc
	work          sync.WaitGroup
	shardsChecked atomic.Bool // Options.Shards was found to be the store's number
	timers        sync.Pool   // of *time.Timer: the patience of appends

	mu          sync.Mutex
	waiting     []*queuedAppend
	busy        map[string]bool // transactions whose append is under way
	requests    int             // under way
	sentAppends int             // appends in them
	lastTook    time.Duration   // duration of the last one
	gathering   bool            // a timer is set that sends the queue
	closed      bool
}

// New returns a journal on a store, without a request. Close it.
func New(store driver.Journal, o *Options) (*Journal, error) {
	options, err := o.resolve()
	if err != nil {
		return nil, err
	}
	j := &Journal{store: store, options: options, random: rand.Float64, busy: map[string]bool{}}
	j.requestCtx, j.end = context.WithCancel(context.Background())
	return j, nil
}

// Close waits for appends under way, each bounded by Options.Patience, and rejects later ones
// with interlock.ErrClosed. The store stays open.
func (j *Journal) Close() error {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	j.work.Wait()
	j.end()
	return nil
}

// Shards returns the number of shards.
func (j *Journal) Shards() int { return j.options.Shards }

// ShardOf returns the shard in which [Journal.Begin] begins a transaction, from 0: FNV-1a of its id,
// modulo the number of shards. [Shard.Begin] may have begun it in another one.
func (j *Journal) ShardOf(transaction string) int { return shardOf(transaction, j.options.Shards) }

func shardOf(transaction string, shards int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(transaction))
	return int(h.Sum32() % uint32(shards))
}

// Begin creates a transaction of a type (up to 255 bytes) with its first entries. An id has 1 to
// driver.MaxTransaction bytes; if it exists the error is an [ErrExists]. Due is when the
// transaction must be driven. Any process may begin a transaction; the owner of the shard
// finds it by its due time. After an Uncertain error it may exist: begin it again.
func (j *Journal) Begin(ctx context.Context, id, kind string, due time.Time, entries ...Entry) (*Log, error) {
	return j.begin(ctx, j.ShardOf(id), id, kind, due, entries)
}

// Open reads a transaction: its head and all entries. The log is nil, without an error, if it
// does not exist. Appends by this log have no epoch: they are those of a process that does not
// own the shard.
func (j *Journal) Open(ctx context.Context, id string) (*Log, []Entry, error) {
	head, _, entries, err := j.read(ctx, id)
	if err != nil || head.Position == 0 {
		return nil, nil, err
	}
	return &Log{journal: j, head: head}, entries, nil
}

// read reads a transaction with its payloads; the zero Head if it does not exist, also if it is
// forgotten meanwhile.
func (j *Journal) read(ctx context.Context, id string) (driver.Head, []driver.Record, []Entry, error) {
	head, records, err := j.store.Read(ctx, id, 0)
	if err != nil || head.Position == 0 {
		return driver.Head{}, nil, nil, err
	}
	payload := func(sum []byte) ([]byte, error) { return j.store.Payload(ctx, id, sum) }
	entries := make([]Entry, len(records))
	for i, r := range records {
		if entries[i], err = unstow(id, r, payload); err == nil {
			continue
		}
		if now, _, again := j.store.Read(ctx, id, head.Position); again == nil && now.Position == 0 {
			err = nil
		}
		return driver.Head{}, nil, nil, err
	}
	return head, records, entries, nil
}

// unstow decodes a record.
func unstow(transaction string, r driver.Record, payload func(sum []byte) ([]byte, error)) (Entry, error) {
	e := Entry{Kind: r.Kind, Step: r.Step, Position: r.Position, Epoch: r.Epoch, Written: r.Written}
	switch {
	case len(r.Data) > 0 && r.Data[0] == inline:
		e.Data = r.Data[1:]
		return e, nil
	case len(r.Data) == 1+sha256.Size && r.Data[0] == beside:
		data, err := payload(r.Data[1:])
		if err == nil && sha256.Sum256(data) != [sha256.Size]byte(r.Data[1:]) {
			err = damaged(transaction, r.Position, "its payload differs from the stored one, or is missing")
		}
		e.Data = data
		return e, err
	}
	return e, damaged(transaction, r.Position, "its data does not have the format of this package")
}

// damaged reports a record that was not written by this package.
func damaged(transaction string, position int64, why string) error {
	return &interlock.Error{Op: "read journal", Name: transaction, Kind: interlock.Definite,
		Err: fmt.Errorf("record %d is damaged: %s", position, why)}
}

// A Shard is a part of the journal under its owner's claim. It is safe for concurrent use.
type Shard struct {
	journal *Journal
	number  int
	epoch   interlock.Token
	claim   interlock.Claim
}

// Own makes the holder of c the owner of a shard, with c's token as the epoch. From then on
// former owners can write nothing to its transactions. A claim with a token below the epoch is
// rejected with an interlock.StaleTokenError.
func (j *Journal) Own(ctx context.Context, c interlock.Claim, shard int) (*Shard, error) {
	if c == nil {
		return nil, failure.Bug("own shard", driver.ShardName(shard), "a claim is required")
	}
	s := &Shard{journal: j, number: shard, epoch: c.Token(), claim: c}
	if shard < 0 || shard >= j.options.Shards {
		return nil, failure.Bug("own shard", driver.ShardName(shard), "there are %d shards", j.options.Shards)
	}
	if err := s.valid(); err != nil {
		return nil, err
	}
	if err := j.CheckShards(ctx); err != nil {
		return nil, err
	}
	if err := j.store.Enter(ctx, shard, s.epoch); err != nil {
		return nil, err
	}
	return s, nil
}

// valid returns why no request may be sent for this shard. It accepts a nil Shard.
func (s *Shard) valid() error {
	switch {
	case s == nil || s.claim.Valid():
		return nil
	case s.claim.Context().Err() != nil:
		return &interlock.Error{Op: "append", Name: driver.ShardName(s.number), Kind: interlock.Definite, Err: context.Cause(s.claim.Context())}
	}
	return &interlock.Error{Op: "append", Name: driver.ShardName(s.number), Kind: interlock.Definite, Err: interlock.ErrExpired}
}

// Number returns the shard's number, from 0.
func (s *Shard) Number() int { return s.number }

// Epoch returns the token under which the shard is owned.
func (s *Shard) Epoch() interlock.Token { return s.epoch }

// Begin is [Journal.Begin] in this shard, whatever the hash of the id. The first append has no epoch,
// the later ones of the log have the owner's.
func (s *Shard) Begin(ctx context.Context, id, kind string, due time.Time, entries ...Entry) (*Log, error) {
	l, err := s.journal.begin(ctx, s.number, id, kind, due, entries)
	if err == nil {
		l.owner = s
	}
	return l, err
}

// Open is [Journal.Open] for the owner: appends have its epoch. If the transaction is in another
// shard, which is that of the log's Head, they have none.
func (s *Shard) Open(ctx context.Context, id string) (*Log, []Entry, error) {
	l, entries, err := s.journal.Open(ctx, id)
	if err == nil && l != nil && l.head.Shard == s.number {
		l.owner = s
	}
	return l, entries, err
}

// Claim returns up to limit transactions that are due at a time, the earliest first, and moves
// their due time to until: by then the caller has appended, or they are due again. It is one
// request.
func (s *Shard) Claim(ctx context.Context, by, until time.Time, limit int) ([]driver.Head, error) {
	if err := cmp.Or(checkLimit("claim", limit), s.valid()); err != nil {
		return nil, err
	}
	return s.journal.store.Claim(ctx, s.number, s.epoch, by, until, limit)
}

// Unfinished iterates over all unfinished transactions by due time. A new owner calls it once,
// because transactions claimed by a former owner would otherwise wait until they are due again.
func (s *Shard) Unfinished(ctx context.Context) iter.Seq2[driver.Head, error] {
	const page = 200
	return func(yield func(driver.Head, error) bool) {
		var behind driver.Head
		for {
			heads, err := s.journal.store.Due(ctx, s.number, behind, page)
			if err != nil {
				yield(driver.Head{}, err)
				return
			}
			for _, h := range heads {
				if !yield(h, nil) {
					return
				}
				behind = h
			}
			if len(heads) < page {
				return
			}
		}
	}
}

// DueShards returns those of the given shards in which a transaction is due at a time, in
// ascending order. The owner of many shards need not call [Shard.Claim] on the others. It misses
// none; it may name a shard without due transactions until Claim by that time has found none. It
// is one request, also if nothing is due: one statement for each hundred shards on Postgres and
// MariaDB, and one request for each 128 on etcd.
func (j *Journal) DueShards(ctx context.Context, shards []int, by time.Time) ([]int, error) {
	return j.store.DueShards(ctx, shards, by)
}

// Heads returns up to limit heads of all transactions, finished ones too, in the order of their
// ids, above the given one.
func (j *Journal) Heads(ctx context.Context, behind string, limit int) ([]driver.Head, error) {
	if err := checkLimit("list transactions", limit); err != nil {
		return nil, err
	}
	return j.store.Heads(ctx, behind, limit)
}

// checkLimit rejects a negative limit, for which each store has another answer.
func checkLimit(op string, limit int) error {
	if limit < 0 {
		return failure.Bug(op, "", "the limit is %d, below zero", limit)
	}
	return nil
}

// Forget removes up to limit transactions that ended before a time of the store's clock, and
// returns their number. It never removes unfinished ones. A forgotten id can begin again: retain
// transactions for longer than any client retries.
func (j *Journal) Forget(ctx context.Context, endedBefore time.Time, limit int) (int, error) {
	if err := checkLimit("forget", limit); err != nil {
		return 0, err
	}
	return j.store.Forget(ctx, endedBefore, limit)
}

// Unscheduled counts the unfinished transactions without a due time, which no owner finds. Alarm
// on any value but 0: it is a defect.
func (j *Journal) Unscheduled(ctx context.Context) (int, error) { return j.store.Unscheduled(ctx) }

// ErrNoTables means that the database has no tables of the name given to [FindStore].
var ErrNoTables = errors.New("the journal does not exist")

// DefaultName is the default name of a journal, and of its tables in a database.
const DefaultName = "interlock_journal"

// OpenStore opens the store of a journal on a backend, for [New]: keys below the prefix name in
// etcd, the journal of that name in memory, tables whose names begin with name in a database
// ([NewTable]). Empty means [DefaultName]: in etcd no prefix. It creates missing tables; a user without the
// right to do so can use tables that an administrator has created. A backend without journals is
// rejected: see [CheckURL]. The backend closes what it opens.
func OpenStore(ctx context.Context, b *backend.Backend, name string) (driver.Journal, error) {
	return store(ctx, b, name, true)
}

// FindStore is [OpenStore] for a journal that exists: it creates nothing. If a database has no
// tables of the name the error wraps [ErrNoTables].
func FindStore(ctx context.Context, b *backend.Backend, name string) (driver.Journal, error) {
	return store(ctx, b, name, false)
}

// CheckURL rejects, without connecting, a backend that cannot store a journal. Errors are
// *backend.URLError.
func CheckURL(u *backend.URL) error {
	if u.Has(backend.Journals | backend.Tables) {
		return nil
	}
	return &backend.URLError{Reason: u.Kind() + " cannot store a journal; use an etcd://, postgres:// or mysql:// URL"}
}

func store(ctx context.Context, b *backend.Backend, name string, create bool) (driver.Journal, error) {
	if err := CheckURL(b.URL()); err != nil {
		return nil, err
	}
	if name == DefaultName {
		name = ""
	}
	if j, ok, err := b.Journal(ctx, name); ok || err != nil {
		return j, err
	}
	db, _ := b.SQL()
	t, err := NewTable(db, name), error(nil)
	if create {
		err = driver.Create(ctx, db, t)
	}
	if err != nil || !create { // an administrator may have created them, for a user who may not
		if missing := t.exists(ctx); missing != nil {
			return nil, cmp.Or(err, missing)
		}
	}
	return t, nil
}

// exists returns an error that wraps ErrNoTables if the tables are missing.
func (t *Table[T]) exists(ctx context.Context) error {
	_, err := t.Heads(ctx, "", 1)
	if slices.Contains([]string{"42P01", "42S02"}, failure.SQLState(err)) { // PostgreSQL, MariaDB
		return &interlock.Error{Op: "open journal", Kind: interlock.Definite, Err: ErrNoTables}
	}
	return err
}
