package consul

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

// base is what tokens count from: a key of the namespace. Consul's index rises with every
// write, but restarts in a new cluster and falls with a restored snapshot. The base does
// not, because it is set to the clock where it is missing or too low.
type base struct {
	value int64
	index uint64 // at which the key got the value; 0 if it does not exist
}

// at returns the counter of a grant at an index that is not below the base's.
func (b base) at(index uint64) int64 { return b.value + int64(index-b.index) }

// lag is how far the counter may be below the clock before a grant raises the base to
// driver.Headroom above it. Ten seconds after the last grant before a restore, tokens are
// above all that were issued before.
const lag = 10*time.Second - driver.Headroom

func readBase(e entry) (base, error) {
	if !e.exists() {
		return base{}, nil
	}
	value, err := driver.ParseInt(string(e.Value))
	if err != nil || value <= 0 || value > interlock.MaxCounter {
		return base{}, fmt.Errorf("the key %q holds %q, which is not a base of tokens: delete it, and the clock sets it again", e.Key, e.Value)
	}
	return base{value, e.ModifyIndex}, nil
}

// basis returns the base of the next grant, and the operation that checks or raises it. A
// raised base has the index of its transaction, which is not known yet: 0.
func (s *session) basis(ctx context.Context) (base, op, error) {
	now := s.d.options.Now()
	s.d.mu.Lock()
	b, top, seen := s.base, s.d.top, s.seen
	s.d.mu.Unlock()
	if b.index == 0 {
		var err error
		if b, err = s.fetchBase(ctx); err != nil {
			return base{}, op{}, err
		}
	}
	counter := b.at(max(b.index, seen))
	behind := counter < interlock.CounterAt(now.Add(-lag)) && driver.SameClock(now, s.d.client.now(s.d.options.Now)) == nil
	if b.index > 0 && counter >= top && !behind {
		return b, op{Verb: "check-index", Key: s.d.layout.base(), Index: b.index}, nil
	}
	return s.raised(b, max(interlock.CounterAt(now.Add(driver.Headroom)), top+1, counter+1), now)
}

// raised returns a base with value, which replaces the one that was read.
func (s *session) raised(over base, value int64, now time.Time) (base, op, error) {
	if err := driver.SameClock(now, s.d.client.now(s.d.options.Now)); err != nil {
		return base{}, op{}, refusedBase(err)
	}
	return base{value: value}, op{Verb: "cas", Key: s.d.layout.base(), Index: over.index, Value: []byte(strconv.FormatInt(value, 10))}, nil
}

// fetchBase reads the base and rejects an implausible one.
func (s *session) fetchBase(ctx context.Context) (base, error) {
	b, err := s.readBase(ctx)
	if err == nil && b.index > 0 {
		if odd := driver.Plausible(b.value, s.d.client.now(s.d.options.Now)); odd != nil {
			return base{}, refusedBase(odd)
		}
	}
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	s.base = b
	return b, err
}

func (s *session) readBase(ctx context.Context) (base, error) {
	rctx, cancel := s.d.bounded(ctx)
	defer cancel()
	e, _, err := s.d.client.get(rctx, s.d.layout.base())
	if err != nil {
		return base{}, unread(rctx, opBase, "", err)
	}
	b, err := readBase(e)
	if err != nil {
		return base{}, refusedBase(err)
	}
	return b, nil
}

const opBase = "raise base of tokens"

func refusedBase(err error) error { return fail.New(opBase, "", interlock.Definite, err) }

// initial returns a new session's base, and the operations that check or raise it: the
// counter is at least at the clock, and at Options.Seed. A raise adds driver.Headroom, so
// that of many sessions that open at once one raises it.
func (s *session) initial(ctx context.Context) (base, []op, error) {
	now := s.d.options.Now()
	b, err := s.readBase(ctx)
	if err != nil {
		return base{}, nil, err
	}
	if odd := driver.Plausible(b.value, s.d.client.now(s.d.options.Now)); odd != nil {
		return s.repair(b, now, odd)
	}
	least, err := s.d.options.Seed.Floor(now)
	if err != nil {
		return base{}, nil, refusedBase(err)
	}
	least = max(least, s.d.highest()+1)
	if b.index > 0 && b.value >= least {
		return b, []op{{Verb: "check-index", Key: s.d.layout.base(), Index: b.index}}, nil
	}
	b, raise, err := s.raised(b, max(least+driver.Headroom.Microseconds(), b.at(b.index)+1), now)
	return b, []op{raise}, err
}

// repair lowers an implausible base to the clock, if Options ask for that, and records it as
// a forced release of driver.BaseName.
func (s *session) repair(b base, now time.Time, odd error) (base, []op, error) {
	repair := s.d.options.Seed.Repair
	if repair == nil || s.d.highest() > 0 {
		return base{}, nil, refusedBase(odd)
	}
	value := interlock.CounterAt(now.Add(driver.Headroom))
	lowered, lower, err := s.raised(b, value, now)
	if err != nil {
		return base{}, nil, err
	}
	text, err := json.Marshal(broken{Name: []byte(driver.BaseName), Owner: repair.Record(b.value, value), Reason: repair.Reason, By: repair.By, At: now.UTC()})
	return lowered, []op{lower, {Verb: "set", Key: s.d.layout.broken(driver.BaseName, now), Value: text}}, err
}
