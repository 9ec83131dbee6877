// Package timestamp numbers the events of several processes. It does not tell the time of
// a clock: a [Timestamp] says how two events of one oracle are ordered, and about how far
// apart they are.
package timestamp
