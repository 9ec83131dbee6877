package etcd

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// layout turns names into keys. See docs/adr/004-etcd-layout.md.
type layout struct {
	prefix string
	raw    bool
}

var (
	escaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescaper = strings.NewReplacer("%25", "%", "%2F", "/")
)

func (l layout) escape(s string) string {
	if l.raw {
		return s
	}
	return escaper.Replace(s)
}

// base returns the key of the counter's base. It is in no lock's line.
func (l layout) base() string { return l.prefix + "interlock.base" }

// line returns the prefix of the keys of a lock's contenders.
func (l layout) line(name string) string { return l.prefix + l.escape(name) + "/" }

// slot returns the key of a session's contender number n in a line.
func slot(line string, lease clientv3.LeaseID, n int) string {
	return line + strconv.FormatInt(int64(lease), 16) + "-" + strconv.Itoa(n)
}

// lines calls each for every line that contains key: all its parents, because other
// clients count every key below a lock's prefix.
func (l layout) lines(key string, each func(line string)) {
	for i := len(l.prefix); i < len(key); i++ {
		if key[i] == '/' {
			each(key[:i+1])
		}
	}
}

// name returns the lock's name from a contender's key. ok is false for keys outside
// our layout.
func (l layout) name(key string) (name string, ok bool) {
	return l.lineName(key[:strings.LastIndexByte(key, '/')+1])
}

// lineName returns the lock's name from its line.
func (l layout) lineName(line string) (name string, ok bool) {
	rest, ok := strings.CutPrefix(line, l.prefix)
	escaped := strings.TrimSuffix(rest, "/")
	if !ok || escaped == "" || escaped == rest {
		return "", false
	}
	if l.raw {
		return escaped, true
	}
	name = unescaper.Replace(escaped)
	return name, l.escape(name) == escaped
}

// record is the value of our contender keys. Other clients write no value.
type record struct {
	Owner string    `json:"owner"`
	Base  int64     `json:"base"`  // of the counter, when the contender came
	Asked time.Time `json:"asked"` // by the contender's own clock
}

// encode returns the output of json.Marshal, which costs several times as much.
func (r record) encode() []byte {
	owner := []byte(`"` + r.Owner + `"`)
	if !isPlain(r.Owner) {
		owner, _ = json.Marshal(r.Owner) // a string always marshals
	}
	b := make([]byte, 0, len(owner)+80)
	b = append(append(b, `{"owner":`...), owner...)
	b = strconv.AppendInt(append(b, `,"base":`...), r.Base, 10)
	b = r.Asked.AppendFormat(append(b, `,"asked":"`...), time.RFC3339Nano)
	return append(b, `"}`...)
}

// isPlain reports whether JSON needs no escapes for text.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			return false
		}
	}
	return true
}

// readRecord returns ok = false for a contender of another client.
func readRecord(value []byte) (r record, ok bool) {
	err := json.Unmarshal(value, &r)
	return r, err == nil && r.Owner != ""
}

// placeOf parses a contender for the line.
func placeOf(kv *mvccpb.KeyValue) place {
	r, ok := readRecord(kv.Value)
	if !ok {
		r = record{Owner: foreignOwner(kv), Base: unknownBase}
	}
	return place{key: string(kv.Key), created: kv.CreateRevision, base: r.Base, owner: r.Owner, lease: clientv3.LeaseID(kv.Lease)}
}

// foreignOwner names another client's contender by its lease, the only information
// in its key.
func foreignOwner(kv *mvccpb.KeyValue) string {
	if kv.Lease == 0 {
		return "foreign key without a lease"
	}
	return "foreign lease " + strconv.FormatInt(kv.Lease, 16)
}
