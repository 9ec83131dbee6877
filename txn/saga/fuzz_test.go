package saga

import (
	"bytes"
	"testing"

	"github.com/interlock-dev/interlock/txn/journal"
)

// Records are lines of a kind, a step and JSON, in any order.
func FuzzReplay(f *testing.F) {
	for _, s := range []string{
		"begin\x00\x00{\"input\":1}\nsent\x00a\x00{}\ndone\x00a\x00{\"output\":1}\nend\x00\x00{}",
		"begin\x00\x00{}\ndecide\x00\x00{}\nskip\x00a\x00{}", "wait\x00a\x00{}", "begin\x00\x00null\nbegin\x00\x00{}", "",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var entries []journal.Entry
		for i, record := range bytes.Split(text, []byte("\n")) {
			if parts := bytes.SplitN(record, []byte{0}, 3); len(parts) == 3 {
				entries = append(entries, journal.Entry{Kind: string(parts[0]), Step: string(parts[1]), Data: parts[2], Position: int64(i + 1)})
			}
		}
		if moments, err := Replay(entries); err == nil && len(moments) != len(entries) {
			t.Fatalf("%d records are %d moments", len(entries), len(moments))
		}
	})
}
