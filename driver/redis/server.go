package redis

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
)

// facts are what the server tells about itself. Unknown is "".
type facts struct {
	version, role, cluster, evicts string
	durable                        bool          // every write is on disk before its answer
	id                             string        // of this run of the server
	up                             time.Duration // since its start
}

// ask reads INFO, and CONFIG where that is allowed.
func ask(ctx context.Context, c *conn) (facts, error) {
	text, err := do(ctx, c, request{op: "open"}, func(ctx context.Context) (string, error) {
		return c.client.Do(ctx, c.client.B().Info().Build()).ToString()
	})
	if err != nil {
		return facts{}, err
	}
	f := parseInfo(text)
	config, err := do(ctx, c, request{op: "open"}, func(ctx context.Context) (map[string]string, error) {
		return c.client.Do(ctx, c.client.B().ConfigGet().Parameter("appendfsync").Build()).AsStrMap()
	})
	if err != nil && interlock.Kind(err) != interlock.Definite {
		return facts{}, err
	}
	f.durable = f.durable && config["appendfsync"] == "always"
	return f, nil
}

// parseInfo reads what matters here from the answer to INFO.
func parseInfo(text string) facts {
	field := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			field[key] = value
		}
	}
	f := facts{version: field["redis_version"], role: field["role"], cluster: field["cluster_enabled"],
		durable: field["aof_enabled"] == "1", id: field["run_id"]}
	if seconds, err := parseInt(field["uptime_in_seconds"]); err == nil {
		f.up = time.Duration(seconds) * time.Second
	}
	if field["maxmemory"] != "0" && field["maxmemory_policy"] != "noeviction" {
		f.evicts = field["maxmemory_policy"]
	}
	return f
}

// refusal is why locks cannot be kept on this server; nil if they can.
func (f facts) refusal() error {
	major, _, _ := strings.Cut(f.version, ".")
	n, err := strconv.Atoi(major)
	why := ""
	switch {
	case f.cluster == "1":
		why = "it is a Redis Cluster, which is not supported; use one server, or sentinels"
	case f.role == "slave":
		why = "it is a replica; connect to its master"
	case err == nil && n < 6:
		why = fmt.Sprintf("it is version %s; 6.0 or later is needed", f.version)
	default:
		return nil
	}
	return problem(request{op: "open"}, interlock.Definite, fmt.Errorf("this server cannot keep locks: %s", why))
}

// queueGuarantees are those of queue mode.
func queueGuarantees(f facts, ttl time.Duration) interlock.Guarantees {
	g := plainGuarantees(f, ttl)
	g.Class, g.Order, g.Wait = interlock.Fenced, interlock.FIFO, interlock.Push
	g.TokenFrom = "counter of the hash slot, at least the server's microseconds since 2020"
	g.TokensSurvive = interlock.HolderPause | interlock.Partition | interlock.OperatorDelete |
		interlock.ServerCrash | interlock.DataLoss
	if f.evicts == "" {
		// An evicted counter starts again at the clock.
		g.TokensSurvive |= interlock.ServerClockJump
	}
	return g
}

// plainGuarantees are those of plain mode.
func plainGuarantees(f facts, ttl time.Duration) interlock.Guarantees {
	g := interlock.Guarantees{
		Driver: "redis", Class: interlock.Advisory,
		Liveness: interlock.ServerTTL, Clock: interlock.ServerClock,
		Order: interlock.Barging, Wait: interlock.Poll,
		TTL: ttl, Blind: ttl,
	}
	if f.evicts != "" {
		return g
	}
	g.CrossProcess = true
	g.ExclusionSurvives = interlock.Partition
	if f.durable {
		g.ExclusionSurvives |= interlock.ServerCrash
	}
	return g
}
