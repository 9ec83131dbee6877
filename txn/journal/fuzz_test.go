package journal_test

import (
	"bytes"
	"testing"

	"github.com/interlock-dev/interlock/txn/journal"
)

func FuzzVerify(f *testing.F) {
	for _, s := range []string{"", "{}\n", `{"interlock_audit":1,"chain":""}` + "\n", `{"interlock_audit":1}` + "\n" + `{"end":true}` + "\n", "\x00"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if n, err := journal.Verify(bytes.NewReader(text)); n < 0 || err == nil && len(text) == 0 {
			t.Fatalf("%q: %d records, %v", text, n, err)
		}
	})
}
