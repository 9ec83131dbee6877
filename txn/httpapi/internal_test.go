package httpapi

import (
	"net/http/httptest"
	"testing"
	"time"
)

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"30s", "-1s", "", "1", "9223372036854775807ns", "2562048h"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var d duration
		if err := d.UnmarshalText(text); err != nil {
			return
		}
		back, err := d.MarshalText()
		var again duration
		if err == nil {
			err = again.UnmarshalText(back)
		}
		if err != nil || again != d || d < 0 {
			t.Fatalf("%q is %v, and written again %v, %v", text, time.Duration(d), time.Duration(again), err)
		}
	})
}

func FuzzWaitParameter(f *testing.F) {
	for _, s := range []string{"wait=1m", "wait=-1s", "wait=1s&wait=2s", "x=y", "%zz", ";", "wait=11m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, query string) {
		r := httptest.NewRequest("GET", "/", nil)
		r.URL.RawQuery = query
		if d, err := waiting(r); err == nil && (d < 0 || d > 10*time.Minute) {
			t.Fatalf("%q is %v", query, d)
		}
	})
}

// Patience sets the bound for the arrival of a request.
func Patience(s *Service, d time.Duration) { s.patience = d }
