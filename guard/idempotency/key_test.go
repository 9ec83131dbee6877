package idempotency_test

import (
	"strings"
	"testing"

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

// TestPassesReadWhatIsDue: a pass of a reaper or of a completer reads only the due part of
// its index.
func TestPassesReadWhatIsDue(t *testing.T) {
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		w := newWorld(t, open(t), nil)
		p := &databases.Planned{BeginnerAt: w.DB}
		records := idempotency.NewSQL[tx](p, idempotency.Table{})
		_, err := records.Remove(t.Context(), 10)
		ok(t, err)
		_, err = records.Unfinished(t.Context(), anyUnfinished)
		ok(t, err)
		p.Want(t, "keep_until", "lease_until")
	}, databases.Pgx)
}
