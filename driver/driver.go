// Package driver is what a backend owes: small interfaces, one file a noun,
// each method with its obligations. It holds no logic and promises nothing to
// users of locks; they want claim/lock and guard/fence.
//
// # Who does what
//
// A driver speaks one backend's protocol: it sends a request, keeps what it
// was granted alive, and tells when that is lost. The portable types above it
// queue goroutines, retry, count hand-overs, end contexts and release. So a
// driver never retries a request by itself (the periodic renewal of what it
// holds is not a retry), and its client library must not either: a write that
// is sent twice behind our back turns a lock that was won into one that
// somebody else seems to hold.
//
// # Obligations that hold for every method
//
//   - It returns soon after ctx is done, with an error that wraps
//     context.Cause(ctx). If anything had been sent by then, the error is
//     Uncertain.
//   - Every error answers interlock.Kind, and the backend's native error is
//     reachable by errors.As. A lost reply is Uncertain, never "failed".
//   - It is safe for concurrent use.
//   - A name given by a user is data: never spliced into a script, a statement
//     or a log line. A name that the backend's layout cannot hold is refused
//     with interlock.ErrName, never changed.
//   - It starts no goroutine that outlives Close.
//
// # Writing a driver
//
// Start from driver/memory, the executable specification, and run
// driver/drivertest against the real system. The interfaces here may change
// until version 1.
package driver
