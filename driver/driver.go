// Package driver defines the interfaces that a backend implements. The interfaces are small,
// and each method documents its obligations. The package contains no logic for users of locks,
// who use claim/lock and guard/fence.
//
// # Responsibilities
//
// A driver implements one backend's protocol: it sends requests, renews its grants, and reports
// their loss. The portable types above it queue goroutines, retry, count hand-overs, end
// contexts and release. A driver never retries a request, and its client library must not
// either. (The periodic renewal of a lease is not a retry.) If a write is sent twice unnoticed,
// a lock that was acquired can look like a lock of another owner.
//
// # Obligations of every method
//
//   - It returns soon after ctx is done, with an error that wraps context.Cause(ctx). If
//     anything had been sent by then, the error is Uncertain.
//   - Every error has an interlock.Kind, and errors.As reaches the backend's native error. A
//     lost reply is Uncertain, never Definite or Retryable.
//   - It is safe for concurrent use.
//   - A user's name is data: it is never spliced into a script, a statement or a log line. If
//     the backend's layout cannot hold a name, the driver returns interlock.ErrName and never
//     changes the name.
//   - It starts no goroutine that outlives Close.
//
// # Writing a driver
//
// Start from driver/memory, the executable specification, and run driver/drivertest against the
// real system. The interfaces here may change until version 1.
package driver
