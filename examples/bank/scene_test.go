package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/interlock-dev/interlock/internal/testbed"
)

// startLocks starts a lock system of this story's own.
func startLocks(t *testing.T, backend string) string {
	if backend == "etcd" {
		return "etcd://" + testbed.Etcd(t).Addr()
	}
	return "redis://" + testbed.Redis(t).Addr()
}

// schema makes a place of this story's own in the database, with the account.
func schema(t *testing.T, url, name string) string {
	query(t, url, "CREATE SCHEMA "+name)
	return url + "&search_path=" + name
}

// historyDir is STORY_DIR/name if that is set, emptied of an earlier run's
// histories; otherwise a directory that goes away.
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

// query runs one statement; into takes the columns of its only row.
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
