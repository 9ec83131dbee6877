// Package limit limits how many calls are made in a time, across processes. It does not queue
// calls, and does not limit how many are under way: for that there are permits
// (claim/semaphore), which end when their holder dies.
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
// The default is [GCRA], the token bucket: exact, and never more than Burst + Count·t/Period in
// any interval t. [SlidingLog] is exact for windows and remembers each call. [FixedWindow] admits
// at most twice the rate where two windows meet; [SlidingCounter] is an approximation. All of
// them are one pure function ([driver.Decide]), which each store runs in one atomic step by its
// own clock. Refused calls consume nothing. The bound holds by that clock: when it is set forward
// by d, what d earns is admitted.
//
// # Speed
//
// Calls that are made while others are under way go to the store together, and calls of one key
// as one charge. A key that is exhausted is refused here, without asking, until the time at which
// the store would admit the next unit.
//
// # Failures
//
// If the store gives no decision, within [Options].Timeout, the error says why and nothing is
// admitted; [Options].OnFailure admits all, or a share of the rate. A call whose answer is lost
// may have consumed what it asked for.
package limit
