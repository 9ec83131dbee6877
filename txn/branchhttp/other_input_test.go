package branchhttp_test

import (
	"context"
	"errors"
	"net/http"
	"testing"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/txn/branch"
	"github.com/interlock-dev/interlock/txn/branchhttp"
)

// TestOtherInput: the answer that a participant has had another input arrives as such; a
// status alone, or another value, does not mean it, nor does the header change what is
// known otherwise.
func TestOtherInput(t *testing.T) {
	url := participant(t, branchhttp.Handler(func(context.Context, []byte) ([]byte, error) { return nil, branch.ErrOtherInput }))
	_, err := caller(t).Post(t.Context(), url, a(branch.Do), []byte(`1`))
	var answer *branchhttp.AnswerError
	if class, _ := branch.ClassOf(err); !errors.Is(err, branch.ErrOtherInput) || class != branch.ClassUnknown || interlock.Kind(err) != interlock.Uncertain ||
		!errors.As(err, &answer) || answer.Status != http.StatusUnprocessableEntity {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		status int
		header string
		class  branch.Class
	}{{422, "", branch.ClassUnknown}, {422, "42", branch.ClassUnknown}, {409, "other", branch.ClassFail}, {425, "other", branch.ClassInProgress}} {
		url := participant(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(branchhttp.HeaderInput, c.header)
			w.WriteHeader(c.status)
		}))
		_, err := caller(t).Post(t.Context(), url, a(branch.Do), []byte(`1`))
		if class, _ := branch.ClassOf(err); class != c.class || errors.Is(err, branch.ErrOtherInput) {
			t.Errorf("%d %q: %v", c.status, c.header, err)
		}
	}
}
