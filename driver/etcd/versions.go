package etcd

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// Versions keeps the newest state of each entity: one transaction in one request
// compares stamps and writes. It implements driver.Versions.
//
// A state is one key. Its value begins with "0", or "1" if the state is terminal,
// the version in 19 digits, the tie and a NUL. So etcd compares stamps by comparing
// values, and sorts every terminal state above all others.
type Versions struct{ keyspace }

var _ driver.Versions = (*Versions)(nil)

// NewVersions keeps states under prefix, in the keys "interlock.version:" + name, which are in
// no lock's queue. Names are escaped like those of locks. It does not block, and the client must
// outlive the versions.
func NewVersions(client *clientv3.Client, prefix string) *Versions {
	return &Versions{keyspace{client: client, prefix: prefix}}
}

func (s *Versions) key(name string) string {
	return s.prefix + reserved + "version:" + escaper.Replace(name)
}

// First bytes of a state's value.
const (
	stillOpen = "0"
	terminal  = "1"
)

// stateText returns the value of a state. The byte after the stamp marks deletion.
func stateText(v driver.Versioned) string {
	state, rest := stillOpen, "+"
	if v.Terminal {
		state = terminal
	}
	if v.Deleted {
		rest = "-"
	}
	return state + stampText(v.Stamp) + rest + string(v.Data)
}

// stampText ends with a NUL, which no tie contains: no stamp's text begins with
// another's, and texts have the order of the stamps.
func stampText(s driver.Stamp) string { return driver.FormatPadded(s.Version) + s.Tie + "\x00" }

// readState parses the output of stateText; nil means no state.
func readState(kv *mvccpb.KeyValue) (v driver.Versioned, err error) {
	if kv == nil {
		return v, nil
	}
	head, rest, ok := bytes.Cut(kv.Value, []byte{0})
	const tie = 1 + driver.PaddedLength // where the tie begins
	if !ok || len(head) < tie || len(rest) < 1 || rest[0] != '+' && rest[0] != '-' {
		return v, fmt.Errorf("key %q is not a state with a version", kv.Key)
	}
	v.Stamp.Version, err = driver.ParsePadded(string(head[1:tie]))
	if state := string(head[:1]); err != nil || v.Stamp.Version < 1 || state != stillOpen && state != terminal {
		return driver.Versioned{}, fmt.Errorf("key %q is not a state with a version: it begins with %.40q", kv.Key, head)
	}
	v.Stamp.Tie, v.Terminal = string(head[tie:]), string(head[:1]) == terminal
	v.Deleted, v.Data = rest[0] == '-', rest[1:]
	return v, nil
}

// Apply implements driver.Versions with one request.
func (s *Versions) Apply(ctx context.Context, name string, v driver.Versioned) (driver.VersionOutcome, driver.Versioned, error) {
	return s.write(ctx, "apply state", name, v, v.Judge, func(key string, put, get clientv3.Op) ([]clientv3.Cmp, clientv3.Op) {
		value, same, otherwise := clientv3.Value(key), stillOpen+stampText(v.Stamp), get
		if v.Terminal && v.TerminalWins { // it also replaces a newer state, unless that is terminal
			otherwise = clientv3.OpTxn(
				[]clientv3.Cmp{clientv3.Compare(value, ">", after(same)), clientv3.Compare(value, "<", terminal)},
				[]clientv3.Op{put}, []clientv3.Op{get})
		}
		older := clientv3.OpTxn([]clientv3.Cmp{clientv3.Compare(value, "<", same)}, []clientv3.Op{put}, []clientv3.Op{otherwise})
		return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}, older
	})
}

// Replace implements driver.Versions with one request.
func (s *Versions) Replace(ctx context.Context, name string, old driver.Stamp, v driver.Versioned) (driver.VersionOutcome, driver.Versioned, error) {
	const op = "replace state"
	if v.Stamp.Compare(old) <= 0 {
		return 0, driver.Versioned{}, problem(op, name, interlock.Bug, fmt.Errorf("%v is not newer than %v", v.Stamp, old))
	}
	judge := func(stored driver.Versioned) driver.VersionOutcome { return v.JudgeReplace(old, stored) }
	return s.write(ctx, op, name, v, judge, func(key string, _, get clientv3.Op) ([]clientv3.Cmp, clientv3.Op) {
		if old == (driver.Stamp{}) {
			return []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)}, get
		}
		value, stamp := clientv3.Value(key), stillOpen+stampText(old)
		return []clientv3.Cmp{clientv3.Compare(value, ">", stamp), clientv3.Compare(value, "<", after(stamp))}, get
	})
}

// after returns a text above every value that begins with a stamp's text, and below
// those of all later stamps.
func after(text string) string { return strings.TrimSuffix(text, "\x00") + "\x01" }

// A condition returns when a state is put, and the operation otherwise, which ends
// in a put or a get.
type condition func(key string, put, get clientv3.Op) (when []clientv3.Cmp, otherwise clientv3.Op)

func (s *Versions) write(ctx context.Context, op, name string, v driver.Versioned,
	judge func(stored driver.Versioned) driver.VersionOutcome, to condition) (driver.VersionOutcome, driver.Versioned, error) {
	if err := checkName(op, name); err != nil {
		return 0, driver.Versioned{}, err
	}
	if err := v.Check(); err != nil {
		return 0, driver.Versioned{}, problem(op, name, interlock.Bug, err)
	}
	key := s.key(name)
	put, get := clientv3.OpPut(key, stateText(v)), clientv3.OpGet(key)
	when, otherwise := to(key, put, get)
	reply, err := s.do(ctx, op, name, when, []clientv3.Op{put}, []clientv3.Op{otherwise})
	if err != nil {
		return 0, driver.Versioned{}, err
	}
	done, kv := ending((*etcdserverpb.TxnResponse)(reply))
	if done {
		v.TerminalWins = false
		return driver.VersionApplied, v, nil
	}
	stored, err := readState(kv)
	if err != nil {
		return 0, stored, problem(op, name, interlock.Definite, err)
	}
	return judge(stored), stored, nil
}

// ending returns the last operation of nested transactions: put, or the result of
// the get, nil if there was none.
func ending(reply *etcdserverpb.TxnResponse) (put bool, got *mvccpb.KeyValue) {
	for {
		last := reply.Responses[0]
		switch inner := last.GetResponseTxn(); {
		case inner != nil:
			reply = inner
		case last.GetResponsePut() != nil:
			return true, nil
		default:
			if kvs := last.GetResponseRange().GetKvs(); len(kvs) > 0 {
				got = kvs[0]
			}
			return false, got
		}
	}
}

// Get implements driver.Versions.
func (s *Versions) Get(ctx context.Context, name string) (driver.Versioned, error) {
	const op = "get state"
	if err := checkName(op, name); err != nil {
		return driver.Versioned{}, err
	}
	reply, err := s.get(ctx, op, name, s.key(name))
	if err != nil || len(reply.Kvs) == 0 {
		return driver.Versioned{}, err
	}
	v, err := readState(reply.Kvs[0])
	if err != nil {
		err = problem(op, name, interlock.Definite, err)
	}
	return v, err
}
