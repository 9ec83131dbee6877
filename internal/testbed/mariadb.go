package testbed

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// MariaDB starts a MariaDB server with an empty database "test" and one
// superuser "root", who needs no password, and returns when it lets him in. It
// writes its log at each commit and does not fsync, which a killed process does
// not miss; extra is appended to its arguments. Since MariaDB refuses to run as
// root, a test that runs as root needs the system user mysql.
func MariaDB(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	skipShort(tb, "mariadb")
	bin, err := mariadbBin()
	if err != nil {
		missing(tb, "mariadb", err)
	}
	cred, err := unprivileged("mysql")
	if err != nil {
		missing(tb, "mariadb", err)
	}
	return launch(tb, kind{
		name:    "mariadb",
		url:     "root@tcp(%s)/test",
		ports:   1,
		cred:    cred,
		ready:   greetMariaDB,
		prepare: func(data string) error { return copyInstallation(bin, cred, data) },
		command: func(_ string, ports []*port) []string {
			// Files are named as seen from the data directory, in which the server
			// is started: a Unix socket has no room for a long path.
			argv := []string{bin, "--no-defaults", "--datadir=.", "--tmpdir=.", "--socket=socket", "--pid-file=pid",
				"--bind-address=127.0.0.1", "--port=" + ports[0].String()}
			return append(argv, mariadbSettings...)
		},
	}, extra)
}

// Names are not resolved, small files, and no fsync.
var mariadbSettings = []string{
	"--skip-name-resolve", "--max-connections=200", "--innodb-flush-method=nosync", "--innodb-fast-shutdown=2",
	"--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M", "--key-buffer-size=1M", "--aria-pagecache-buffer-size=1M",
}

// mariadbBin is the server: of the PATH, or Debian's, which may not be on it.
func mariadbBin() (string, error) {
	if path, err := exec.LookPath("mariadbd"); err == nil {
		return path, nil
	}
	const debian = "/usr/sbin/mariadbd"
	if !executable(debian) {
		return "", fmt.Errorf("no mariadbd on the PATH or in /usr/sbin")
	}
	return debian, nil
}

var installation struct {
	once sync.Once
	dir  string
	err  error
}

// copyInstallation fills data with a fresh installation. Making one takes a
// second, so it is done once per test process and its result is copied.
func copyInstallation(bin string, cred *syscall.Credential, data string) error {
	installation.once.Do(func() { installation.dir, installation.err = install(bin, cred) })
	if installation.err != nil {
		return installation.err
	}
	return run(exec.Command("cp", "-a", "--sparse=always", installation.dir+"/.", data), installation.dir, nil)
}

func install(bin string, cred *syscall.Credential) (string, error) {
	script, err := exec.LookPath("mariadb-install-db")
	if err != nil {
		return "", err
	}
	dir, err := place("mariadb-install")
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	// A directory in the data directory is a database.
	if err := os.MkdirAll(filepath.Join(data, "test"), 0o700); err != nil {
		return "", err
	}
	if cred != nil {
		for _, d := range []string{dir, data, filepath.Join(data, "test")} {
			if err := os.Chown(d, int(cred.Uid), int(cred.Gid)); err != nil {
				return "", err
			}
		}
	}
	cmd := exec.Command(script, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal",
		"--skip-test-db", "--skip-name-resolve", "--tmpdir="+dir, "--innodb-flush-method=nosync", "--innodb-log-file-size=4M")
	cmd.Dir = dir
	return data, run(cmd, dir, cred)
}
