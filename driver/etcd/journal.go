package etcd

import (
	"bytes"
	"encoding/json"
	"fmt"
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
// A transaction has these keys: its head, its constant data, each record and payload, an
// entry of the due index, and one of the index of ended transactions. An append that does
// not know the former due time leaves that entry in the index; Claim and Forget remove it.
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

func (j *Journal) headKey(id string) string { return j.prefix + "head/" + id }

func (j *Journal) aboutKey(id string) string { return j.prefix + "about/" + id }

func (j *Journal) recordKey(id string, position int64) string {
	return j.prefix + "record/" + id + "\x00" + driver.FormatPadded(position)
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

// located is a head and the revision that wrote it.
type located struct {
	driver.Head
	revision int64
}

// The value of a head begins with the position and whether the transaction has ended, so
// that an append checks them by comparing values. The data that never changes is in a
// key of its own: the shard, and then the start time of the transaction.
const (
	goesOn   = "0"
	hasEnded = "1"
)

type headNote struct {
	Sum     []byte `json:"sum,omitempty"`
	Due     int64  `json:"due_ms,omitempty"`
	Claimed bool   `json:"claimed,omitempty"`
	Ended   int64  `json:"ended_us,omitempty"`
}

func headText(h driver.Head) string {
	if h.Ended.IsZero() {
		return driver.FormatPadded(h.Position) + goesOn + jsonText(headNote{Sum: h.Sum, Claimed: h.Claimed, Due: h.Due.UnixMilli()})
	}
	return driver.FormatPadded(h.Position) + hasEnded + jsonText(headNote{Sum: h.Sum, Ended: h.Ended.UnixMicro()})
}

func aboutText(shard int, began time.Time, kind string) string {
	return driver.FormatPadded(int64(shard)) + driver.FormatPadded(began.UnixMicro()) + kind
}

// readPlaced parses the two keys of a transaction; no keys give the zero value.
func (j *Journal) readPlaced(id string, head, about []*mvccpb.KeyValue) (p located, err error) {
	if len(head) == 0 && len(about) == 0 {
		return p, nil
	}
	const width = driver.PaddedLength
	var s headNote
	if len(head) != 1 || len(about) != 1 || len(head[0].Value) <= width || len(about[0].Value) < 2*width ||
		json.Unmarshal(head[0].Value[width+1:], &s) != nil {
		return p, fmt.Errorf("the keys of transaction %q are not those of one", id)
	}
	position, err := driver.ParsePadded(string(head[0].Value[:width]))
	shard, err2 := driver.ParsePadded(string(about[0].Value[:width]))
	began, err3 := driver.ParsePadded(string(about[0].Value[width : 2*width]))
	if err != nil || err2 != nil || err3 != nil {
		return p, fmt.Errorf("the keys of transaction %q are not those of one", id)
	}
	p.revision = head[0].ModRevision
	p.Head = driver.Head{Transaction: id, Shard: int(shard), Type: string(about[0].Value[2*width:]),
		Began: time.UnixMicro(began).UTC(), Position: position, Sum: s.Sum, Claimed: s.Claimed}
	if s.Ended != 0 {
		p.Ended = time.UnixMicro(s.Ended).UTC()
	} else {
		p.Due = time.UnixMilli(s.Due).UTC()
	}
	return p, nil
}

// recordHeading precedes the data of a record.
type recordHeading struct {
	Kind    string          `json:"kind"`
	Step    string          `json:"step,omitempty"`
	Sum     []byte          `json:"sum,omitempty"`
	Epoch   interlock.Token `json:"epoch,omitempty"`
	Written int64           `json:"written_us"`
}

func recordText(r driver.Record, epoch interlock.Token, now time.Time) string {
	return jsonText(recordHeading{r.Kind, r.Step, r.Sum, epoch, now.UnixMicro()}) + "\n" + string(r.Data)
}

func readLogged(kv *mvccpb.KeyValue) (r driver.Record, err error) {
	head, data, ok := bytes.Cut(kv.Value, []byte("\n"))
	var h recordHeading
	r.Position, err = driver.ParsePadded(string(kv.Key[max(0, len(kv.Key)-driver.PaddedLength):]))
	if !ok || err != nil || json.Unmarshal(head, &h) != nil {
		return r, fmt.Errorf("key %q is not a record", kv.Key)
	}
	r.Kind, r.Step, r.Sum, r.Epoch, r.Data, r.Written = h.Kind, h.Step, h.Sum, h.Epoch, data, time.UnixMicro(h.Written).UTC()
	return r, nil
}

func jsonText(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic("etcd: journal: " + err.Error()) // strings, numbers and bytes always marshal
	}
	return string(text)
}
