package redis

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
)

var listScript = newReader(lua("list"))

// slotsAtOnce is how many parts of a cluster's index one request reads, which takes
// its server about a millisecond.
const slotsAtOnce = 1024

// names reads from the index the held or awaited locks that begin with prefix: up to
// a hundred after after, in byte order. Some may have ended.
func (k *keyspace) names(ctx context.Context, prefix, after string) ([]string, error) {
	low, high := "["+prefix, beyond(prefix)
	if after != "" {
		low = "(" + after
	}
	batches, err := k.layout.indexes(ctx, k.conn, prefix, low, high)
	if err != nil {
		return nil, err
	}
	asked := request{op: "list", name: strings.TrimPrefix(prefix, k.layout.prefix), harmless: true}
	results, err := k.conn.evalAll(ctx, asked, listScript, batches)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, r := range results {
		found, err := r.AsStrSlice()
		if err != nil {
			return nil, failure(asked, err)
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	return names[:min(len(names), batchSize)], nil
}

// indexes returns the requests that read names between low and high from the parts of the
// index that can contain names with the prefix.
func (l layout) indexes(ctx context.Context, c *conn, prefix, low, high string) ([]batch, error) {
	args := []string{low, high, strconv.Itoa(batchSize)}
	if !l.cluster {
		return []batch{{keys: []string{namesKey(wholeTag)}, args: args}}, nil
	}
	if slot, ok := slotOfPrefix(prefix); ok {
		return []batch{{keys: []string{namesKey(tags.of(slot))}, args: args}}, nil
	}
	ranges, err := c.slotRanges(ctx)
	if err != nil {
		return nil, err
	}
	var batches []batch
	for _, r := range ranges {
		for first := r.first; first <= r.last; first += slotsAtOnce {
			b := batch{keys: []string{namesKey(tags.of(first))}, args: slices.Clone(args)}
			for slot := first + 1; slot <= min(r.last, first+slotsAtOnce-1); slot++ {
				b.args = append(b.args, namesKey(tags.of(slot)))
			}
			batches = append(batches, b)
		}
	}
	return batches, nil
}

// slotOfPrefix returns the one slot of all keys that begin with prefix, if any.
func slotOfPrefix(prefix string) (slot int, ok bool) {
	_, rest, open := strings.Cut(prefix, "{")
	tag, _, closed := strings.Cut(rest, "}")
	return slotOf(prefix), open && closed && tag != ""
}

// beyond returns the end, for ZRANGEBYLEX, of the names that begin with prefix.
func beyond(prefix string) string {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] < 0xff {
			return "(" + prefix[:i] + string([]byte{prefix[i] + 1})
		}
	}
	return "+"
}

// masters returns the nodes with keys: the client itself, or a cluster's masters.
func (c *conn) masters(ctx context.Context) ([]rueidis.Client, error) {
	if c.client.Mode() != rueidis.ClientModeCluster {
		return []rueidis.Client{c.client}, nil
	}
	ranges, err := c.slotRanges(ctx)
	if err != nil {
		return nil, err
	}
	nodes, found := c.client.Nodes(), map[string]rueidis.Client{}
	for _, r := range ranges {
		node, known := nodes[r.master]
		if !known {
			return nil, problem(request{op: "read the cluster's slots"}, interlock.Retryable,
				fmt.Errorf("the client has no connection to the master %s yet", r.master))
		}
		found[r.master] = node
	}
	return slices.Collect(maps.Values(found)), nil
}

// slotRange is a range of slots of one master of a cluster.
type slotRange struct {
	first, last int
	master      string // its address
}

// slotRanges asks the nodes of the cluster where its slots are, until one answers.
func (c *conn) slotRanges(ctx context.Context) ([]slotRange, error) {
	asked := request{op: "read the cluster's slots", harmless: true}
	var items []rueidis.RedisMessage
	err := uncertain(asked, rueidis.ErrNoAddr)
	asker := "" // the address of the node that answered
	for address, node := range c.client.Nodes() {
		asker = address
		items, err = do(ctx, c, asked, func(ctx context.Context) ([]rueidis.RedisMessage, error) {
			return node.Do(ctx, node.B().ClusterSlots().Build()).ToArray()
		})
		if err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	ranges := make([]slotRange, len(items))
	for i, item := range items {
		if ranges[i], err = parseRange(item, asker); err != nil {
			return nil, uncertain(asked, err)
		}
	}
	return ranges, nil
}

// parseRange parses a range of slots. A master without a host is at the host of the node that was asked.
func parseRange(item rueidis.RedisMessage, asked string) (r slotRange, err error) {
	fields, err := item.ToArray()
	if err != nil || len(fields) < 3 {
		return r, errReply
	}
	node, err := fields[2].ToArray()
	if err != nil || len(node) < 2 {
		return r, errReply
	}
	for field, into := range map[*rueidis.RedisMessage]*int{&fields[0]: &r.first, &fields[1]: &r.last} {
		n, err := field.AsInt64()
		if err != nil || n < 0 || n >= slots {
			return r, errReply
		}
		*into = int(n)
	}
	host, _ := node[0].ToString()
	if host == "" {
		host, _, _ = net.SplitHostPort(asked)
	}
	port, err := node[1].AsInt64()
	r.master = net.JoinHostPort(host, strconv.FormatInt(port, 10))
	return r, err
}
