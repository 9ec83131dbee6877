// Package overload keeps a service at its capacity when it gets too many calls, and limits what
// its callers add to the overload. It does not add capacity, does not know which calls are
// critical unless their class says so, and does not limit rates (see flow/limit).
//
//	server, err := overload.New(nil)
//	…
//	http.Handle("/", server.Handler(nil, mux))
//
//	backend, err := overload.New(nil) // one for each service that is called
//	…
//	client := &http.Client{Transport: backend.Transport(nil)}
//	value, err := overload.Call(ctx, backend, func(ctx context.Context) (string, error) { … })
//
// # Servers
//
// [Policy.Handler] and [Policy.Admit] limit how many calls run at once. The limit follows the
// latency (adaptive concurrency, as in Netflix's concurrency-limits and TCP Vegas, by
// failsafe-go). It also decreases if more than a tenth of the calls exceed Options.MaxLatency.
//
// Other calls wait briefly: normally in order, for at most Options.MaxWait. If the queue has not
// been empty for that long, the newest call is served first, and calls wait for at most
// Options.Target. These are controlled delay and adaptive LIFO (Nichols and Jacobson,
// "Controlling Queue Delay", 2012; Maurer, "Fail at Scale", 2015). A call is rejected at once if
// it would probably miss its deadline. Calls of a higher [Class] are first, and displace lower
// ones from a full queue.
//
// # Clients
//
// [Policy.Transport] and [Call] limit what a process adds to an overload:
//
//   - a throttle rejects calls that the backend would probably reject: those beyond twice the calls
//     accepted in 2 s (K = 2: Beyer et al., "Site Reliability Engineering", 2016, chapter 21)
//   - a circuit breaker rejects calls while most of them fail
//   - a call has at most 3 attempts, all retries together are at most 10 % of the calls, and waits
//     have full jitter in addition to Retry-After
//   - hedging, off by default, repeats a call that is slow
//
// A rejection says whether to retry. Only the layer next to the overload retries.
package overload
