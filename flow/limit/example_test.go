package limit_test

import (
	"context"
	"fmt"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/flow/limit"
)

func Example() {
	ctx := context.Background()
	limits, err := limit.New(memory.NewLimiter(), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		d, err := limits.Allow(ctx, "user/42", limit.PerHour(2))
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter > 0, err)
	}
	// Output:
	// true 1 false <nil>
	// true 0 false <nil>
	// false 0 true <nil>
}
