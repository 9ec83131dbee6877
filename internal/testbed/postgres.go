package testbed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Postgres starts a PostgreSQL server with one superuser "postgres" without a
// password, and returns when it answers queries. It does not fsync, which a kill of
// the process does not need; "-c", "fsync=on" in extra, which is appended to its
// arguments, turns it on. PostgreSQL refuses to run as root, so a test that runs as
// root needs the system user postgres.
func Postgres(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	skipShort(tb, "postgres")
	bin, err := postgresBin()
	if err != nil {
		missing(tb, "postgres", err)
	}
	cred := unprivileged(tb, "postgres", "postgres")
	return launch(tb, kind{
		name:    "postgres",
		url:     "postgres://postgres@%s/postgres?sslmode=disable",
		ports:   1,
		cred:    cred,
		ready:   greetPostgres,
		prepare: func(data string) error { return copyCluster(bin, cred, data) },
		buried:  bury,
		command: func(data string, ports []*port) []string {
			argv := []string{filepath.Join(bin, "postgres"), "-D", data, "-p", ports[0].String()}
			return append(argv, postgresSettings...)
		},
	}, extra)
}

// No Unix socket, since its path must be short; shared memory for parallel queries
// in a file of the data directory, so that a killed server leaves none.
var postgresSettings = []string{
	"-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
	"-c", "dynamic_shared_memory_type=mmap", "-c", "shared_buffers=16MB",
	"-c", "max_connections=300", "-c", "max_prepared_transactions=100", "-c", "fsync=off",
}

// postgresBin returns the directory with initdb and postgres: that on the PATH, or
// Debian's newest, which is not on the PATH.
func postgresBin() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if len(found) == 0 {
		return "", fmt.Errorf("no initdb on the PATH or in /usr/lib/postgresql")
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })
	return filepath.Dir(newest), nil
}

// unprivileged returns the user for a server that refuses to run as root. That is the named one if
// we are root, else nil, which means our own.
func unprivileged(tb testing.TB, name, server string) *syscall.Credential {
	tb.Helper()
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		missing(tb, server, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(err, err2); err != nil {
		missing(tb, server, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

var cluster template

// copyCluster copies a new cluster to data.
func copyCluster(bin string, cred *syscall.Credential, data string) error {
	return cluster.copyTo(data, filepath.Join(bin, "postgres"), cred, func(data, _ string) *exec.Cmd {
		return exec.Command(filepath.Join(bin, "initdb"), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C",
			"--wal-segsize=4", "--no-sync", "--no-instructions", "-D", data)
	})
}

// run runs a program to its end. If it fails, the error includes its output.
func run(cmd *exec.Cmd, dir string, cred *syscall.Credential) error {
	output, err := os.CreateTemp(filepath.Dir(dir), "output-")
	if err != nil {
		return err
	}
	defer os.Remove(output.Name())
	defer output.Close()
	cmd.Stdout, cmd.Stderr = output, output
	c, err := spawn(cmd, dir, cred)
	if err != nil {
		return err
	}
	<-c.done
	if c.cmd.ProcessState.Success() {
		return nil
	}
	return fmt.Errorf("%s: %v%s", cmd.Path, c.cmd.ProcessState, tailOf(output.Name()))
}

// bury frees the System V segment by which PostgreSQL detects a second server on its
// data, and which survives a SIGKILL. Its id is the second number on line 7 of the
// pid file. bury deletes that file too: at a restart another process may have its
// process id, and PostgreSQL would not start.
func bury(data string) {
	file := filepath.Join(data, "postmaster.pid")
	text, err := os.ReadFile(file)
	if err != nil {
		return // an orderly end
	}
	if lines := strings.Split(string(text), "\n"); len(lines) > 6 {
		if ids := strings.Fields(lines[6]); len(ids) == 2 {
			exec.Command("ipcrm", "-m", ids[1]).Run() // fails if it is gone
		}
	}
	os.Remove(file)
}

// greetPostgres logs in with the protocol itself: the start-up message, then messages
// of a type byte and a length each, until ReadyForQuery. A server that is still
// recovering answers with an error.
func greetPostgres(addr string) error {
	conn, err := dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(startup("user", "postgres", "database", "postgres")); err != nil {
		return err
	}
	for {
		kind, body, err := readMessage(conn)
		switch {
		case err != nil:
			return err
		case kind == 'E':
			return fmt.Errorf("refused: %q", body)
		case kind == 'Z':
			_, err := conn.Write([]byte{'X', 0, 0, 0, 4}) // Terminate
			return err
		}
	}
}

func startup(parameters ...string) []byte {
	body := binary.BigEndian.AppendUint32(nil, 3<<16) // protocol 3.0
	for _, p := range parameters {
		body = append(append(body, p...), 0)
	}
	body = append(body, 0)
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(body)+4)), body...)
}

func readMessage(r io.Reader) (kind byte, body []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size < 4 || size > 1<<16 {
		return 0, nil, fmt.Errorf("a message of %d bytes is not PostgreSQL's", size)
	}
	body = make([]byte, size-4)
	_, err = io.ReadFull(r, body)
	return head[0], body, err
}
