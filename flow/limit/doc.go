// Package limit limits the rate of calls across processes. It does not queue calls and does not
// limit concurrency: use permits for that (claim/semaphore), which end when their holder dies.
//
//	limits, err := limit.Open(ctx, "redis://127.0.0.1:6379", nil)
//	…
//	defer limits.Close(ctx)
//	d, err := limits.Allow(ctx, "user/42", limit.PerSecond(100))
//	if err != nil || !d.Allowed {
//		// refuse; d.RetryAfter says when to come back
//	}
//
// # Algorithms
//
// The default is [GCRA], equivalent to the token bucket. It is exact: at most Burst +
// Count·t/Period in any interval t. [SlidingLog] is exact for windows and stores each call.
// [FixedWindow] admits up to twice the rate around the boundary of two windows. [SlidingCounter]
// is an approximation. Each is one pure function ([driver.Decide]) that stores execute in one
// atomic step by their own clock. Refused calls consume nothing. If the store's clock is set
// forward by d, what accrues in d is admitted.
//
// # Speed
//
// Calls made while others are under way share their next request, and calls of one key share a
// charge. A call for one unit of an exhausted key is refused locally, without a request, until the
// store would admit the next unit, at most for a minute.
//
// # Failures
//
// If the store does not decide within [Options.Timeout], the call fails with an error and nothing
// is admitted. [Options.OnFailure] can admit all calls, or a share of the rate, instead. A call
// whose answer is lost may have consumed its units.
package limit
