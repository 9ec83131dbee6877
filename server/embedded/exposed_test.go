package embedded_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/server/embedded"
)

// TestBrowsersAreKeptOut checks that a browser page on the same machine cannot read the node.
// Neither another origin nor a name that resolves to loopback helps.
func TestBrowsersAreKeptOut(t *testing.T) {
	t.Parallel()
	s := start(t, t.TempDir())
	ask := func(host, origin string) *http.Response {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Endpoint()+"/version", http.NoBody)
		testbed.OK(t, err)
		r.Close = true
		if r.Host = host; origin != "" {
			r.Header.Set("Origin", origin)
		}
		answer, err := http.DefaultClient.Do(r)
		testbed.OK(t, err)
		_, _ = io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		return answer
	}
	_, port, _ := strings.Cut(s.Endpoint(), ":")
	for _, host := range []string{"127.0.0.1:" + port, "localhost:" + port} {
		if answer := ask(host, "http://evil.example"); answer.StatusCode != http.StatusOK || answer.Header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %s, open to %q", host, answer.Status, answer.Header.Get("Access-Control-Allow-Origin"))
		}
	}
	if answer := ask("evil.example:"+port, ""); answer.StatusCode == http.StatusOK {
		t.Errorf("a foreign host name: %s", answer.Status)
	}
}

func TestDataIsPrivate(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	testbed.OK(t, os.MkdirAll(dir, 0o755))
	testbed.OK(t, os.WriteFile(embedded.LogFile(dir), nil, 0o644))
	start(t, dir)
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := os.Lstat(path)
		if err == nil && (path == dir || filepath.Dir(path) == dir) && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s is open to others: %v", path, info.Mode())
		}
		return err
	})
	testbed.OK(t, err)
}

// TestLinksAreNotFollowed: a user that can create a link must not choose the written
// file.
func TestLinksAreNotFollowed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"etcd.log", "interlock.lock", "member", "."} {
		parent := t.TempDir()
		dir, victim := filepath.Join(parent, "data"), filepath.Join(parent, "victim")
		link := filepath.Join(dir, name)
		if name == "." {
			link = dir
			testbed.OK(t, os.Mkdir(victim, 0o700))
		} else if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		} else if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
		testbed.OK(t, os.Symlink(victim, link))
		s, err := embedded.Start(t.Context(), embedded.Options{DataDir: dir, Listen: anyPort})
		if err == nil {
			s.Close()
			t.Errorf("%s: the link was followed", name)
		} else if !strings.Contains(err.Error(), "symbolic link") {
			t.Errorf("%s: %v", name, err)
		}
		if text, _ := os.ReadFile(victim); name != "." && string(text) != "precious" {
			t.Errorf("%s: the file behind the link is %q now", name, text)
		}
	}
}
