package doctor

// text is the fixed part of a finding.
type text struct {
	why string // it matters for locks
	do  string
}

// tokensText is that of every backend with a base of tokens.
var tokensText = text{"guards refuse tokens that are more than a day beyond their clock, and drivers do not open",
	"correct the wrong clock, then run interlock tokens repair --reason TEXT"}

// texts has every id.
var texts = map[string]text{
	"latency": {"a renewal that takes as long as the lease has left is a lock lost", "bring the process closer to the server, or raise the TTL"},
	"pause":   {"a process that stops for longer than its lease loses the lock and does not know", "raise the TTL, give the process a CPU of its own, and guard what it writes"},
	"clock":   {"tokens begin at the clock after a loss of data, and guards refuse what lies far ahead of it", "run a time service on both machines"},

	"redis.version":    {"older servers lack commands that the locks need", "upgrade to 6.0 or later"},
	"redis.mode":       {"a client that does not know of the cluster follows no redirection, and is refused", "add cluster=true to the URL of a Redis Cluster, and to no other"},
	"redis.role":       {"a replica takes no writes", "name the primary"},
	"redis.durability": {"after a crash a lock may have two holders; tokens still rise", "set appendonly yes and appendfsync always, or guard every write"},
	"redis.disk":       {"a server that cannot write refuses commands, or forgets them in a crash", "look at its log and its disk"},
	"redis.replicas":   {"a replica that takes over may lack the last grants: two holders", "guard every write, or use etcd or ZooKeeper where two holders must not be"},
	"redis.eviction":   {"a lock that is evicted is granted to another while the first holds it", "set maxmemory-policy noeviction, or use a server of its own"},
	"redis.info":       {"without INFO neither version, role nor eviction policy is known, and durability is not promised", "permit it: ACL SETUSER NAME +info"},
	"redis.open":       {"interlock lock fails with the same error", "correct what the error names; the package comment of driver/redis lists the rights that a user needs"},
	"redis.plain":      {"locks of mode=plain have no token: interlock lock refuses the URL, and others are listed and released only", "leave mode out for locks with tokens"},
	"redis.rights":     {"without them locks cannot be acquired, renewed or released", "add the rules with ACL SETUSER; the package comment of driver/redis lists those that a user needs. To check names with a prefix use --prefix"},
	"redis.memory":     {"a full server refuses locks", "raise maxmemory"},

	"etcd.members": {"one or two members stop with the first that fails; an even number adds none that may", "run three or five"},
	"etcd.health":  {"each member that is down is one less that may fail", "bring it back, or remove it"},
	"etcd.leader":  {"without a leader nothing is granted or renewed", "bring back a majority of the members"},
	"etcd.version": {"versions before 3.4 are not tested, and different ones are for upgrades only", "upgrade all members"},
	"etcd.apply":   {"a member that lags grants late and reports losses late", "look at its disk and its load"},
	"etcd.quota":   {"at the quota every write is refused, also renewals of waiters", "compact and defragment, or raise --quota-backend-bytes"},
	"etcd.alarms":  {"with an alarm writes are refused", "see etcdctl alarm list, fix the cause, then disarm it"},
	"etcd.tokens":  tokensText,
	"etcd.rights":  {"without them locks cannot be acquired, renewed or released", "etcdctl role grant-permission ROLE readwrite PREFIX --prefix, with the same PREFIX as --prefix of interlock"},
	"etcd.auth":    {"any client that reaches the server can delete locks", "turn authentication on, and TLS"},

	"postgres.version":     {"older servers do not end idle sessions, by which dead holders are noticed", "upgrade to 14 or later"},
	"postgres.role":        {"a standby takes no locks that others see", "name the primary"},
	"postgres.encoding":    {"some names could not be kept", "use a database with UTF8"},
	"postgres.durability":  {"after a crash tokens may fall, or the server may lose a lease that its holder still uses", "turn fsync, full_page_writes and synchronous_commit on"},
	"postgres.standbys":    {"an asynchronous standby that takes over knows neither locks nor the last tokens", "list it in synchronous_standby_names, and guard every write"},
	"postgres.pooler":      {"behind a pooler that lends server processes to transactions, session locks stay with other clients", "connect past it, let it pool sessions, or use ?mode=table"},
	"postgres.idle":        {"sessions end before they send a sign of life", "raise idle_session_timeout, or leave it at 0"},
	"postgres.connections": {"every process with locks needs a connection, and one more to listen", "raise max_connections, or use ?mode=table behind a pooler"},
	"postgres.rights":      {"without them interlock lock fails when it opens, acquires or releases", "apply what interlock schema postgres --only locks --grant-to ROLE prints, as the owner of the database"},
	"postgres.tokens":      tokensText,

	"mysql.version":     {"the statements that draw tokens need MariaDB 10.5", "use MariaDB 10.5 or later"},
	"mysql.role":        {"a replica takes no locks that others see", "name the primary"},
	"mysql.durability":  {"after a crash tokens may fall, or the server may lose a lease that its holder still uses", "set innodb_flush_log_at_trx_commit = 1 and sync_binlog = 1"},
	"mysql.galera":      {"GET_LOCK is known to one node only; rows have not been tried on a cluster", "use one server, ?mode=table at most, or another backend"},
	"mysql.replicas":    {"a replica that takes over knows neither locks nor the last tokens", "guard every write"},
	"mysql.wait":        {"other sessions of this server end soon; those of locks set their own", "nothing for locks; look at your pool's idle time"},
	"mysql.connections": {"every process with locks needs a connection", "raise max_connections"},
	"mysql.rights":      {"without them interlock lock fails when it opens, acquires or releases", "apply what interlock schema mysql --only locks --grant-to USER prints, as an administrator"},
	"mysql.tokens":      tokensText,

	"zookeeper.ensemble": {"one server or two stop with the first that fails", "run three or five"},
	"zookeeper.health":   {"each server that is down or behind is one less that may fail", "bring it back"},
	"zookeeper.version":  {"versions before 3.5 have no containers, which empty locks leave behind", "upgrade"},
	"zookeeper.load":     {"pings wait as requests do, and a session that is not heard ends", "take load off, or give it faster disks"},
	"zookeeper.session":  {"a session outside of the bounds gets the nearest one: claims live longer or shorter than asked", "choose a TTL between, or change minSessionTimeout and maxSessionTimeout; allow conf in 4lw.commands.whitelist to have it checked"},
	"zookeeper.disk":     {"without forceSync a crash of all servers may lose grants; without autopurge the disk fills", "see that zookeeper.forceSync is not no, and that autopurge.purgeInterval is above 0"},
	"zookeeper.tokens":   tokensText,

	"consul.leader":  {"without a leader no lock is granted, renewed or released", "see that a majority of the servers runs, and that the agent reaches them"},
	"consul.servers": {"one server or two stop with the first that fails", "run three or five"},
	"consul.health":  {"each server that is down or behind is one less that may fail", "bring it back; a token with operator read has it checked"},
	"consul.session": {"Consul refuses sessions that are shorter than session_ttl_min", "choose a longer TTL; a token with agent read has it checked"},
	"consul.tokens":  tokensText,

	"kube.version": {"before 1.35 resource versions have no order, so that there are no tokens", "upgrade, use another backend, or ?mode=advisory (kube.OpenAdvisory) where no token is needed"},
	"kube.rights":  {"without them locks cannot be taken, renewed or awaited", "bind a Role with get, list, watch, create and update on leases in coordination.k8s.io"},
	"kube.sweep":   {"without the right to delete Leases each reader and each permit leaves one", "add delete to the verbs on leases, or remove those without a holder by other means"},
	"kube.tokens":  tokensText,
	"kube.legacy":  {"their users do not see Leases: both may hold at once", "move them to Leases, then remove the annotation " + legacyKey},
}
