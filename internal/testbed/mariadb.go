package testbed

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// MariaDB starts a MariaDB server with an empty database "test" and one superuser
// "root" without a password, and returns when root can log in. It writes its log at
// each commit and does not fsync, which a kill of the process does not need. extra
// is appended to its arguments. MariaDB refuses to run as root, so a test that runs
// as root needs the system user mysql.
func MariaDB(tb testing.TB, extra ...string) *Server {
	tb.Helper()
	skipShort(tb, "mariadb")
	bin, err := mariadbBin()
	if err != nil {
		missing(tb, "mariadb", err)
	}
	cred := unprivileged(tb, "mysql", "mariadb")
	return launch(tb, kind{
		name:    "mariadb",
		url:     "root@tcp(%s)/test",
		ports:   1,
		cred:    cred,
		ready:   greetMariaDB,
		prepare: func(data string) error { return copyInstallation(bin, cred, data) },
		command: func(_ string, ports []*port) []string {
			// Paths are relative to the data directory, in which the server starts:
			// the path of a Unix socket must be short.
			argv := []string{bin, "--no-defaults", "--datadir=.", "--tmpdir=.", "--socket=socket", "--pid-file=pid",
				"--bind-address=127.0.0.1", "--port=" + ports[0].String()}
			return append(argv, mariadbSettings...)
		},
	}, extra)
}

// No name resolution, small files, and no fsync.
var mariadbSettings = []string{
	"--skip-name-resolve", "--max-connections=200", "--innodb-flush-method=nosync", "--innodb-fast-shutdown=2",
	"--innodb-log-file-size=4M", "--innodb-buffer-pool-size=16M", "--key-buffer-size=1M", "--aria-pagecache-buffer-size=1M",
}

// mariadbBin returns the server on the PATH, or Debian's, which may not be on it.
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

var installation template

// copyInstallation fills data with a fresh installation, and the database "test".
func copyInstallation(bin string, cred *syscall.Credential, data string) error {
	script, err := exec.LookPath("mariadb-install-db")
	if err != nil {
		return err
	}
	err = installation.copyTo(data, bin, cred, func(data, scratch string) *exec.Cmd {
		return exec.Command(script, "--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db",
			"--skip-name-resolve", "--innodb-flush-method=nosync", "--innodb-log-file-size=4M", "--datadir="+data, "--tmpdir="+scratch)
	})
	if err != nil {
		return err
	}
	// A directory in the data directory is a database.
	test := filepath.Join(data, "test")
	if err := os.Mkdir(test, 0o700); err != nil || cred == nil {
		return err
	}
	return os.Chown(test, int(cred.Uid), int(cred.Gid))
}

// greetMariaDB logs in with the protocol itself. The server speaks first, and answers
// a login without a password by a packet that begins with 0. To hang up earlier would
// count as an attack.
func greetMariaDB(addr string) error {
	conn, err := dial(addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	hello, err := readPacket(conn)
	if err != nil {
		return err
	}
	if len(hello) == 0 || hello[0] != 10 {
		return fmt.Errorf("refused: %q", hello)
	}
	if _, err := conn.Write(packet(1, login("root"))); err != nil {
		return err
	}
	answer, err := readPacket(conn)
	if err != nil {
		return err
	}
	if len(answer) == 0 || answer[0] != 0 {
		return fmt.Errorf("refused: %q", answer)
	}
	_, err = conn.Write(packet(0, []byte{1})) // COM_QUIT
	return err
}

// login returns a login without a password, in the protocol of version 4.1.
func login(user string) []byte {
	const protocol41, secure = 0x200, 0x8000
	body := binary.LittleEndian.AppendUint32(nil, protocol41|secure)
	body = binary.LittleEndian.AppendUint32(body, 1<<24) // the longest packet
	body = append(body, 45)                              // utf8mb4_general_ci
	body = append(body, make([]byte, 23)...)
	body = append(append(body, user...), 0)
	return append(body, 0) // an empty password
}

// packet prepends length and number to body.
func packet(number byte, body []byte) []byte {
	n := len(body)
	return append([]byte{byte(n), byte(n >> 8), byte(n >> 16), number}, body...)
}

func readPacket(r io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	body := make([]byte, int(head[0])|int(head[1])<<8|int(head[2])<<16)
	_, err := io.ReadFull(r, body)
	return body, err
}
