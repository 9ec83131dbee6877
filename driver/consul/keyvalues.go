package consul

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// KeyValues is a key-value store with compare-and-swap: a step is one transaction, and
// revisions are Consul's indexes. It implements driver.KeyValues. It is for small data:
//
//   - Consul refuses a step with more than 384 KiB of values, Definite, unless its agents
//     have a larger txn_max_req_len.
//   - Consul has no ranges. Scan reads all keys with the common prefix of its bounds.
type KeyValues struct {
	client *client
	prefix string
	pace   pace
}

var _ driver.KeyValues = (*KeyValues)(nil)

// NewKeyValues uses Address, Token, TLS, Prefix and Transport of the options. It does not block.
func NewKeyValues(options *Options) (*KeyValues, error) {
	o, err := options.complete()
	if err != nil {
		return nil, err
	}
	return newKeyValues(newClient(o), o.Prefix), nil
}

func newKeyValues(c *client, prefix string) *KeyValues {
	return &KeyValues{c, layout{prefix}.meta() + "kv/", paceOf(defaultTTL)}
}

// Close closes idle connections.
func (k *KeyValues) Close(context.Context) error {
	k.client.idle()
	return nil
}

// opsAtOnce is how many operations of a transaction every version of Consul accepts.
const opsAtOnce = 64

// Get reads keys; see driver.KeyValues. More than 64 are several requests.
func (k *KeyValues) Get(ctx context.Context, keys ...string) (got []driver.KeyValue, err error) {
	const what = "get keys"
	for _, key := range keys {
		if err := driver.CheckName(what, "a key", key, driver.MaxName); err != nil {
			return nil, err
		}
	}
	for some := range slices.Chunk(keys, opsAtOnce) {
		var ops []op
		for _, key := range some {
			ops = append(ops, op{Verb: "get-or-empty", Key: k.path(key)})
		}
		entries, err := k.step(ctx, what, some[0], ops, unread)
		if err != nil {
			return nil, err
		}
		for _, key := range some {
			e := find(entries, k.path(key))
			got = append(got, driver.KeyValue{Key: key, Value: e.Value, Revision: int64(e.ModifyIndex)})
		}
	}
	return got, nil
}

// Swap applies all swaps or none, by one transaction; see driver.KeyValues.
func (k *KeyValues) Swap(ctx context.Context, swaps ...driver.Swap) (int64, error) {
	const what = "swap keys"
	if err := driver.CheckSwaps(swaps); err != nil {
		return 0, refused(what, "", err)
	}
	var ops []op
	for _, s := range swaps {
		o := op{Verb: "cas", Key: k.path(s.Key), Index: uint64(s.Revision), Value: s.Value}
		if s.Delete {
			o = op{Verb: "delete-cas", Key: o.Key, Index: o.Index}
		}
		ops = append(ops, o)
	}
	entries, err := k.step(ctx, what, swaps[0].Key, ops, failed)
	var changed *refusal
	if errors.As(err, &changed) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	revision := int64(1) // of a step that only deletes
	for _, e := range entries {
		revision = max(revision, int64(e.ModifyIndex))
	}
	return revision, nil
}

// Scan reads a range of keys; see driver.KeyValues.
func (k *KeyValues) Scan(ctx context.Context, from, to string, limit int) (got []driver.KeyValue, err error) {
	const what = "scan keys"
	common := 0
	for common < min(len(from), len(to)) && from[common] == to[common] {
		common++
	}
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, what, from)
	}
	rctx, cancel := context.WithTimeoutCause(ctx, k.pace.request, errSlow)
	defer cancel()
	entries, _, err := k.client.read(rctx, k.path(from[:common]), query{recurse: true})
	if err != nil {
		return nil, unread(rctx, what, from, err)
	}
	for _, e := range entries {
		key, err := url.PathUnescape(strings.TrimPrefix(e.Key, k.prefix))
		if err != nil {
			return nil, fail.New(what, from, interlock.Definite, fmt.Errorf("the key %q is not one of Interlock's", e.Key))
		}
		if key >= from && (to == "" || key < to) {
			got = append(got, driver.KeyValue{Key: key, Value: e.Value, Revision: int64(e.ModifyIndex)})
		}
	}
	slices.SortFunc(got, func(a, b driver.KeyValue) int { return cmp.Compare(a.Key, b.Key) })
	return got[:min(max(limit, 0), len(got))], nil
}

// path returns the key in Consul: letters, digits, "-" and "_" are unchanged. Common prefixes
// stay common, and no client of Consul sees a folder.
func (k *KeyValues) path(key string) string {
	var b strings.Builder
	for _, c := range []byte(key) {
		if c == '-' || c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return k.prefix + b.String()
}

// step sends one transaction; wrap wraps its error.
func (k *KeyValues) step(ctx context.Context, what, key string, ops []op, wrap func(ctx context.Context, op, name string, err error) error) ([]entry, error) {
	if ctx.Err() != nil {
		return nil, fail.Unsent(ctx, what, key)
	}
	rctx, cancel := context.WithTimeoutCause(ctx, k.pace.request, errSlow)
	defer cancel()
	entries, err := k.client.txn(rctx, ops...)
	if err != nil {
		return nil, wrap(rctx, what, key, err)
	}
	return entries, nil
}
