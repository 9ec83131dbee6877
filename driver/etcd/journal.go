package etcd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Journal keeps records of transactions: an append is one transaction of etcd, and
// concurrent appends share one request, each with its own conditions. It implements
// driver.Journal.
//
// A transaction has these keys: its constant data, each append and each payload, an entry
// of the due index, and one of the index of ended transactions. The last append is the state
// of the transaction, which Claim and Reassign change in place. An append that does not know
// the former due time leaves that entry in the index; Claim and Forget remove it.
//
// etcd has no clock in its transactions: the caller's clock decides what is too far in the
// future, and when something was written, kept or ended. A request holds 1.5 MiB and 128
// operations by etcd's defaults, on which Journal relies.
type Journal struct {
	keyspace
	now func() time.Time

	mu sync.Mutex
	// where Forget continues in the due index and in the payloads
	swept, sweptPayloads string
}

var _ driver.Journal = (*Journal)(nil)

// NewJournal keeps a journal in the keys under prefix + "interlock.journal:", which
// are in the line of no lock. It does not block, and the client must outlive the
// journal.
func NewJournal(client *clientv3.Client, prefix string) *Journal {
	return &Journal{keyspace: keyspace{client: client, prefix: prefix + reserved + "journal:"}, now: time.Now}
}

// The keys. Ids are last, or before a NUL, which none contains, and unescaped, so
// that keys have the order of ids.

func (j *Journal) shardKey(shard int) string { return fmt.Sprintf("%sshard/%09d", j.prefix, shard) }

func (j *Journal) aboutKey(id string) string { return j.prefix + "about/" + id }

// logKey returns the key of the append whose last record has a position. Later appends have
// lower keys, so that one read with a limit returns the last. No append has position 0.
func (j *Journal) logKey(id string, position int64) string {
	return j.logOf(id) + driver.FormatPadded(math.MaxInt64-position)
}

// logOf returns the prefix of all appends of a transaction.
func (j *Journal) logOf(id string) string { return j.prefix + "log/" + id + "\x00" }

// getLast reads the last append of a transaction.
func (j *Journal) getLast(id string) clientv3.Op {
	return clientv3.OpGet(j.logOf(id), clientv3.WithRange(j.logKey(id, 0)), clientv3.WithLimit(1))
}

// sinceLast applies a comparison to the last append, at a position, and to all that follow
// it. It fails if there are others; if there is none, only a revision of 0 is equal.
func (j *Journal) sinceLast(id string, position int64, compare func(key string) clientv3.Cmp) clientv3.Cmp {
	return compare(j.logOf(id)).WithRange(j.logKey(id, position) + "\x00")
}

// unchanged holds if the state of a transaction is the one that was read, which may be that
// it does not exist.
func (j *Journal) unchanged(id string, p located) clientv3.Cmp {
	return j.sinceLast(id, p.Position, func(key string) clientv3.Cmp {
		return clientv3.Compare(clientv3.ModRevision(key), "=", p.revision)
	})
}

func (j *Journal) payloadKey(id string, sum []byte) string {
	return fmt.Sprintf("%spayload/%s\x00%x", j.prefix, id, sum)
}

func (j *Journal) dueKey(h driver.Head) string { return j.dueAt(h.Shard, h.Due) + h.Transaction }

// dueAt returns the prefix of all entries of a shard that are due at a time.
func (j *Journal) dueAt(shard int, at time.Time) string {
	return fmt.Sprintf("%sdue/%09d/%s/", j.prefix, shard, driver.FormatPadded(at.UnixMilli()+dueZero))
}

// endedKey returns the key of an ended transaction in the index of those.
func (j *Journal) endedKey(h driver.Head) string { return j.endedAt(h.Ended) + h.Transaction }

func (j *Journal) endedAt(at time.Time) string {
	return j.prefix + "ended/" + driver.FormatPadded(at.UnixMicro()) + "/"
}

// dueZero sorts times before 1970 before later ones.
const dueZero = 1 << 60

// located is a head, and the revision and the value of the append that it is from.
type located struct {
	driver.Head
	revision int64
	size     int // of that value
	log      logged
}

// The value of an append begins with whether the transaction has ended, its shard, and the
// position of its last record, so that the next append checks them by comparing values. Then
// follow a line of JSON, and the data of the records.
const (
	goesOn   = "0"
	hasEnded = "1"
)

// logged is an append as it is stored.
type logged struct {
	Due     int64           `json:"due_ms,omitempty"`
	Claimed bool            `json:"claimed,omitempty"`
	Ended   int64           `json:"ended_us,omitempty"`
	Epoch   interlock.Token `json:"epoch,omitempty"`
	Written int64           `json:"written_us"`
	Records []recordNote    `json:"records"`
	data    []byte          // of all records
}

