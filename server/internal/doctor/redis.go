package doctor

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	opener "github.com/interlock-dev/interlock/driver/backend"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/server/internal/backend"
)

type redisProbe struct {
	client  rueidis.Client
	options redis.Options
	plain   bool
	redisURL
}

// redisURL are the options of the URL on which findings depend.
type redisURL struct {
	clustered bool
	fsync     bool // the driver asks for WAITAOF
	replicas  int  // for which a grant waits
	needed    int  // replicas without which the server rejects writes, by its configuration
}

func dialRedis(_ context.Context, u *opener.URL, o Options) (probe, error) {
	c, err := redis.Dial(u.Client())
	if err != nil {
		return nil, err
	}
	replicas, _ := strconv.Atoi(u.Query().Get("replicas")) // Dial has validated it
	return &redisProbe{client: c, options: redis.Options{TTL: o.TTL, Prefix: o.Prefix}, plain: u.Setting("mode") == "plain",
		redisURL: redisURL{clustered: c.Mode() == rueidis.ClientModeCluster, fsync: u.Query().Get("fsync") == "true", replicas: replicas}}, nil
}

func (p *redisProbe) close() { p.client.Close() }

func (p *redisProbe) ping(ctx context.Context) error {
	return p.ask(func(c rueidis.Client) error { return c.Do(ctx, c.B().Ping().Build()).Error() })
}

// servers returns the server, or the nodes of a cluster by address.
func (p *redisProbe) servers() map[string]rueidis.Client {
	if !p.clustered {
		return map[string]rueidis.Client{"": p.client}
	}
	return p.client.Nodes()
}

// ask calls do for one server after the other until it returns nil. The client of a cluster
// sends commands without a key to any node, also to one that is down.
func (p *redisProbe) ask(do func(rueidis.Client) error) (err error) {
	for _, c := range p.servers() {
		if err = do(c); err == nil {
			break
		}
	}
	return err
}

func (p *redisProbe) inspect(ctx context.Context, r *Report) error {
	if err := p.nodes(ctx, r); err != nil {
		return err
	}
	if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.ID == "redis.sentinel" }) {
		return nil // it has no other command that is checked
	}
	if err := p.open(ctx, r); err != nil {
		return err
	}
	return p.clock(ctx, r)
}

// nodes adds the findings of one server, or the worst ones of the nodes of a cluster.
func (p *redisProbe) nodes(ctx context.Context, r *Report) error {
	if !p.clustered {
		return p.node(ctx, r, p.client)
	}
	nodes := p.servers()
	at := map[string]int{}
	for _, addr := range slices.Sorted(maps.Keys(nodes)) {
		var one Report
		if err := p.node(ctx, &one, nodes[addr]); ctx.Err() != nil {
			return err
		} else if err != nil {
			one.add("redis.node", Warning, "INFO: %v", err)
		}
		for _, f := range one.Findings {
			f.Seen = addr + ": " + f.Seen
			if i, ok := at[f.ID]; !ok {
				at[f.ID] = len(r.Findings)
				r.Findings = append(r.Findings, f)
			} else if f.Severity > r.Findings[i].Severity {
				r.Findings[i] = f
			}
		}
		r.Status = max(r.Status, one.Status)
	}
	return nil
}

