// Package backend connects to a system that a URL names, through the driver that registered its
// scheme. It guarantees no more than that driver, retries nothing, and never prints a password.
//
//	import _ "github.com/interlock-dev/interlock/driver/redis" // registers redis:// and rediss://
//
//	b, err := backend.Open(ctx, "redis://127.0.0.1:6379")
//	...
//	defer b.Close(ctx)
//	d, err := b.Fenced(ctx, backend.LockOptions{TTL: 10 * time.Second})
//
// Most programs need lock.Open, elect.Open and the like, which call it. Use the package if
// several things share one connection, such as locks and a journal in one database.
package backend
