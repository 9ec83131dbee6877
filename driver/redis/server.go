package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// facts are what the server reports about itself. Unknown is "".
type facts struct {
	version, role, cluster, policy string
	clustered                      bool          // the client knows that it is a cluster
	replicas                       int64         // that are connected
	durable                        bool          // every write is on disk before it is answered
	id                             string        // of this run of the server
	up                             time.Duration // since its start
	replicated                     bool          // writes wait for every replica
	assumes                        string        // what was declared and not checked
	unconfirmable                  error         // why Settings cannot be met
}

// ask reads the facts of the server, or of every node of a cluster that answers: any
// of them may have the slot of a name, now or after a failover.
func ask(ctx context.Context, c *conn) (facts, error) {
	s := settingsOf(c.client)
	var all []facts
	var failed error
	for _, node := range nodesOf(c.client) {
		f, err := askNode(ctx, c, node)
		if err != nil {
			failed = err
			continue
		}
		if f.refusal(s) != nil {
			return f, nil
		}
		all = append(all, f)
	}
	if len(all) == 0 {
		return facts{}, failed
	}
	f := all[0]
	for _, other := range all[1:] {
		f.durable = f.durable && other.durable
		f.replicas = max(f.replicas, other.replicas)
	}
	f.assume(s, failed == nil)
	return f, nil
}

// askNode runs INFO and CONFIG where they are permitted. Without INFO only the
// eviction policy is known, and the first requests fail where something is missing.
func askNode(ctx context.Context, c *conn, node rueidis.Client) (facts, error) {
	asked := request{op: "open"}
	text, err := do(ctx, c, asked, func(ctx context.Context) (string, error) {
		return node.Do(ctx, node.B().Info().Build()).ToString()
	})
	if err != nil && !isForbidden(err) {
		return facts{}, err
	}
	f := parseInfo(text)
	config, err := c.config(ctx, node, "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")
	if err != nil {
		return facts{}, err
	}
	if f.policy == "" {
		f.policy = config["maxmemory-policy"]
	}
	f.durable = f.durable && config["appendfsync"] == "always" && config["no-appendfsync-on-rewrite"] != "yes"
	f.clustered = c.client.Mode() == rueidis.ClientModeCluster
	if f.unconfirmable, err = c.unconfirmable(ctx, node); err != nil {
		return facts{}, err
	}
	f.durable = f.durable || settingsOf(c.client).Fsync
	return f, nil
}

// assume adds what was declared and cannot be read from the server. all reports whether
// every node answered: the number of replicas of the others is unknown.
func (f *facts) assume(s Settings, all bool) {
	f.replicated = all && s.Replicas > 0 && int64(s.Replicas) >= f.replicas
	var assumed []string
	if s.NoEviction {
		assumed = append(assumed, "maxmemory-policy is noeviction, as declared")
	}
	if f.replicated {
		assumed = append(assumed, fmt.Sprintf("a failover is to one of the %d replicas that are waited for", s.Replicas))
	}
	f.assumes = strings.Join(assumed, "; ")
}

// isForbidden reports whether the user lacks a right.
func isForbidden(err error) bool {
	var answer *rueidis.RedisError
	return errors.As(err, &answer) && strings.HasPrefix(answer.Error(), "NOPERM")
}

// parseInfo parses the relevant part of the answer to INFO.
func parseInfo(text string) facts {
	field := infoFields(text)
	role := field["role"]
	if field["redis_mode"] == "sentinel" {
		role = "sentinel" // it has no role of its own
	}
	f := facts{version: field["redis_version"], role: role, cluster: field["cluster_enabled"],
		policy: field["maxmemory_policy"], durable: field["aof_enabled"] == "1", id: field["run_id"]}
	f.replicas, _ = driver.ParseInt(field["connected_slaves"])
	if seconds, err := driver.ParseInt(field["uptime_in_seconds"]); err == nil {
		f.up = time.Duration(seconds) * time.Second
	}
	return f
}

func infoFields(text string) map[string]string {
	field := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			field[key] = value
		}
	}
	return field
}

// refusal returns why this server cannot keep locks; nil if it can.
func (f facts) refusal(s Settings) error {
	major, _, _ := strings.Cut(f.version, ".")
	n, err := strconv.Atoi(major)
	why := ""
	if reason := keepsAll.judge(f.policy); reason != nil && !s.NoEviction && f.role != "sentinel" {
		return problem(request{op: "open"}, interlock.Definite, reason)
	}
	switch {
	case f.role == "sentinel":
		why = "it is a sentinel; name the master that it knows (master_set=NAME in the URL of Dial)"
	case f.cluster == "1" && !f.clustered:
		why = "it is part of a Redis Cluster; say so to the client (cluster=true in the URL of Dial)"
	case f.role == "slave" && !f.clustered: // a cluster's client finds the masters
		why = "it is a replica; connect to its master"
	case err == nil && n < 6:
		why = fmt.Sprintf("it is version %s; 6.0 or later is needed", f.version)
	case f.unconfirmable != nil:
		why = f.unconfirmable.Error()
	default:
		return nil
	}
	return problem(request{op: "open"}, interlock.Definite, fmt.Errorf("this server cannot keep locks: %s", why))
}

// queueGuarantees returns those of queue mode.
func queueGuarantees(f facts, ttl time.Duration) interlock.Guarantees {
	g := plainGuarantees(f, ttl)
	g.Class, g.Order, g.Wait = interlock.Fenced, interlock.FIFO, interlock.Push
	g.TokenFrom = "counter of the hash slot, at least the server's microseconds since 2020"
	g.TokensSurvive = interlock.HolderPause | interlock.Partition | interlock.OperatorDelete |
		interlock.ServerCrash | interlock.DataLoss | interlock.ServerClockJump
	if f.replicated {
		g.TokensSurvive |= interlock.AsyncFailover
	}
	return g
}

// plainGuarantees returns those of plain mode.
func plainGuarantees(f facts, ttl time.Duration) interlock.Guarantees {
	g := interlock.Guarantees{
		Driver: "redis", Class: interlock.Advisory,
		Liveness: interlock.ServerTTL, Clock: interlock.ServerClock,
		Order: interlock.Barging, Wait: interlock.Poll,
		CrossProcess: true, ExclusionSurvives: interlock.Partition,
		TTL: ttl, Blind: ttl, MinTTL: MinTTL, MaxTTL: MaxTTL, Assumes: f.assumes,
	}
	if f.durable {
		g.ExclusionSurvives |= interlock.ServerCrash
	}
	if f.replicated {
		g.ExclusionSurvives |= interlock.AsyncFailover
	}
	return g
}
