package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
)

var version = regexp.MustCompile(`\d+\.\d+(\.\d+)?`)

// servers returns the versions of the installed servers.
func servers(tb testing.TB) (all []string) {
	postgres, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	for _, s := range []struct {
		name  string
		paths []string
	}{
		{"Redis", []string{"redis-server"}}, {"etcd", []string{testbed.Binary(tb, "etcd")}},
		{"PostgreSQL", append(postgres, "postgres")}, {"MariaDB", []string{"mariadbd", "/usr/sbin/mariadbd"}},
	} {
		for _, path := range s.paths {
			if text, err := exec.Command(path, "--version").Output(); err == nil {
				all = append(all, s.name+" "+version.FindString(string(text)))
				break
			}
		}
	}
	if jars, _ := filepath.Glob("/usr/share/java/zookeeper-[0-9]*.jar"); len(jars) > 0 {
		all = append(all, "ZooKeeper "+version.FindString(filepath.Base(jars[0])))
	}
	return all
}

var required = regexp.MustCompile(`(?m)^\t(\S+ v\S+)$`)

// peers returns the libraries that go.mod requires, with their versions.
func peers(tb testing.TB) (all []string) {
	text, err := os.ReadFile("go.mod")
	ok(tb, err)
	for _, found := range required.FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(found[1], "/interlock") {
			all = append(all, strings.TrimPrefix(found[1], "github.com/"))
		}
	}
	return all
}
