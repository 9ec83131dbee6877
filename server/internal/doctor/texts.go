package doctor

// text is the fixed part of a finding.
type text struct {
	why string // the effect on locks
	do  string
}

// tokensText is the text for every backend with a base of tokens.
var tokensText = text{"guards reject tokens more than a day ahead of their clock, and drivers do not open",
	"correct the wrong clock, then run interlock tokens repair --reason TEXT"}

// texts has the texts of every id.
var texts = map[string]text{
	"answers": {"while the server does not answer, nothing is granted or renewed", "see its log; a claim outlives up to two thirds of its TTL, so a longer TTL outlives a longer failover"},
	"latency": {"if a renewal takes as long as the rest of the lease, the lock is lost", "bring the process closer to the server, or raise the TTL"},
	"pause":   {"a process that pauses for longer than its lease loses the lock without notice", "raise the TTL, give the process its own CPU, and guard its writes"},
	"clock":   {"after a loss of data tokens start at the clock, and guards reject tokens far ahead of it", "run a time service on both machines"},

	"redis.version":     {"older servers lack required commands", "upgrade to 6.0 or later"},
	"redis.mode":        {"a client without cluster mode does not follow redirections, and gets errors", "use cluster=true in URLs of a Redis Cluster only"},
	"redis.role":        {"a replica accepts no writes", "name the primary"},
	"redis.durability":  {"after a crash a lock may have two holders; tokens still rise", "set appendonly yes, appendfsync always and no-appendfsync-on-rewrite no, or guard every write"},
	"redis.node":        {"locks in the slots of a master that is down wait until a replica takes over", "restart it, or remove it from the cluster"},
	"redis.slots":       {"no lock is granted or renewed in slots that no master serves", "restart the masters that are down, or promote their replicas"},
	"redis.disk":        {"a server that cannot write rejects commands, or loses them in a crash", "check its log and its disk"},
	"redis.replicas":    {"a promoted replica may lack the last grants: two holders", "wait for all of them by replicas=N in the URL, guard every write, or use etcd or ZooKeeper"},
	"redis.unconfirmed": {"no grant is confirmed, so no lock is acquired", "start the missing replicas, or lower replicas=N in the URL, or min-replicas-to-write of the server"},
	"redis.sentinel":    {"a sentinel has no keys: it only knows which server is the master", "add master_set=NAME to the URL"},
	"redis.eviction":    {"an evicted lock is granted to another owner while the first still uses it", "set maxmemory-policy noeviction, or use a separate server"},
	"redis.info":        {"without INFO, version, role and eviction policy are unknown, and durability is not guaranteed", "permit it: ACL SETUSER NAME +info"},
	"redis.open":        {"interlock lock fails with the same error", "fix the cause in the error; the package comment of driver/redis lists the rights that a user needs"},
	"redis.plain":       {"locks of mode=plain have no token: interlock lock rejects the URL; they can only be listed and released", "omit mode for locks with tokens"},
	"redis.rights":      {"without them locks cannot be acquired, renewed or released", "add the rules with ACL SETUSER; the package comment of driver/redis lists those that a user needs. To check names with a prefix use --prefix"},
	"redis.memory":      {"a full server rejects locks", "raise maxmemory"},

	"etcd.members": {"one or two members tolerate no failure; an even number tolerates no more failures than the odd one below; two clusters grant the same lock", "run three or five, and name those of one cluster in the URL"},
	"etcd.health":  {"each failed member reduces the tolerated failures by one", "restart it, or remove it"},
	"etcd.leader":  {"without a leader nothing is granted or renewed", "restart a majority of the members"},
	"etcd.version": {"versions before 3.4 are not tested, and mixed versions are for upgrades only", "upgrade all members"},
	"etcd.apply":   {"a member that lags grants late and reports losses late", "check its disk and its load"},
	"etcd.quota":   {"at the quota every write is rejected, also renewals of waiters", "compact and defragment, or raise --quota-backend-bytes; etcdctl endpoint status shows the size"},
	"etcd.alarms":  {"with an alarm writes are rejected", "see etcdctl alarm list, fix the cause, then disarm it"},
	"etcd.tokens":  tokensText,
	"etcd.rights":  {"without them locks cannot be acquired, renewed or released", "etcdctl role grant-permission ROLE readwrite PREFIX --prefix, with the same PREFIX as --prefix of interlock"},
	"etcd.auth":    {"any client that reaches the server can delete locks", "enable authentication and TLS"},

	"postgres.version":     {"older servers cannot detect dead holders by ending idle sessions", "upgrade to 14 or later"},
	"postgres.role":        {"locks on a standby do not exclude other processes", "name the primary"},
	"postgres.readonly":    {"guards, queues, outboxes and journals cannot write, nor can locks of ?mode=table; session locks turn it off for themselves", "set default_transaction_read_only = off for this role or database, or by &options=-c%20default_transaction_read_only%3Doff in the URL"},
	"postgres.encoding":    {"some names could not be stored", "use a database with UTF8"},
	"postgres.durability":  {"after a crash tokens may fall, or the server may lose a lease that its holder still uses", "enable fsync, full_page_writes and synchronous_commit"},
	"postgres.standbys":    {"a promoted asynchronous standby has neither locks nor the last tokens", "list it in synchronous_standby_names, and guard every write; to see more, grant pg_monitor"},
	"postgres.pooler":      {"with a pooler in transaction mode, session locks stay with other clients, so interlock lock fails", "connect directly, use pool mode session, or use ?mode=table"},
	"postgres.idle":        {"sessions end before they send a keep-alive", "raise idle_session_timeout, or leave it at 0"},
	"postgres.connections": {"every process with locks needs a connection, and one more to listen", "raise max_connections, or use ?mode=table with a pooler"},
	"postgres.rights":      {"without them interlock lock fails when it opens, acquires or releases", "apply what interlock schema postgres --only locks --grant-to ROLE prints, as the owner of the database"},
	"postgres.tables":      {"what uses such a table fails when it opens, or at a statement", "apply what interlock schema postgres --only PART prints, of the version that is to use it"},
	"postgres.tokens":      tokensText,

	"mysql.version":     {"the statements for tokens need MariaDB 10.5", "use MariaDB 10.5 or later"},
	"mysql.role":        {"locks on a replica do not exclude other processes", "name the primary"},
	"mysql.durability":  {"after a crash tokens may fall, or the server may lose a lease that its holder still uses", "set innodb_flush_log_at_trx_commit = 1 and sync_binlog = 1, leave innodb_doublewrite on, and do not set innodb_flush_method to nosync or littlesync"},
	"mysql.galera":      {"GET_LOCK is local to one node; rows are not tested on a cluster", "use one server, at most ?mode=table, or another backend"},
	"mysql.replicas":    {"a promoted replica has neither locks nor the last tokens", "guard every write"},
	"mysql.wait":        {"other sessions of this server end soon; those of locks set their own limit", "nothing for locks; check your pool's idle time"},
	"mysql.connections": {"every process with locks needs a connection", "raise max_connections"},
	"mysql.rights":      {"without them interlock lock fails when it opens, acquires or releases", "apply what interlock schema mysql --only locks --grant-to USER prints, as an administrator"},
	"mysql.tables":      {"what uses such a table fails when it opens, or at a statement", "apply what interlock schema mysql --only PART prints, of the version that is to use it"},
	"mysql.tokens":      tokensText,

	"zookeeper.ensemble": {"one or two servers tolerate no failure; servers of different ensembles grant the same lock", "run three or five, and name those of one ensemble in the URL; the number needs conf in 4lw.commands.whitelist"},
	"zookeeper.health":   {"each server that failed or lags reduces the tolerated failures by one; without a majority no lock is granted", "restart it; the check needs srvr in 4lw.commands.whitelist"},
	"zookeeper.version":  {"versions before 3.5 have no containers, so nodes of empty locks remain", "upgrade"},
	"zookeeper.load":     {"pings wait like requests, and a session without pings ends", "reduce the load, or use faster disks"},
	"zookeeper.session":  {"a session outside the bounds gets the nearest one: claims last longer or shorter than requested", "choose a TTL within them, or change minSessionTimeout and maxSessionTimeout; the check needs conf in 4lw.commands.whitelist"},
	"zookeeper.disk":     {"without forceSync a crash of all servers may lose grants; without autopurge the disk fills", "check that zookeeper.forceSync is not no, and that autopurge.purgeInterval is above 0"},
	"zookeeper.tokens":   tokensText,

	"consul.leader":  {"without a leader no lock is granted, renewed or released", "check that a majority of the servers runs, and that the agent reaches them"},
	"consul.servers": {"one or two servers tolerate no failure", "run three or five"},
	"consul.health":  {"each server that failed or lags reduces the tolerated failures by one", "restart it; the check needs a token with operator read"},
	"consul.session": {"Consul rejects sessions shorter than session_ttl_min", "choose a longer TTL; the check needs a token with agent read"},
	"consul.tokens":  tokensText,

	"kube.version": {"before 1.35 resource versions have no order, so there are no tokens", "upgrade, use another backend, or ?mode=advisory (kube.OpenAdvisory) if no token is needed"},
	"kube.rights":  {"without them locks cannot be acquired, renewed or awaited", "bind a Role with get, list, watch, create and update on leases in coordination.k8s.io"},
	"kube.sweep":   {"without the right to delete, each reader and each permit leaves a Lease", "add delete to the verbs on leases, or remove unheld ones by other means"},
	"kube.tokens":  tokensText,
	"kube.legacy":  {"their users do not see Leases: there may be two holders", "move them to Leases, then remove the annotation " + legacyKey},
}
