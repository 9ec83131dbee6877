package partition

import (
	"testing"
)

func FuzzLayoutRecord(f *testing.F) {
	for _, s := range []string{`{}`, `{"generation":1,"layout":{}}`, `{"generation":-1}`, `{"generation":2,"layout":{},"next":{}}`, `[`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := decode(data)
		if err != nil {
			return
		}
		if again, err := decode(r.encode()); err != nil || string(again.encode()) != string(r.encode()) {
			t.Fatalf("%q is %+v, and written again %+v, %v", data, r, again, err)
		}
	})
}
