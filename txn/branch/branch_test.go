package branch

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/internal/txntest"
)

func TestKey(t *testing.T) {
	seen := map[string]Call{}
	for _, c := range []Call{
		{Transaction: "a/b", Branch: "c", Operation: Do},
		{Transaction: "a", Branch: "b/c", Operation: Do},
		{Transaction: "a", Branch: "b", Step: "c", Operation: Do},
		{Transaction: "a", Branch: "b", Step: "c", Operation: Undo},
		{Transaction: "a", Branch: "b", Operation: Do},
		{Transaction: "a", Branch: "b%2Fc", Operation: Do},
	} {
		if other, twice := seen[c.Key()]; twice {
			t.Errorf("%+v and %+v have the key %s", c, other, c.Key())
		}
		seen[c.Key()] = c
	}
	c := Call{Transaction: "a", Branch: "b", Operation: Try, Attempt: 1, Epoch: 5}
	again := c
	again.Attempt, again.Epoch, again.Deadline = 2, 6, time.Unix(1, 0)
	txntest.Equal(t, "a repeated call has another key", c.Key(), again.Key())
	if got := From(With(t.Context(), c)); got != c {
		t.Errorf("%+v", got)
	}
	if got := From(t.Context()); got != (Call{}) {
		t.Errorf("%+v", got)
	}
}

func TestClassOf(t *testing.T) {
	no := errors.New("no")
	for _, c := range []struct {
		err   error
		class Class
		after time.Duration
		name  string
	}{
		{no, ClassUnknown, 0, "unknown"},
		{Fail(no), ClassFail, 0, "fail"},
		{fmt.Errorf("charge: %w", Retry(no)), ClassRetry, 0, "retry"},
		{Unknown(Fail(no)), ClassUnknown, 0, "unknown"},
		{Fail(Unknown(no)), ClassFail, 0, "fail"},
		{InProgress(time.Hour), ClassInProgress, time.Hour, "ongoing"},
		{fmt.Errorf("charge: %w", txntest.Busy(time.Minute)), ClassUnknown, time.Minute, "unknown"},
		{Retry(txntest.Busy(time.Minute)), ClassRetry, time.Minute, "retry"},
		{errors.Join(InProgress(time.Hour), txntest.Busy(time.Minute)), ClassInProgress, time.Hour, "ongoing"},
	} {
		if class, after := ClassOf(c.err); class != c.class || after != c.after || class.String() != c.name {
			t.Errorf("%v: %v after %v, want %v after %v", c.err, class, after, c.class, c.after)
		}
	}
	if Fail(nil) != nil || Retry(nil) != nil || Unknown(nil) != nil {
		t.Error("an error was made of none")
	}
	if !errors.Is(Fail(no), no) {
		t.Error("the error is lost")
	}
}
