package queue

import (
	"slices"
	"time"

	"github.com/interlock-dev/interlock/driver"
)

// A worker handles up to maxShare messages of a key before other keys have their turn, unless that
// takes longer than shareTime.
const (
	maxShare  = 64
	shareTime = 100 * time.Microsecond
)

// machine is the state of a consumer's messages. It is pure: it starts nothing and reads no clock.
//
// A message is received, begun or released, ended, and recorded. From the first to the last it
// counts as in flight. If a message is to be retried, later messages of its key are released until
// none of the key is in flight: the queue then delivers them again in order.
type machine struct {
	limit driver.QueueLimit // of messages in flight

	messages, bytes int // in flight
	waiting         int // in flight and not begun
	lanes           map[laneName]*lane
	first, last     *lane    // lanes that may begin a message, in turn
	ended           []result // to record, in order
	recording       bool     // outcomes were taken, and are not recorded yet
}

// lane has the messages of a key under one claim, or one message without a key. No two of its
// messages are handled at the same time.
type lane struct {
	laneName
	waiting  []*driver.Received // in order; a worker may handle the first ones
	inFlight int
	held     bool // no more messages begin
	running  bool // messages are handled, or the lane is in the list of those that may begin one
	next     *lane
}

type laneName struct {
	claim driver.Assignment
	key   string
}

// share is messages of a lane, in order. One worker handles them.
type share struct {
	lane     *lane
	messages []*driver.Received
}

// result is the settlement of messages of a lane.
type result struct {
	driver.Settlement
	lane  *lane
	bytes int
}

func newMachine(o Options) *machine {
	return &machine{limit: driver.QueueLimit{Messages: o.InFlight, Bytes: o.Bytes}, lanes: map[laneName]*lane{}}
}

// room returns how much may be received now; ok is false if that is nothing. It is also false if it
// is little while outcomes are recorded, which makes more room.
func (x *machine) room() (room driver.QueueLimit, ok bool) {
	room = driver.QueueLimit{Messages: x.limit.Messages - x.messages, Bytes: x.limit.Bytes - x.bytes}
	if x.recording || len(x.ended) > 0 {
		return room, room.Messages > x.limit.Messages/4 && room.Bytes > x.limit.Bytes/4
	}
	return room, room.Messages > 0 && room.Bytes > 0
}

// receive adds messages, each after those of its key.
func (x *machine) receive(some []*driver.Received) {
	for _, m := range some {
		x.bytes += len(m.Payload)
	}
	x.messages += len(some)
	for len(some) > 0 {
		name, n := laneName{some[0].Claim, some[0].Key}, 1
		for n < len(some) && name.key != "" && some[n].Key == name.key && some[n].Claim == name.claim {
			n++
		}
		x.append(x.lane(name), some[:n])
		some = some[n:]
	}
}

// append adds messages of a lane.
func (x *machine) append(l *lane, some []*driver.Received) {
	l.inFlight += len(some)
	if l.held {
		x.note(l, some, driver.Settlement{})
		return
	}
	x.waiting += len(some)
	if len(l.waiting) == 0 {
		l.waiting = slices.Clip(some)
	} else {
		l.waiting = append(l.waiting, some...)
	}
	if !l.running {
		x.ready(l)
	}
}

func (x *machine) lane(name laneName) *lane {
	l := x.lanes[name]
	if l == nil {
		l = &lane{laneName: name}
		if name.key != "" {
			x.lanes[name] = l
		}
	}
	return l
}

// ready appends a lane to those that may begin a message.
func (x *machine) ready(l *lane) {
	l.running = true
	if x.first == nil {
		x.first = l
	} else {
		x.last.next = l
	}
	x.last = l
}

// begin returns the next messages to handle; none if there are none. No message of a revoked
// assignment begins.
func (x *machine) begin() share {
	for x.first != nil {
		l := x.first
		x.first, l.next = l.next, nil
		if !driver.IsRevoked(l.claim) {
			s := share{l, l.waiting[:min(maxShare, len(l.waiting))]}
			x.waiting -= len(s.messages)
			return s
		}
		l.running = false
		x.hold(l)
	}
	return share{}
}

// hold releases all messages of a lane that have not begun.
func (x *machine) hold(l *lane) {
	l.held = true
	x.note(l, l.waiting, driver.Settlement{})
	x.waiting -= len(l.waiting)
	l.waiting = nil
}

// end notes that the first n messages of a share were handled, and how the last of them is settled.
// Those before are acknowledged. The others have not begun. If n is 0, the outcome is Release: the
// claim has ended.
func (x *machine) end(s share, n int, v driver.Settlement) {
	l := s.lane
	l.running = false
	acked := n
	if n > 0 && v.Outcome != driver.Ack {
		acked--
	}
	x.note(l, s.messages[:acked], driver.Settlement{Outcome: driver.Ack})
	x.note(l, s.messages[acked:n], v)
	x.waiting += len(s.messages) - n
	l.waiting = l.waiting[n:]
	switch v.Outcome {
	case driver.Retry, driver.Park, driver.Release:
		x.hold(l)
	}
	if len(l.waiting) > 0 {
		x.ready(l)
	}
}

// note notes how messages are settled, unless there are none.
func (x *machine) note(l *lane, some []*driver.Received, v driver.Settlement) {
	if len(some) == 0 {
		return
	}
	bytes := 0
	for _, m := range some {
		bytes += len(m.Payload)
	}
	v.Received, v.Later = some[0], some[1:]
	x.ended = append(x.ended, result{v, l, bytes})
}

// take returns the outcomes to record. Later ones are collected in spare.
func (x *machine) take(spare []result) []result {
	all := x.ended
	x.ended, x.recording = spare, len(all) > 0
	return all
}

// recorded removes messages whose outcome was recorded or cannot be.
func (x *machine) recorded(r *result) {
	n := 1 + len(r.Later)
	x.messages -= n
	x.bytes -= r.bytes
	if r.lane.inFlight -= n; r.lane.inFlight == 0 && r.lane.key != "" {
		delete(x.lanes, r.lane.laneName)
	}
}
