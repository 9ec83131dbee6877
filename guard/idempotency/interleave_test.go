package idempotency

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// TestEveryInterleaving runs all orders of the steps of two attempts. Each may die after any
// step, leases expire at any moment and at the end, and a third attempt then completes. A
// phase takes effect in the step that records it, as in a transaction. Each phase takes
// effect once, and there is one answer.
func TestEveryInterleaving(t *testing.T) {
	played := 0
	var extend func(schedule []int, left [3]int)
	extend = func(schedule []int, left [3]int) {
		play(t, schedule)
		played++
		for actor, n := range left {
			if n > 0 && !t.Failed() {
				next := left
				next[actor]--
				extend(append(schedule[:len(schedule):len(schedule)], actor), next)
			}
		}
	}
	extend(nil, [3]int{4, 4, 1})
	if t.Logf("%d schedules", played); played < 500 {
		t.Errorf("only %d schedules", played)
	}
}

const lapse = 2 // the actor that ends leases, not an attempt

// model is one store, and the effects beside it.
type model struct {
	records driver.Idempotency
	effects map[string]int
	answers map[string]bool // that a client received
}

// attempt is the state of a process.
type attempt struct {
	owner   string
	claimed bool
	over    bool
	points  points
}

func play(t *testing.T, schedule []int) {
	m := &model{records: memory.NewIdempotency(), effects: map[string]int{}, answers: map[string]bool{}}
	attempts := [2]attempt{{owner: "0"}, {owner: "1"}}
	for _, actor := range schedule {
		if actor == lapse {
			m.lapse(t)
		} else {
			m.step(t, &attempts[actor])
		}
	}
	m.lapse(t)
	for last := (&attempt{owner: "last"}); !last.over; {
		m.step(t, last)
	}
	for i := range attempts {
		for range 5 { // paused attempts continue
			m.step(t, &attempts[i])
		}
	}
	if m.effects["a"] != 1 || m.effects["b"] != 1 || len(m.answers) != 1 {
		t.Errorf("%v: effects %v, answers %v", schedule, m.effects, m.answers)
	}
}

// claim claims for an owner, whose lease does not expire by itself.
func (m *model) claim(t *testing.T, owner string) (driver.IdempotencyRecord, outcome) {
	c := driver.IdempotencyClaim{ID: driver.IdempotencyID{Operation: "o", Key: "k"}, Fingerprint: "f", Owner: owner, Lease: time.Hour}
	r, err := m.records.Claim(context.Background(), c)
	testbed.OK(t, err)
	return r, classify(c, r)
}

// lapse ends the lease, if there is one.
func (m *model) lapse(t *testing.T) {
	c := driver.IdempotencyClaim{ID: driver.IdempotencyID{Operation: "o", Key: "k"}, Fingerprint: "none", Owner: "none", Lease: time.Hour}
	r, err := m.records.Claim(context.Background(), c)
	if err == nil && r.Owner == "none" { // no attempt had claimed it
		err = m.records.Update(context.Background(), driver.IdempotencyUpdate{ID: c.ID, Owner: "none", Forget: true})
	} else if err == nil {
		err = m.records.Update(context.Background(), driver.IdempotencyUpdate{ID: c.ID, Owner: r.Owner})
	}
	testbed.OK(t, err)
}

// step runs the next step of an attempt: claim, phase a, phase b, answer.
func (m *model) step(t *testing.T, a *attempt) {
	if a.over {
		return
	}
	if !a.claimed {
		r, outcome := m.claim(t, a.owner)
		switch outcome {
		case ours:
			var err error
			if a.points, err = parsePoints(r.Points); err != nil {
				t.Fatal(err)
			}
			a.claimed = true
		case answered:
			m.answers[string(r.Answer.Body)], a.over = true, true
		}
		return
	}
	u := driver.IdempotencyUpdate{ID: driver.IdempotencyID{Operation: "o", Key: "k"}, Owner: a.owner, Lease: time.Hour}
	name := ""
	for _, phase := range []string{"a", "b"} {
		if _, done := a.points.find(phase); !done {
			name = phase
			break
		}
	}
	next := a.points
	if name == "" {
		u.Answer, u.Keep = &driver.IdempotencyAnswer{Body: []byte(fmt.Sprintf("%s", a.points))}, time.Hour
	} else {
		var err error
		if next, u.Points, err = a.points.with(name, "by "+a.owner); err != nil {
			t.Fatal(err)
		}
	}
	switch err := m.records.Update(context.Background(), u); {
	case errors.Is(err, interlock.ErrLost):
		a.over = true
	case err != nil:
		t.Fatal(err)
	case name == "":
		m.answers[string(u.Answer.Body)], a.over = true, true
	default:
		m.effects[name]++
		a.points = next
	}
}