// node adds the findings of one server.
func (p *redisProbe) node(ctx context.Context, r *Report, client rueidis.Client) error {
	text, err := client.Do(ctx, client.B().Info().Build()).ToString()
	if backend.Forbidden(err) {
		r.add("redis.info", Warning, "INFO: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	info, config := infoFields(text), map[string]string{}
	for _, pattern := range []string{"*appendfsync*", "min-replicas-to-write"} {
		found, err := client.Do(ctx, client.B().ConfigGet().Parameter(pattern).Build()).AsStrMap()
		if err != nil && ctx.Err() != nil {
			return err // otherwise it is only forbidden
		}
		maps.Copy(config, found)
	}
	fsync := config["appendfsync"]
	switch {
	case p.fsync && fsync != "no":
		fsync = "confirmed"
	case fsync == "always" && config["no-appendfsync-on-rewrite"] == "yes":
		fsync = "paused"
	}
	if p.clustered {
		text, err := client.Do(ctx, client.B().ClusterInfo().Build()).ToString()
		if err != nil && ctx.Err() != nil {
			return err // as above
		}
		maps.Copy(info, infoFields(text))
	}
	u := p.redisURL
	u.needed, _ = strconv.Atoi(config["min-replicas-to-write"])
	redisFindings(r, info, fsync, u)
	return nil
}

func (p *redisProbe) clock(ctx context.Context, r *Report) error {
	var parts []int64
	var sent, received time.Time
	err := p.ask(func(c rueidis.Client) (err error) {
		sent = time.Now()
		parts, err = c.Do(ctx, c.B().Time().Build()).AsIntSlice()
		received = time.Now()
		return err
	})
	if backend.Forbidden(err) {
		r.add("clock", Info, "TIME: %v", err)
		return nil
	}
	if err != nil || len(parts) != 2 {
		return fmt.Errorf("TIME: %v, %w", parts, err)
	}
	r.skew(time.Unix(parts[0], parts[1]*1000), sent, received, 0)
	return nil
}

// infoFields parses the answer to INFO or CLUSTER INFO, a verbatim string with its format in front.
func infoFields(text string) map[string]string {
	fields := map[string]string{}
	for line := range strings.Lines(strings.TrimPrefix(text, "txt:")) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[key] = value
		}
	}
	return fields
}

// redisFindings checks INFO and appendfsync, which is empty if unknown, of a server or of a
// cluster node. Locks do not use the replicas of nodes.
func redisFindings(r *Report, info map[string]string, fsync string, u redisURL) {
	if info["redis_mode"] == "sentinel" {
		r.add("redis.sentinel", Critical, "a sentinel, without master_set=NAME in the URL")
		return
	}
	major, _ := strconv.Atoi(strings.SplitN(info["redis_version"], ".", 2)[0])
	r.addIf(major < 6, "redis.version", Critical, "version %s", info["redis_version"])
	if u.clustered {
		r.addIf(info["redis_mode"] != "cluster", "redis.mode", Critical, "mode %s, with cluster=true in the URL", info["redis_mode"])
		if state, served := info["cluster_state"], info["cluster_slots_ok"]; state != "" {
			r.addIf(state != "ok" || served != "16384", "redis.slots", Critical, "state %s, %s of 16384 slots are served", state, served)
		}
	} else {
		r.addIf(info["redis_mode"] != "standalone", "redis.mode", Critical, "mode %s, without cluster=true in the URL", info["redis_mode"])
		r.addIf(info["role"] != "master", "redis.role", Critical, "role %s", info["role"])
	}
	redisDurability(r, info, fsync)
	r.addIf(info["aof_last_write_status"] == "err" || info["rdb_last_bgsave_status"] == "err", "redis.disk", Critical,
		"last write of the log %s, last snapshot %s", info["aof_last_write_status"], info["rdb_last_bgsave_status"])
	redisReplicas(r, info, u)
	redisMemory(r, info)
}

func redisReplicas(r *Report, info map[string]string, u redisURL) {
	replicas, _ := strconv.Atoi(info["connected_slaves"])
	good, err := strconv.Atoi(cmp.Or(info["min_slaves_good_slaves"], info["connected_slaves"])) // that do not lag
	switch {
	case info["role"] != "master":
		r.add("redis.replicas", OK, "replicas: %d", replicas)
	case replicas < u.replicas:
		r.add("redis.unconfirmed", Critical, "replicas: %d; a grant waits for %d", replicas, u.replicas)
	case err == nil && good < u.needed:
		r.add("redis.unconfirmed", Critical, "replicas that do not lag: %d; min-replicas-to-write %d", good, u.needed)
	default:
		r.addIf(replicas > u.replicas, "redis.replicas", Warning, "replicas: %d; a grant waits for %d of them", replicas, u.replicas)
	}
}

