package saga

import (
	"context"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/txn/branch"
)

// TestChoices: what is chosen for a step is its own, and what was not chosen is reported; the
// step that it was made of, and the definition that it is in, stay as they are.
func TestChoices(t *testing.T) {
	plain := Step("a", func(context.Context, string) (string, error) { return "", nil })
	if s := plain.s.resolved(); s.timeout != 30*time.Second || s.longest != 0 || s.target != "a" || s.policy != (Policy{}).resolve() || len(s.by) != 0 {
		t.Errorf("by default: %+v", s)
	}
	one, two := Policy{Attempts: 1, First: time.Hour}, Policy{Attempts: 2}
	chosen := plain.Timeout(time.Minute).MaxTime(time.Second).Target("bank").Retry(one).RetryOn(branch.ClassRetry, two)
	s := chosen.s.resolved()
	if s.timeout != time.Second || s.longest != time.Second || s.target != "bank" || s.policy != one.resolve() || s.by[branch.ClassRetry] != two.resolve() {
		t.Errorf("as chosen: %+v", s)
	}
	if s := plain.MaxTime(time.Hour).s.resolved(); s.timeout != 30*time.Second {
		t.Errorf("a bound of all beats prolongs one: %v", s.timeout)
	}
	other := chosen.RetryOn(branch.ClassRetry, one).RetryOn(branch.ClassUnknown, one)
	if by := chosen.s.by; len(by) != 1 || by[branch.ClassRetry] != two {
		t.Errorf("changed by a choice for another, or by its use: %+v", by)
	}
	if by := other.s.by; len(by) != 2 || by[branch.ClassRetry] != one || plain.s.by != nil {
		t.Errorf("%+v", by)
	}
}
