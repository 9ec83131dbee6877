package queue

import "github.com/interlock-dev/interlock/driver"

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
	first, last     *lane       // lanes that may begin a message, in turn
	ended           []*delivery // to record, in order
}

// lane has the messages of a key under one claim, or one message without a key. No two of its
// messages are handled at the same time.
type lane struct {
	laneName
	first, last *delivery // not begun, in order
	inFlight    int
	held        bool // no more messages begin
	running     bool // a message is handled, or the lane is in the list of those that may begin one
	next        *lane
}

type laneName struct {
	claim driver.Assignment
	key   string
}

// delivery is one message in a consumer.
type delivery struct {
	*driver.Received
	verdict
	lane *lane
	next *delivery
}

func newMachine(o Options) *machine {
	return &machine{limit: driver.QueueLimit{Messages: o.InFlight, Bytes: o.Bytes}, lanes: map[laneName]*lane{}}
}

// room returns how much may be received now; ok is false if that is nothing.
func (x *machine) room() (room driver.QueueLimit, ok bool) {
	room = driver.QueueLimit{Messages: x.limit.Messages - x.messages, Bytes: x.limit.Bytes - x.bytes}
	return room, room.Messages > 0 && room.Bytes > 0
}

// receive adds messages, each after those of its key.
func (x *machine) receive(some []driver.Received) {
	all := make([]delivery, len(some))
	for i := range all {
		d := &all[i]
		d.Received = &some[i]
		l := x.lane(laneName{d.Claim, d.Key})
		d.lane = l
		l.inFlight++
		x.messages++
		x.bytes += len(d.Payload)
		if l.held {
			x.ended = append(x.ended, d)
			continue
		}
		x.waiting++
		if l.first == nil {
			l.first = d
		} else {
			l.last.next = d
		}
		l.last = d
		if !l.running {
			x.ready(l)
		}
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

// begin returns the next message to handle; nil if there is none. No message of a revoked assignment
// begins.
func (x *machine) begin() *delivery {
	for x.first != nil {
		l := x.first
		x.first, l.next = l.next, nil
		select {
		case <-l.claim.Revoked():
			l.running = false
			x.hold(l)
			continue
		default:
		}
		return x.shift(l)
	}
	return nil
}

// shift removes the first message of a lane.
func (x *machine) shift(l *lane) *delivery {
	d := l.first
	l.first, d.next = d.next, nil
	x.waiting--
	return d
}

// hold releases all messages of a lane that have not begun.
func (x *machine) hold(l *lane) {
	l.held = true
	for l.first != nil {
		x.ended = append(x.ended, x.shift(l))
	}
}

// end sets the verdict on a message that was begun.
func (x *machine) end(d *delivery, v verdict) {
	d.verdict = v
	x.ended = append(x.ended, d)
	d.lane.running = false
	switch v.Outcome {
	case driver.Retry, driver.Park, driver.Release:
		x.hold(d.lane)
	}
	if d.lane.first != nil {
		x.ready(d.lane)
	}
}

// take returns the outcomes to record. Later ones are collected in spare.
func (x *machine) take(spare []*delivery) []*delivery {
	all := x.ended
	x.ended = spare
	return all
}

// recorded removes a message whose verdict was recorded or cannot be.
func (x *machine) recorded(d *delivery) {
	x.messages--
	x.bytes -= len(d.Payload)
	if d.lane.inFlight--; d.lane.inFlight == 0 && d.Key != "" {
		delete(x.lanes, d.lane.laneName)
	}
}
