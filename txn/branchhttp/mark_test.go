package branchhttp_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// TestMarkArrivesAsItWas, with as many exceptions as a coordinator sends, as long as they
// can be; and its answer comes back.
func TestMarkArrivesAsItWas(t *testing.T) {
	var got branchhttp.Mark
	var fails error
	url := participant(t, branchhttp.ForgetHandler(func(_ context.Context, m branchhttp.Mark) (int, error) {
		got = m
		return 7, fails
	}))
	var many []string
	for range 256 {
		many = append(many, strings.Repeat("<", 200))
	}
	for _, except := range [][]string{nil, {"order/42", "ä\u2028\n"}, many} {
		m := branchhttp.Mark{Before: time.UnixMilli(1700000000000), Except: except}
		n, err := caller(t).Forget(t.Context(), url, m)
		if err != nil || n != 7 || !got.Before.Equal(m.Before) || !slices.Equal(got.Except, except) {
			t.Errorf("%d, %v; %+v arrived", n, err, got)
		}
	}
	fails = errors.New("no database")
	_, err := caller(t).Forget(t.Context(), url, branchhttp.Mark{Before: time.UnixMilli(1)})
	var answer *branchhttp.AnswerError
	if !errors.As(err, &answer) || answer.Status != 500 || answer.Body != "no database" || interlock.Kind(err) != interlock.Uncertain {
		t.Errorf("%v", err)
	}
	_, err = caller(t).Forget(t.Context(), "http://u:p@localhost/", branchhttp.Mark{Before: time.UnixMilli(1)})
	if interlock.Kind(err) != interlock.Bug || strings.Contains(err.Error(), "u:p") {
		t.Errorf("%v", err)
	}
	silent := participant(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(branchhttp.HeaderOperation) != branchhttp.MarkOperation {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	if n, err := caller(t).Forget(t.Context(), silent, branchhttp.Mark{Before: time.UnixMilli(1)}); n != 0 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

// TestWhatIsNoMark has nothing forgotten.
func TestWhatIsNoMark(t *testing.T) {
	url := participant(t, branchhttp.ForgetHandler(func(context.Context, branchhttp.Mark) (int, error) { t.Error("forgotten"); return 0, nil }))
	client := caller(t).Client
	for body, want := range map[string]int{
		"": 400, "{}": 400, `{"before":1}`: 400, `{"before":0,"except":[]}`: 400, `{"before":-5,"except":[]}`: 400, `{"before":1e300,"except":[]}`: 400,
		`{"before":1,"except":[]} {}`: 400, `{"before":1,"except":[],"only":["a"]}`: 400, `{"before":1,"except":null}`: 400, `{"before":1,"except":[""]}`: 400,
		`{"before":1,"except":["\u0000"]}`: 400, `{"before":1,"except":["` + strings.Repeat("x", 201) + `"]}`: 400,
		`{"before":1,"except":[` + strings.Repeat(" ", branchhttp.MaxMark) + `]}`: 413,
	} {
		answer, err := client.Post(url, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%.60s: %d, want %d", body, answer.StatusCode, want)
		}
	}
	answer, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body.Close(); answer.StatusCode != 405 || answer.Header.Get("Allow") != "POST" {
		t.Errorf("%v", answer)
	}
}
