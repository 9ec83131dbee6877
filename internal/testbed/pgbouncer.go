package testbed

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// PgBouncer starts a pooler for a PostgreSQL server of the same test, in pool mode
// "session", "transaction" or "statement". Every client is the user postgres. Each of
// extra is one line of its configuration, such as "default_pool_size = 2". PgBouncer
// refuses to run as root, so a test that runs as root needs the system user postgres.
// URL is as PostgreSQL's.
func PgBouncer(tb testing.TB, server *Server, mode string, extra ...string) *Server {
	tb.Helper()
	skipShort(tb, "pgbouncer")
	path, err := pgbouncerPath()
	if err != nil {
		missing(tb, "pgbouncer", err)
	}
	cred := unprivileged(tb, "postgres", "pgbouncer")
	behind := server.Addr()
	return launch(tb, kind{
		name:  "pgbouncer",
		url:   "postgres://postgres@%s/postgres?sslmode=disable",
		ports: 1,
		cred:  cred,
		ready: greetPostgres,
		prepare: func(data string) error {
			if cred == nil {
				return nil
			}
			return os.Chown(data, int(cred.Uid), int(cred.Gid))
		},
		command: func(data string, ports []*port) []string {
			config := filepath.Join(data, "pgbouncer.ini")
			text := pgbouncerConfig(behind, ports[0], mode, extra)
			// If this fails, the program reports a missing configuration.
			_ = os.WriteFile(config, []byte(text), 0o644)
			return []string{path, "--quiet", config}
		},
	}, nil)
}

// pgbouncerConfig accepts clients without a password, over TCP only, and the
// parameters that clients send when they connect.
func pgbouncerConfig(behind string, own *port, mode string, extra []string) string {
	host, port, _ := net.SplitHostPort(behind) // the address of our own server
	return fmt.Sprintf(`[databases]
* = host=%s port=%s user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = %s
ignore_startup_parameters = extra_float_digits
%s
`, host, port, own, mode, strings.Join(extra, "\n"))
}

// pgbouncerPath returns the program on the PATH, or Debian's, which is not on a user's
// PATH.
func pgbouncerPath() (string, error) {
	if path, err := exec.LookPath("pgbouncer"); err == nil {
		return path, nil
	}
	return exec.LookPath("/usr/sbin/pgbouncer")
}