func redisDurability(r *Report, info map[string]string, fsync string) {
	const id = "redis.durability"
	switch {
	case info["aof_enabled"] != "1":
		r.add(id, Warning, "appendonly no: a crash forgets every lock")
	case fsync == "always":
		r.add(id, OK, "appendonly yes, appendfsync always")
	case fsync == "confirmed":
		r.add(id, OK, "appendonly yes, and every grant waits for WAITAOF")
	case fsync == "paused":
		r.add(id, Warning, "appendonly yes, appendfsync always, no-appendfsync-on-rewrite yes: during a snapshot or a rewrite nothing is on disk")
	case fsync == "":
		r.add(id, Warning, "appendonly yes, and appendfsync may not be read: it is taken for everysec")
	default:
		r.add(id, Warning, "appendonly yes, appendfsync %s: a crash may forget the last second", fsync)
	}
}

func redisMemory(r *Report, info map[string]string) {
	limit, _ := strconv.ParseFloat(info["maxmemory"], 64)
	used, _ := strconv.ParseFloat(info["used_memory"], 64)
	uncounted, _ := strconv.ParseFloat(info["mem_not_counted_for_evict"], 64)
	policy := info["maxmemory_policy"]
	r.addIf(policy != "noeviction", "redis.eviction", Critical, "maxmemory %s, maxmemory-policy %s", info["maxmemory"], policy)
	if limit > 0 {
		r.add("redis.memory", grade(used-uncounted, limit*9/10, limit), "%.0f %% of maxmemory are in use", 100*(used-uncounted)/limit)
	}
}

// open opens the driver, which takes no lock and writes no key, and reports the
// errors that "interlock lock" would have.
func (p *redisProbe) open(ctx context.Context, r *Report) error {
	const id = "redis.open"
	if p.plain {
		r.add("redis.plain", Info, "mode=plain")
		plain, err := redis.OpenPlain(ctx, p.client, &p.options)
		if err == nil {
			err = plain.Close(context.WithoutCancel(ctx))
		}
		return r.opened(ctx, id, err)
	}
	d, err := redis.Open(ctx, p.client, &p.options)
	if err := r.opened(ctx, id, err); err != nil || d == nil {
		return err
	}
	err = redisRights(ctx, r, d, p.options.Prefix)
	if closed := d.Close(context.WithoutCancel(ctx)); err == nil {
		err = closed
	}
	return err
}

// opened reports the outcome of opening a driver. The error is that of ctx.
func (r *Report) opened(ctx context.Context, id string, err error) error {
	switch {
	case err == nil:
		r.add(id, OK, "locks can be opened")
	case ctx.Err() != nil:
		return err
	default:
		r.add(id, Critical, "%v", err)
	}
	return nil
}

// redisRights reports the user's missing rights to lock any name, and every name.
func redisRights(ctx context.Context, r *Report, d *redis.Driver, prefix string) error {
	const id = "redis.rights"
	name := "interlock-doctor-" + rand.Text() // no other process has this one
	missing, known, err := d.MissingRights(ctx, name)
	if err != nil && ctx.Err() == nil {
		r.add(id, Info, "they cannot be read: %v", err)
		return nil
	}
	if err != nil {
		return err
	}
	key := "~" + prefix + name
	some := slices.Contains(missing, key)
	missing = slices.DeleteFunc(missing, func(rule string) bool { return rule == key })
	switch {
	case !known:
		r.add(id, Info, "the server is older than 7.0 and does not report rights")
	case len(missing) > 0:
		r.add(id, Critical, "rules that are missing: %s", strings.Join(missing, " "))
	case some:
		r.add(id, Warning, "locks can be taken on some names only: keys such as %s are not permitted", prefix+name)
	default:
		r.add(id, OK, "locks can be taken on every name")
	}
	return nil
}
