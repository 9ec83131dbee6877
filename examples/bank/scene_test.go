package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// startLocks starts a lock system for one story.
func startLocks(t *testing.T, backend string) string {
	if backend == "etcd" {
		return "etcd://" + testbed.Etcd(t).Addr() + "?ttl=" + ttl.String()
	}
	return "redis://" + testbed.Redis(t).Addr() + "?ttl=" + ttl.String()
}

// schema creates a schema for one story in the database, with the account.
func schema(t *testing.T, url, name string) string {
	query(t, url, "CREATE SCHEMA "+name)
	return url + "&search_path=" + name
}

// historyDir returns STORY_DIR/name if that is set, without the histories of an earlier
// run; otherwise a temporary directory.
func historyDir(t *testing.T, name string) string {
	kept := os.Getenv("STORY_DIR")
	if kept == "" {
		return t.TempDir()
	}
	dir := filepath.Join(kept, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"A.jsonl", "B.jsonl", "story.jsonl"} {
		if err := os.Remove(filepath.Join(dir, f)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	return dir
}

// query runs one statement; into receives the columns of its only row.
func query(t *testing.T, url, sql string, into ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	db, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(ctx)
	if into == nil {
		_, err = db.Exec(ctx, sql)
	} else {
		err = db.QueryRow(ctx, sql).Scan(into...)
	}
	if err != nil {
		t.Fatal(err)
	}
}
