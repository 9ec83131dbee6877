package interlock_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// consumer is what a user of the Redis lock writes.
const consumer = `package main

import (
	"context"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/lock"
	"github.com/interlock-dev/interlock/driver/redis"
	"github.com/interlock-dev/interlock/guard/fence"
)

func main() {
	ctx := context.Background()
	client, err := redis.Dial("redis://127.0.0.1:6379")
	if err != nil {
		panic(err)
	}
	d, err := redis.Open(ctx, client, nil)
	if err != nil {
		panic(err)
	}
	locks, err := lock.NewFenced(d, nil)
	if err != nil {
		panic(err)
	}
	data := fence.NewStore(redis.NewFence(client))
	err = locks.Do(ctx, "account/42", func(ctx context.Context, c interlock.Claim) error {
		return data.Enter(ctx, c, "account/42")
	})
	if err != nil {
		panic(err)
	}
}
`

// heavy are dependencies that a user of the Redis lock must not get.
var heavy = []string{"google.golang.org/grpc", "k8s.io/", "go.etcd.io/", "go.opentelemetry.io/"}

// A user's module that needs the root module and the Redis driver can be tidied
// and built, and gets nothing heavy.
func TestConsumer(t *testing.T) {
	if testing.Short() {
		t.Skip("tidies a module, which may need the network")
	}
	leaveWorkspace(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "go.mod"), `module example.org/consumer

go 1.26.0

require github.com/interlock-dev/interlock v0.0.0

replace github.com/interlock-dev/interlock => `+here(t)+"\n")
	write(t, filepath.Join(dir, "main.go"), consumer)
	command(t, dir, "go", "mod", "tidy")
	command(t, dir, "go", "build", "-o", os.DevNull, ".")
	for _, list := range [][]string{{"list", "-deps", "."}, {"list", "-m", "all"}} {
		out := command(t, dir, "go", list...)
		if !strings.Contains(out, "rueidis") {
			t.Errorf("go %v does not even name the Redis client:\n%s", list, out)
		}
		for _, name := range heavy {
			if strings.Contains(out, name) {
				t.Errorf("go %v names %s", list, name)
			}
		}
	}
}

var fenced = regexp.MustCompile("(?ms)^```go\n(.*?)^```")

// Every Go block of the README is a whole file, and compiles against what the
// examples may use.
func TestReadmeCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("runs the compiler")
	}
	text, err := os.ReadFile("README.md")
	if os.IsNotExist(err) {
		t.Skip("no README.md")
	}
	if err != nil {
		t.Fatal(err)
	}
	blocks := fenced.FindAllSubmatch(text, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md shows no Go")
	}
	dir := copyOfExamples(t)
	for i, block := range blocks {
		folder := filepath.Join(dir, fmt.Sprintf("block%d", i+1))
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(folder, "main.go"), string(block[1]))
		command(t, folder, "go", "vet", ".")
	}
}

// copyOfExamples is an empty module with the requirements of our examples.
func copyOfExamples(t *testing.T) string {
	t.Helper()
	leaveWorkspace(t)
	dir := t.TempDir()
	for _, file := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join("examples", file))
		if err != nil {
			t.Fatal(err)
		}
		// Replacements are relative to the module; go.sum has no arrows.
		moved := strings.ReplaceAll(string(text), "=> ../", "=> "+here(t)+"/")
		write(t, filepath.Join(dir, file), moved)
	}
	return dir
}

// leaveWorkspace makes go behave as in a module of the user's own.
func leaveWorkspace(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "-mod=mod")
}

func here(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// command runs a program and returns its standard output.
func command(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, &complaints)
	}
	return string(out)
}
