package idempotency_test

import (
	"context"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/idempotency"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// TestKeysQuotedAndBare: the draft's quoted form and the bare form are the same key. A value that
// could be two keys, or none, is rejected.
func TestKeysQuotedAndBare(t *testing.T) {
	long := strings.Repeat("k", 255)
	for header, want := range map[string]string{
		`"8e03978e-40d5-43dd-bc93-6894a57f9324"`: "8e03978e-40d5-43dd-bc93-6894a57f9324",
		`8e03978e-40d5-43dd-bc93-6894a57f9324`:   "8e03978e-40d5-43dd-bc93-6894a57f9324",
		"  \"a b\"\t":                            "a b", `"a,b;c"`: "a,b;c", `"a\"b\\c"`: `a"b\c`, `"a";version=1`: "a", `a/b:c=+.`: "a/b:c=+.",
		long: long, `"` + long + `"`: long,
		``: "!", `""`: "!", `"a`: "!", `a"`: "!", `a b`: "!", `a,b`: "!", `"a","b"`: "!", `"a" b`: "!", `"a\b"`: "!", `"a\`: "!",
		"\"a\x00\"": "!", "é": "!", "\"é\"": "!", "a\x7f": "!", long + "k": "!", `"` + long + `k"`: "!", `a\b`: "!", `a;b`: "!",
	} {
		got, err := idempotency.ParseKey([]string{header})
		if want == "!" && (err == nil || got != "") || want != "!" && (err != nil || got != want) {
			t.Errorf("%q: %q, %v; want %q", header, got, err, want)
		}
	}
	if key, err := idempotency.ParseKey(nil); key != "" || err != nil {
		t.Errorf("no header: %q, %v", key, err)
	}
	if _, err := idempotency.ParseKey([]string{"a", "a"}); err == nil {
		t.Error("two headers are taken")
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{`"a"`, `a`, `"a\"`, `"";b`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := idempotency.ParseKey([]string{s})
		if (err == nil) == (key == "") || len(key) > 255 {
			t.Fatalf("%q: %q, %v", s, key, err)
		}
		quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
		if again, err2 := idempotency.ParseKey([]string{quoted}); err == nil && (err2 != nil || again != key) {
			t.Fatalf("%q: %q, quoted %q is %q, %v", s, key, quoted, again, err2)
		}
	})
}

// overheard records the statements that reach a database.
type overheard struct {
	driver.Beginner[tx]
	said []string
}

func (o *overheard) Begin(ctx context.Context) (driver.Tx[tx], error) {
	t, err := o.Beginner.Begin(ctx)
	return overheardTx{t, o}, err
}

type overheardTx struct {
	driver.Tx[tx]
	o *overheard
}

func (t overheardTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	t.o.said = append(t.o.said, query)
	return t.Tx.Exec(ctx, query, args...)
}

func (t overheardTx) Query(ctx context.Context, query string, args []any, each func(func(...any) error) error) error {
	t.o.said = append(t.o.said, query)
	return t.Tx.Query(ctx, query, args, each)
}

// TestPassesReadWhatIsDue: a pass of a reaper or of a completer reads only the due part of
// its index.
func TestPassesReadWhatIsDue(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), nil)
		o := &overheard{Beginner: w.DB}
		records := idempotency.NewSQL[tx](o, idempotency.Table{})
		_, err := records.Remove(t.Context(), 10)
		ok(t, err)
		_, err = records.Unfinished(t.Context(), anyUnfinished)
		ok(t, err)
		values := strings.NewReplacer("$1", "10", "$2", "10")
		for _, q := range o.said {
			plan := ""
			w.Do(t, func(ctx context.Context, db driver.SQL) error {
				if _, err := db.Exec(ctx, `set local enable_seqscan = off`); err != nil {
					return err
				}
				return db.Query(ctx, "explain "+values.Replace(q), nil, func(scan func(...any) error) error {
					var line string
					err := scan(&line)
					plan += line + "\n"
					return err
				})
			})
			if !strings.Contains(plan, "Index Cond: (keep_until <=") && !strings.Contains(plan, "Index Cond: (lease_until <=") {
				t.Errorf("%s\n%s", q, plan)
			}
		}
		if len(o.said) != 2 {
			t.Errorf("%d statements", len(o.said))
		}
	}, databases.Pgx)
}
