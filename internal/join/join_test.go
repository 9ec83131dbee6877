package join_test

import (
	"context"
	"errors"
	"testing"

	"github.com/interlock-dev/interlock/internal/join"
)

func TestContextEndsWithEither(t *testing.T) {
	cause := errors.New("cause")
	for name, which := range map[string]int{"the first": 0, "the other": 1} {
		first, endFirst := context.WithCancelCause(t.Context())
		other, endOther := context.WithCancelCause(t.Context())
		joined, stop := join.Context(first, other)
		if joined.Err() != nil {
			t.Fatal("it has ended before either")
		}
		[]context.CancelCauseFunc{endFirst, endOther}[which](cause)
		<-joined.Done()
		if context.Cause(joined) != cause {
			t.Errorf("%s ended, and the cause is %v", name, context.Cause(joined))
		}
		stop()
		endFirst(nil)
		endOther(nil)
	}
}

func TestStopLetsGo(t *testing.T) {
	other, end := context.WithCancelCause(t.Context())
	joined, stop := join.Context(t.Context(), other)
	stop()
	end(errors.New("too late"))
	if err := context.Cause(joined); err != context.Canceled {
		t.Errorf("the cause is %v", err)
	}
}
