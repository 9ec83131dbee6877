// Package zookeeper keeps locks in ZooKeeper, in the layout that Curator and the
// Go client's own lock use, so that all of them exclude each other.
//
// It does not make a lock safe by itself: a process that is stopped for longer
// than its session wakes up believing that it holds. Only a guard that compares
// tokens refuses its writes, see package guard/fence.
//
//	d, err := zookeeper.Open(ctx, &zookeeper.Options{Servers: []string{"127.0.0.1:2181"}})
//	locks, err := lock.NewFenced(d, nil)
//	err = locks.Do(ctx, "nightly-report", func(ctx context.Context, c interlock.Claim) error {
//		return nil // hand c to a guard
//	})
package zookeeper
