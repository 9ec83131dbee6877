package drivertest

import "slices"

// ReorderedIDs returns the ids, KEY/NUMBER, of n messages per key, numbered from 0, in the order of
// a faulty producer: in groups of five that are reversed, every third group twice.
func ReorderedIDs(keys, n int) (all []string) {
	for from := 0; from < n; from += 5 {
		some := QueueIDs(keys, from, min(5, n-from))
		slices.Reverse(some)
		if all = append(all, some...); from/5%3 == 0 {
			all = append(all, some...)
		}
	}
	return all
}
