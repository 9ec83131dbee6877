package crash_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) {
	crash.Main(m, map[string]crash.Role{"writer": write, "filer": file, "completer": complete})
}

// write commits two rows in separate transactions, unless they exist.
func write(ctx context.Context, at *crash.Points, args []string) error {
	db, closed, err := databases.Connect(ctx, args[0], args[1])
	if err != nil {
		return err
	}
	defer closed()
	for id := range 2 {
		tx, err := crash.Beginner[driver.SQL](db, at).Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(ctx) }()
		n, err := databases.Value[int64](ctx, tx.Native(), fmt.Sprintf(`select count(*) from row_of where id = %d`, id))
		if err == nil && n == 0 {
			_, err = tx.Exec(ctx, fmt.Sprintf(`insert into row_of values (%d)`, id))
		}
		if err == nil {
			err = tx.Commit(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// TestOnce checks that every point of the role is reached, and that uncommitted rows
// are lost.
func TestOnce(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		points := crash.Once(t, "writer", func(tb testing.TB) crash.Scene {
			db := open(tb)
			db.Exec(tb, `create table row_of (id bigint)`)
			return crash.Scene{Args: []string{db.Client, db.URL}, Want: func(tb testing.TB) {
				tb.Helper()
				if n := databases.One[int64](tb, db, `select count(*) from row_of`); n != 2 {
					tb.Errorf("%d rows", n)
				}
			}}
		})
		// Begin, a query, an insert, before COMMIT and after it; twice.
		if points != 10 {
			t.Errorf("%d points", points)
		}
	}, databases.Pgx)
}

// file appends a letter at each of three points.
func file(_ context.Context, at *crash.Points, args []string) error {
	for _, letter := range "abc" {
		at.Pass()
		f, err := os.OpenFile(args[0], os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if _, err := f.WriteString(string(letter)); err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	return nil
}

// TestTwice checks that each pair of points occurs, and no other.
func TestTwice(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]bool{}
	t.Run("filer", func(t *testing.T) {
		crash.Twice(t, "filer", func(tb testing.TB) crash.Scene {
			name := filepath.Join(tb.TempDir(), "letters")
			return crash.Scene{Args: []string{name}, Want: func(tb testing.TB) {
				tb.Helper()
				text, err := os.ReadFile(name)
				if err != nil {
					tb.Fatal(err)
				}
				mu.Lock()
				defer mu.Unlock()
				seen[string(text)] = true
			}}
		})
	})
	for _, first := range []string{"", "a", "ab"} {
		for _, second := range []string{"", "a", "ab"} {
			if w := first + second + "abc"; !seen[w] {
				t.Errorf("no run left %q: %v", w, seen)
			}
		}
	}
	for s := range seen {
		if !strings.HasSuffix(s, "abc") {
			t.Errorf("a run left %q", s)
		}
	}
}

// TestPairs checks that the sample has the requested size and is the same each time.
func TestPairs(t *testing.T) {
	if crash.Full() {
		t.Skip("all of them are TestTwice")
	}
	var mu sync.Mutex
	var seen []string
	t.Run("filer", func(t *testing.T) {
		crash.Pairs(t, "filer", 2, func(tb testing.TB) crash.Scene {
			name := filepath.Join(tb.TempDir(), "letters")
			return crash.Scene{Args: []string{name}, Want: func(tb testing.TB) {
				tb.Helper()
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, read(tb, name))
			}}
		})
	})
	slices.Sort(seen)
	// A complete run, and two in which one of the killed runs had written a letter.
	if want := []string{"aabc", "aabc", "abc"}; !slices.Equal(seen, want) {
		t.Errorf("left %v, want %v", seen, want)
	}
}

// complete appends the missing ones of three letters.
func complete(_ context.Context, at *crash.Points, args []string) error {
	for _, letter := range "abc" {
		at.Pass()
		text, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		if strings.ContainsRune(string(text), letter) {
			continue
		}
		if err := os.WriteFile(args[0], []byte(string(text)+string(letter)), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// TestWalk checks that a process runs from point to point.
func TestWalk(t *testing.T) {
	name := empty(t)
	w := crash.Lead(t, "completer", name)
	for point, want := range []string{"", "a", "ab"} {
		if !w.Next() {
			t.Fatalf("it ended before point %d", point+1)
		}
		w.Pause()
		if got := read(t, name); got != want {
			t.Errorf("at point %d there is %q, want %q", point+1, got, want)
		}
		w.Resume()
	}
	if w.Next() {
		t.Error("there is a fourth point")
	}
	if got := read(t, name); got != "abc" {
		t.Errorf("at the end there is %q", got)
	}
}

// TestAsleep checks that at each point the heir finishes, and the woken process adds nothing.
func TestAsleep(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	t.Run("completer", func(t *testing.T) {
		crash.Asleep(t, "completer", "completer", 3, func(tb testing.TB) crash.Sleeper {
			name := empty(tb)
			left := func(tb testing.TB) string { tb.Helper(); return read(tb, name) }
			return crash.Sleeper{Left: left, Scene: crash.Scene{Args: []string{name}, Want: func(tb testing.TB) {
				tb.Helper()
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, left(tb))
			}}}
		})
	})
	if len(seen) != 4 || slices.ContainsFunc(seen, func(s string) bool { return s != "abc" }) {
		t.Errorf("left %v", seen)
	}
}

func empty(tb testing.TB) (name string) {
	tb.Helper()
	name = filepath.Join(tb.TempDir(), "letters")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	return name
}

func read(tb testing.TB, name string) string {
	tb.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}
