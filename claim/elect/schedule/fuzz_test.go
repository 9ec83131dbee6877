package schedule

import (
	"testing"
)

func FuzzState(f *testing.F) {
	for _, s := range []string{`{"tick":"2026-01-02T03:04:05Z"}`, `{"tick":"2026-01-02T03:04:05.5+01:00","open":true}`, `{}`, `null`, ``} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decode(data)
		if err != nil {
			return
		}
		if again, err := decode(s.encode()); err != nil || !again.Tick.Equal(s.Tick) || again.Open != s.Open {
			t.Fatalf("%q is %+v, and written again %+v, %v", data, s, again, err)
		}
	})
}
