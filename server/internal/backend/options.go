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
// clients and, for settings, people spell it. One that is not known would be ignored by Redis's client, and sent to a Postgres server
// as a setting, which turns the connection away with an error of its own.
var options = map[string][]string{
	"redis": {"addr", "client_cache", "client_name", "dial_timeout", "master_set", "max_retries", "protocol",
		"skip_verify", "write_timeout"},
	"postgres": {"DateStyle", "IntervalStyle", "TimeZone", "application_name", "channel_binding", "client_encoding",
		"connect_timeout", "datestyle", "default_query_exec_mode", "description_cache_capacity",
		"idle_in_transaction_session_timeout", "intervalstyle", "krbspn", "krbsrvname", "lock_timeout",
		"max_protocol_version", "min_protocol_version", "options", "passfile", "password", "pool_health_check_period",
		"pool_max_conn_idle_time", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter", "pool_max_conns",
		"pool_min_conns", "pool_min_idle_conns", "pool_ping_timeout", "require_auth", "search_path", "service",
		"servicefile", "sslcert", "sslcertmode", "sslkey", "sslmode", "sslnegotiation", "sslpassword", "sslrootcert",
		"sslsni", "statement_cache_capacity", "statement_timeout", "target_session_attrs", "timezone", "user"},
}

// hints say where something belongs that is not among the options.
var hints = map[string]string{
	"redis":    "the number of a database is the path: redis://host:6379/1",
	"postgres": "other settings go into options, as in options=-c%20work_mem%3D8MB",
}

// checkOptions refuses an option that is not known. It repeats the option's
// name, never its value, which may be a password.
func (t Target) checkOptions(u *url.URL) error {
	given, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return &URLError{"the options of the " + t.kind + " URL cannot be read: they are name=value, joined by &, escaped with %"}
	}
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !slices.Contains(options[t.kind], name) {
			return &URLError{fmt.Sprintf("a %s URL has no option %q; known are %s; %s", t.kind, name,
				strings.Join(options[t.kind], ", "), hints[t.kind])}
		}
	}
	if t.kind != "redis" {
		return nil // what the values may be is known when the pool is made
	}
	if _, err := rueidis.ParseURL(t.raw); err != nil {
		return &URLError{"the redis URL has an " + strings.TrimPrefix(err.Error(), "redis: ")}
	}
	return nil
}
