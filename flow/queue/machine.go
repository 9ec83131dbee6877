package queue

import "github.com/interlock-dev/interlock/driver"

// machine is what a consumer knows of its messages. It is pure: it starts nothing and knows no
// time.
//
// A message is received, begun or given back, ended, and recorded. Between the first and the
// last it counts as in flight. If one of a key is to be tried again, what was received behind
// it is given back, until nothing of the key is in flight: the queue then delivers it in order.
type machine struct {
	limit driver.QueueLimit // of what is in flight

	messages, bytes int // in flight
	lanes           map[lane]*load
	ended           []driver.Settlement // to be recorded, in order
}

// lane is the messages of a key under one claim. One without a key is a lane by itself.
type lane struct {
	claim driver.Assignment
	key   string
	alone int64
}

type load struct {
	inFlight int
	held     bool // nothing more is begun
}

func newMachine(o Options) *machine {
	return &machine{limit: driver.QueueLimit{Messages: o.InFlight, Bytes: o.Bytes}, lanes: map[lane]*load{}}
}

func laneOf(m driver.Received) lane {
	l := lane{claim: m.Claim, key: m.Key}
	if m.Key == "" {
		l.alone = m.Place
	}
	return l
}

// room is what may be received now; ok is false if that is nothing.
func (x *machine) room() (room driver.QueueLimit, ok bool) {
	room = driver.QueueLimit{Messages: x.limit.Messages - x.messages, Bytes: x.limit.Bytes - x.bytes}
	return room, room.Messages > 0 && room.Bytes > 0
}

// receive notes a message that was delivered.
func (x *machine) receive(m driver.Received) {
	x.messages++
	x.bytes += len(m.Payload)
	l := laneOf(m)
	if x.lanes[l] == nil {
		x.lanes[l] = &load{}
	}
	x.lanes[l].inFlight++
}

// begin reports whether a message may be handled.
func (x *machine) begin(m driver.Received) bool {
	select {
	case <-m.Claim.Revoked():
		return false
	default:
		return !x.lanes[laneOf(m)].held
	}
}

// end notes the outcome of a message.
func (x *machine) end(s driver.Settlement) {
	switch s.Outcome {
	case driver.Retry, driver.Park, driver.Release:
		x.lanes[laneOf(s.Received)].held = true
	}
	x.ended = append(x.ended, s)
}

// take is what is to be recorded next.
func (x *machine) take() []driver.Settlement {
	all := x.ended
	x.ended = nil
	return all
}

// recorded notes that an outcome was recorded, or never can be.
func (x *machine) recorded(m driver.Received) {
	x.messages--
	x.bytes -= len(m.Payload)
	l := laneOf(m)
	if x.lanes[l].inFlight--; x.lanes[l].inFlight == 0 {
		delete(x.lanes, l)
	}
}
