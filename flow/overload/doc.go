// Package overload keeps a service at its capacity when it gets more calls than it can do, and
// keeps its callers from making that worse. It does not add capacity, does not know which calls
// matter unless they say so, and does not limit rates: for that there is flow/limit.
//
//	server, err := overload.New(nil)
//	…
//	http.Handle("/", server.Handler(mux))
//
//	backend, err := overload.New(nil) // one for each service that is called
//	…
//	client := &http.Client{Transport: backend.Transport(nil)}
//	value, err := overload.Call(ctx, backend, func(ctx context.Context) (string, error) { … })
//
// # Servers
//
// [Policy.Handler] and [Policy.Admit] limit how many calls run at once. The limit follows the
// latency (adaptive concurrency, as in Netflix's concurrency-limits and TCP Vegas, by failsafe-go).
// Because a slow incident raises the latency that counts as normal, Options.MaxLatency limits it
// as well.
//
// Other calls wait, briefly: normally in order and up to Options.MaxWait; once the queue has not
// been empty for that long, the newest first and up to Options.Target (controlled delay and
// adaptive LIFO: Nichols and Jacobson, "Controlling Queue Delay", 2012; Maurer, "Fail at Scale",
// 2015). A call whose deadline is nearer than a call takes is rejected at once. Calls of a higher
// [Class] go first, and push lower ones out of a full queue.
//
// # Clients
//
// [Policy.Transport] and [Call] limit what a process adds to an overload:
//
//   - a throttle rejects here what the backend would probably reject: calls beyond twice those
//     accepted in 2 s (K = 2: Beyer et al., "Site Reliability Engineering", 2016, chapter 21)
//   - a circuit breaker rejects calls while most of them fail
//   - a call has at most 3 attempts, all retries together are 10 % of the calls, and waits have
//     full jitter beyond what Retry-After says
//   - hedging, off by default, repeats a call that is slow
//
// A rejection says whether to retry. Only the layer next to the overload retries.
package overload
