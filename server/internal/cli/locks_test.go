package cli_test

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// stores are the lock services beside those of backends, and what their URL
// looks like.
var stores = map[string]func(*testing.T) (url string){
	"postgres":       func(t *testing.T) string { return testbed.Postgres(t).URL() },
	"postgres-table": func(t *testing.T) string { return tabled(testbed.Postgres(t).URL()) },
	"mysql":          func(t *testing.T) string { return mariadbURL(testbed.MariaDB(t)) },
	"mysql-table":    func(t *testing.T) string { return mariadbURL(testbed.MariaDB(t)) + "?mode=table" },
	"zookeeper":      func(t *testing.T) string { return "zookeeper://" + testbed.ZooKeeper(t).Addr() + "/locks" },
	"consul":         func(t *testing.T) string { return "consul://" + testbed.Consul(t).Addr() },
	"kube":           kubeURL,
}

func mariadbURL(s *testbed.Server) string { return "mariadb://root@" + s.Addr() + "/test" }

// tabled is a database's URL with the lease table for locks.
func tabled(url string) string { return url + "&mode=table" }

// kubeURL is a namespace of an API server.
func kubeURL(t *testing.T) string {
	return kubeConfigFor(t, testbed.SharedKube(t), testbed.KubeAdmin)
}

func kubeConfigFor(t *testing.T, k *testbed.Kube, token string) string {
	return kubeConfig(t, k.URL(), k.CA, token, k.Namespace)
}

// kubeConfig writes a kubeconfig and names it in a URL.
func kubeConfig(t *testing.T, server string, ca []byte, token, namespace string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "%s", certificate-authority-data: %s}}]
users: [{name: admin, user: {token: %s}}]
contexts: [{name: test, context: {cluster: test, user: admin, namespace: %s}}]
`, server, base64.StdEncoding.EncodeToString(ca), token, namespace)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "kube://?kubeconfig=" + file
}

// everywhere runs a test on every backend that has fenced locks.
func everywhere(t *testing.T, run func(t *testing.T, name, url string)) {
	for _, list := range []map[string]func(*testing.T) string{backends, stores} {
		for name, start := range list {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				program(t)
				run(t, name, start(t))
			})
		}
	}
}

func TestLocks(t *testing.T) {
	t.Parallel()
	everywhere(t, func(t *testing.T, name, url string) {
		scripts(t, "locks", map[string]string{"INTERLOCK_BACKEND": url, "KIND": name})
	})
}

// A cluster that cannot be reached is reported on one line, without the noise of its client.
func TestNoCluster(t *testing.T) {
	t.Parallel()
	program(t)
	url := kubeConfig(t, "http://127.0.0.1:1", nil, "s3cret", "default")
	_, said := run(t, 69, "locks", "ls", "--backend", url)
	if !strings.Contains(said, "cannot reach kube://") || strings.Count(said, "\n") != 1 || strings.Contains(said, "s3cret") {
		t.Errorf("it said %q", said)
	}
}

// Where no values are kept, a leader has nothing to keep them in.
func TestElectionsWithoutValues(t *testing.T) {
	t.Parallel()
	program(t)
	url := mariadbURL(testbed.MariaDB(t))
	if _, message := run(t, 78, "elect", "billing", "--backend", url, "--", "true"); !strings.Contains(message, "--accept-weakness") {
		t.Error(message) // a session does not exclude others over a partition
	}
	led, _ := run(t, 0, "elect", "billing", "--backend", url, "--accept-weakness", "--", "echo", "leads")
	if led != "leads\n" {
		t.Errorf("it printed %q", led)
	}
	run(t, 0, "elect", "observe", "billing", "--once", "--backend", url)
}