type recordNote struct {
	Kind string `json:"kind"`
	Step string `json:"step,omitempty"`
	Sum  []byte `json:"sum,omitempty"`
	Size int    `json:"size"` // of the data
}

// logState returns the begin of the value of the last append.
func logState(ended string, shard int, position int64) string {
	return ended + driver.FormatPadded(int64(shard)) + driver.FormatPadded(position)
}

// logText returns the value of the last append, which takes the state from the head.
func logText(h driver.Head, l logged) string {
	state := logState(goesOn, h.Shard, h.Position)
	if l.Claimed = h.Claimed; h.Ended.IsZero() {
		l.Due = h.Due.UnixMilli()
	} else {
		state, l.Ended = logState(hasEnded, h.Shard, h.Position), h.Ended.UnixMicro()
	}
	return state + jsonText(l) + "\n" + string(l.data)
}

// logOfRecords returns an append to be stored.
func logOfRecords(records []driver.Record, epoch interlock.Token, now time.Time) logged {
	l := logged{Epoch: epoch, Written: now.UnixMicro(), Records: make([]recordNote, len(records))}
	for i, r := range records {
		l.Records[i] = recordNote{r.Kind, r.Step, r.Sum, len(r.Data)}
		l.data = append(l.data, r.Data...)
	}
	return l
}

// readLog parses an append. The head has no transaction, type and begin.
func readLog(kv *mvccpb.KeyValue) (p located, err error) {
	const width = driver.PaddedLength
	if len(kv.Value) <= 1+2*width {
		return p, errNotAppend(kv)
	}
	shard, err := driver.ParsePadded(string(kv.Value[1 : 1+width]))
	position, err2 := driver.ParsePadded(string(kv.Value[1+width : 1+2*width]))
	note, data, ok := bytes.Cut(kv.Value[1+2*width:], []byte("\n"))
	if err != nil || err2 != nil || !ok || json.Unmarshal(note, &p.log) != nil || len(p.log.Records) == 0 {
		return p, errNotAppend(kv)
	}
	p.log.data, p.revision, p.size = data, kv.ModRevision, len(kv.Value)
	for _, r := range p.log.Records {
		if r.Size < 0 || r.Size > len(data) {
			return p, errNotAppend(kv)
		}
		data = data[r.Size:]
	}
	p.Head = driver.Head{Shard: int(shard), Position: position, Sum: p.log.Records[len(p.log.Records)-1].Sum, Claimed: p.log.Claimed}
	if p.log.Ended != 0 {
		p.Ended = time.UnixMicro(p.log.Ended).UTC()
	} else {
		p.Due = time.UnixMilli(p.log.Due).UTC()
	}
	return p, nil
}

func errNotAppend(kv *mvccpb.KeyValue) error { return fmt.Errorf("key %q is not an append", kv.Key) }

// records returns the records of an append that follow a position.
func (p located) records(after int64) (all []driver.Record) {
	position, data := p.Position-int64(len(p.log.Records)), p.log.data
	for _, r := range p.log.Records {
		if position++; position > after {
			all = append(all, driver.Record{Position: position, Kind: r.Kind, Step: r.Step, Data: data[:r.Size:r.Size], Sum: r.Sum,
				Epoch: p.log.Epoch, Written: time.UnixMicro(p.log.Written).UTC()})
		}
		data = data[r.Size:]
	}
	return all
}

// readPlaced parses the last append of a transaction and its constant data; no keys give the
// zero value.
func readPlaced(id string, last, about []*mvccpb.KeyValue) (p located, err error) {
	if len(last) == 0 && len(about) == 0 {
		return p, nil
	}
	if len(last) != 1 || len(about) != 1 || len(about[0].Value) < driver.PaddedLength {
		return p, fmt.Errorf("the keys of transaction %q are not those of one", id)
	}
	began, err := driver.ParsePadded(string(about[0].Value[:driver.PaddedLength]))
	if err != nil {
		return p, fmt.Errorf("the keys of transaction %q are not those of one", id)
	}
	if p, err = readLog(last[0]); err != nil {
		return p, err
	}
	p.Transaction, p.Began, p.Type = id, time.UnixMicro(began).UTC(), string(about[0].Value[driver.PaddedLength:])
	return p, nil
}

func jsonText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("etcd: journal: " + err.Error()) // strings, numbers and bytes always marshal
	}
	return string(text)
}
