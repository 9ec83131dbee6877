package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var (
	kvSwapScript = newScript(lua("kv_swap"))
	kvScanScript = newReader(lua("kv_scan"))
)

// KeyValues is a key-value store with compare-and-swap; each call is one request. It implements
// driver.KeyValues. All keys are in one slot of a cluster: in the hash
// interlock:{TAG}:kv:PREFIX, with an index and the last revision beside it. A crash without
// appendfsync always, or a failover to a replica, may lose the last swaps although they were
// answered; later revisions are above the server's clock.
type KeyValues struct {
	conn *conn
	keys []string // values, index, revision
}

var _ driver.KeyValues = (*KeyValues)(nil)

// NewKeyValues returns the store of a prefix, which may be empty; it sends nothing. The
// caller closes the client.
func NewKeyValues(client rueidis.Client, prefix string) *KeyValues {
	own := ownKeys(prefix)
	return &KeyValues{conn: newGuardConn(client, keepsMarks), keys: []string{own + "kv:" + prefix, own + "kv-index:" + prefix, own + "kv-revision:" + prefix}}
}

// Get reads keys by one HMGET; see driver.KeyValues.
func (k *KeyValues) Get(ctx context.Context, keys ...string) ([]driver.KeyValue, error) {
	asked := request{op: "get keys", harmless: true}
	for _, key := range keys {
		if err := driver.CheckName(asked.op, "a key", key, driver.MaxName); err != nil {
			return nil, err
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	asked.name = keys[0]
	stored, err := do(ctx, k.conn, asked, func(ctx context.Context) ([]rueidis.RedisMessage, error) {
		return k.conn.client.Do(ctx, k.conn.client.B().Hmget().Key(k.keys[0]).Field(keys...).Build()).ToArray()
	})
	if err != nil {
		return nil, err
	}
	got := make([]driver.KeyValue, len(keys))
	for i, m := range stored {
		got[i].Key = keys[i]
		if !m.IsNil() {
			if got[i], err = readKeyValue(asked, keys[i], m); err != nil {
				return nil, err
			}
		}
	}
	return got, nil
}

// readKeyValue parses a stored value.
func readKeyValue(asked request, key string, m rueidis.RedisMessage) (driver.KeyValue, error) {
	text, err := m.ToString()
	number, value, _ := strings.Cut(text, " ")
	revision, wrong := driver.ParseInt(number)
	if err != nil || wrong != nil || revision <= 0 {
		return driver.KeyValue{}, problem(asked, interlock.Definite, fmt.Errorf("key %q is damaged: it begins with %.40q", key, text))
	}
	return driver.KeyValue{Key: key, Value: []byte(value), Revision: revision}, nil
}

// Swap applies all swaps or none, by one script; see driver.KeyValues.
func (k *KeyValues) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	asked := request{op: "swap keys"}
	if err := driver.CheckSwaps(swaps); err != nil {
		return 0, problem(asked, interlock.Bug, err)
	}
	asked.name = swaps[0].Key
	args := make([]string, 0, 4*len(swaps))
	for _, s := range swaps {
		args = append(args, s.Key, strconv.FormatInt(s.Revision, 10), flag(s.Delete), string(s.Value))
	}
	m, err := k.conn.eval(ctx, asked, kvSwapScript, batch{keys: k.keys, args: args})
	if err != nil {
		return 0, err
	}
	text, err := m.ToString()
	revision, wrong := driver.ParseInt(text)
	if err != nil || wrong != nil {
		return 0, uncertain(asked, errReply)
	}
	return revision, nil
}

// Scan reads a range of keys by one script; see driver.KeyValues.
func (k *KeyValues) Scan(ctx context.Context, from, to string, limit int) ([]driver.KeyValue, error) {
	asked := request{op: "scan keys", name: from, gives: true, harmless: true} // a full server answers too
	first, last := "-", "+"
	if from != "" {
		first = "[" + from
	}
	if to != "" {
		last = "(" + to
	}
	m, err := k.conn.eval(ctx, asked, kvScanScript, batch{keys: k.keys[:2], args: []string{first, last, strconv.Itoa(max(limit, 0))}})
	if err != nil {
		return nil, err
	}
	pairs, err := m.ToArray()
	if err != nil || len(pairs)%2 != 0 {
		return nil, problem(asked, interlock.Retryable, errReply)
	}
	var got []driver.KeyValue
	for i := 0; i < len(pairs); i += 2 {
		key, _ := pairs[i].ToString()
		kv, err := readKeyValue(asked, key, pairs[i+1])
		if err != nil {
			return nil, err
		}
		got = append(got, kv)
	}
	return got, nil
}
