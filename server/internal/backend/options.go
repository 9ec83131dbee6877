package backend

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// options are what may stand behind the question mark of a URL, spelled as the
// clients and, for settings, people spell it. One that is not known would be ignored by Redis's client, and sent to
// a Postgres server as a setting, which turns the connection away with an error of
// its own.
var options = map[string][]string{
	"etcd":      tlsOptions,
	"zookeeper": tlsOptions,
	"redis": {"addr", "client_cache", "client_name", "cluster", "dial_timeout", "eviction", "fsync", "master_set", "max_retries",
		"protocol", "replicas", "sentinel_password", "sentinel_user", "skip_verify", "tls_ca", "tls_cert", "tls_key", "write_timeout"},
	"postgres": {"DateStyle", "IntervalStyle", "TimeZone", "application_name", "channel_binding", "client_encoding",
		"connect_timeout", "datestyle", "default_query_exec_mode", "description_cache_capacity",
		"idle_in_transaction_session_timeout", "intervalstyle", "krbspn", "krbsrvname", "lock_timeout",
		"max_protocol_version", "min_protocol_version", "options", "passfile", "password", "pool_health_check_period",
		"pool_max_conn_idle_time", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter", "pool_max_conns",
		"pool_min_conns", "pool_min_idle_conns", "pool_ping_timeout", "require_auth", "search_path", "service",
		"servicefile", "sslcert", "sslcertmode", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert",
		"sslsni", "statement_cache_capacity", "statement_timeout", "target_session_attrs", "timezone", "user"},
	"mysql": {"allowCleartextPasswords", "allowNativePasswords", "charset", "collation", "connectionAttributes",
		"maxAllowedPacket", "readTimeout", "serverPubKey", "timeout", "tls", "writeTimeout"},
}

// own are the options that are ours, with the values they may have; nil means any.
// They belong to what is meant by the URL, and hold no secret.
var own = map[string]map[string][]string{
	"redis":     {"mode": {"fenced", "plain"}},
	"postgres":  {"mode": {"session", "table"}, "namespace": nil},
	"mysql":     {"mode": {"session", "table"}, "namespace": nil},
	"zookeeper": {"names": {"escaped", "raw"}},
	"kube":      {"context": nil, "kubeconfig": nil, "mode": {"fenced", "advisory"}},
}

// hints say where something belongs that is not among the options.
var hints = map[string]string{
	"redis":    "; the number of a database is the path: redis://host:6379/1",
	"postgres": "; other settings go into options, as in options=-c%20work_mem%3D8MB",
}

// divide reads the options and takes ours out of the URL.
func (t *Target) divide(u *url.URL) error {
	given, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return &URLError{"the options of the " + t.kind + " URL cannot be read: they are name=value, joined by &, escaped with %"}
	}
	t.own, t.query = url.Values{}, given
	for _, name := range slices.Sorted(maps.Keys(own[t.kind])) {
		values, ok := given[name]
		if !ok {
			continue
		}
		allowed := own[t.kind][name]
		if len(values) != 1 || values[0] == "" || allowed != nil && !slices.Contains(allowed, values[0]) {
			return &URLError{fmt.Sprintf("the option %q of the %s URL is given once, %s", name, t.kind, choice(allowed))}
		}
		t.own[name] = values
		delete(given, name)
		u.RawQuery = strings.ReplaceAll(given.Encode(), "+", "%20") // pgx does not take a plus for a space
	}
	t.mode = t.own.Get("mode")
	return nil
}

func choice(allowed []string) string {
	if allowed == nil {
		return "with a value"
	}
	return "as " + strings.Join(allowed, " or ")
}

// checkOptions refuses an option that is not known. It repeats the option's
// name, never its value, which may be a password.
func (t Target) checkOptions() error {
	for _, name := range slices.Sorted(maps.Keys(t.query)) {
		if !slices.Contains(options[t.kind], name) {
			return &URLError{fmt.Sprintf("%s URL has no option %q; known are %s%s", article(t.kind), name, t.known(), hints[t.kind])}
		}
	}
	if t.kind != "redis" {
		return t.checkTLS() // else what the values may be is known when the pool is made
	}
	if _, err := rueidis.ParseURL(t.raw); err != nil {
		return &URLError{"the redis URL has an " + strings.TrimPrefix(err.Error(), "redis: ")}
	}
	return nil
}

// known are all options of a URL, ours last.
func (t Target) known() string {
	return strings.Join(slices.Concat(options[t.kind], slices.Sorted(maps.Keys(own[t.kind]))), ", ")
}

func article(kind string) string {
	if kind == "etcd" {
		return "an " + kind
	}
	return "a " + kind
}
