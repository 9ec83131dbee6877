package outbox

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// model is an outbox table with the effects of [store.read] and [store.settle], one step at a time.
type model struct {
	random *rand.Rand
	now    time.Duration
	rows   []row // in order of their ids
	lanes  map[int64]*modelLane
	dead   map[int64]bool

	first map[int64][]int64 // by lane: ids in the order of their first delivery
	sent  map[int64]bool
}

type modelLane struct {
	attempts int
	head     int64
	until    time.Duration
}

func (m *model) read(limit int, underway []row) (p picture) {
	busy := func(matches func(row) bool) bool { return slices.ContainsFunc(underway, matches) }
	parked, ready := map[int64]int{}, 0
	open := func(lane int64) bool {
		return m.lanes[lane] != nil && m.lanes[lane].until <= m.now && !busy(func(u row) bool { return u.lane == lane })
	}
	var lanes []int64
	for lane := range m.lanes {
		if len(lanes) < min(limit, dueLanes) && open(lane) {
			lanes = append(lanes, lane)
		}
	}
	if len(lanes) > 0 {
		p.each = min(limit/len(lanes), laneRows)
	}
	for _, r := range m.rows {
		l := m.lanes[r.lane]
		switch {
		case busy(func(u row) bool { return u.id == r.id }):
			continue
		case r.parked:
			gone := l != nil && !slices.ContainsFunc(m.rows, func(h row) bool { return h.id == l.head })
			if !slices.Contains(lanes, r.lane) || parked[r.lane] == p.each || l.attempts > 0 && r.id > l.head && !gone {
				continue
			}
			parked[r.lane]++
			r.lists, r.attempts, r.head = due, l.attempts, l.head
		case ready == limit:
			continue
		default:
			ready++
			if l != nil {
				r.lists, r.attempts, r.head = waiting, l.attempts, l.head
				if l.until <= m.now {
					r.lists = due
				}
			}
		}
		r.early -= m.now
		p.rows = append(p.rows, r)
	}
	for _, lane := range lanes {
		if parked[lane] == 0 {
			p.idle = append(p.idle, lane)
		}
	}
	return p
}

func (m *model) settle(s settlement) {
	m.rows = slices.DeleteFunc(m.rows, func(r row) bool { return slices.Contains(s.sent, r.id) })
	for _, p := range s.park {
		for i := range m.rows {
			m.rows[i].parked = m.rows[i].parked || m.rows[i].id == p.id
		}
	}
	changed := map[int64]bool{}
	for _, c := range s.changes {
		if changed[c.lane] {
			panic("two changes of one lane")
		}
		changed[c.lane] = true
		m.lanes[c.lane] = &modelLane{c.attempts, c.id, m.now + c.pause}
	}
	for _, p := range s.park {
		if m.lanes[p.lane] == nil {
			m.lanes[p.lane] = &modelLane{until: m.now}
		}
	}
	for _, c := range s.dead {
		m.rows = slices.DeleteFunc(m.rows, func(r row) bool { return r.id == c.id })
		m.dead[c.id] = true
	}
	for _, lane := range s.relieved {
		if m.lanes[lane] == nil {
			continue
		}
		m.lanes[lane] = &modelLane{until: m.now}
		if !slices.ContainsFunc(m.rows, func(r row) bool { return r.lane == lane && r.parked }) {
			delete(m.lanes, lane)
		}
	}
}

// publish delivers some of a batch; a stubborn message is rejected, or fails.
func (m *model) publish(b batch, trouble float64) (answers []error) {
	failed := map[int64]bool{}
	for _, r := range b.send {
		var err error
		switch {
		case failed[r.lane]:
			err = driver.ErrNotSent
		case m.random.Float64() < trouble:
			err = [...]error{errors.New("may have arrived"), driver.ErrNotSent,
				&interlock.Error{Op: "publish", Kind: interlock.Definite, Err: errors.New("never")}}[m.random.IntN(3)]
			failed[r.lane] = true
		}
		if err == nil || interlock.Kind(err) == interlock.Uncertain && m.random.IntN(2) == 0 {
			if !m.sent[r.id] {
				m.sent[r.id] = true
				m.first[r.lane] = append(m.first[r.lane], r.id)
			}
		}
		answers = append(answers, err)
	}
	return answers
}

// serve runs the steps of stream for a number of rounds, then ends with or without its last
// settlement. Meanwhile rows are added.
func (m *model) serve(j judgement, rounds int, trouble float64, add func()) {
	limit := 1 + m.random.IntN(6)
	if m.random.IntN(3) == 0 {
		limit = 150
	}
	b := plan(m.read(limit, nil), nil, maxBatchBytes)
	var last settlement
	for range rounds {
		add()
		m.now += time.Duration(m.random.IntN(30)) * time.Millisecond
		var seen picture
		underway := b.underway()
		beside := !last.empty() || len(b.send) >= limit
		// The settlement and the read are done before the sink answers, or after.
		early := m.random.IntN(2) == 0
		if early && beside {
			m.settle(last)
			seen = m.read(limit, underway)
		}
		answers := m.publish(b, trouble)
		if !early && beside {
			m.settle(last)
			seen = m.read(limit, underway)
		}
		last, _ = j.judge(b, answers)
		b = plan(seen, last.held(), maxBatchBytes)
		if b.empty() {
			m.settle(last)
			last = settlement{}
			b = plan(m.read(limit, nil), nil, maxBatchBytes)
		}
	}
	if m.random.IntN(2) == 0 {
		m.settle(last)
	}
}

// TestModel: with any failures and any sequence of relays, nothing is lost, and first deliveries of
// a key are in order, without its dead letters.
func TestModel(t *testing.T) {
	t.Parallel()
	seeds := uint64(600)
	if testbed.Brief() { // there is one goroutine
		seeds = 150
	}
	for seed := range seeds {
		m := &model{random: rand.New(rand.NewPCG(seed, 1)), lanes: map[int64]*modelLane{}, dead: map[int64]bool{},
			first: map[int64][]int64{}, sent: map[int64]bool{}}
		keys := 1 + m.random.IntN(4)
		last := int64(0)
		add := func() {
			n, only := m.random.IntN(4), -1
			if m.random.IntN(40) == 0 { // more than are read of a lane at once
				n, only = laneRows+30, m.random.IntN(keys)
			}
			for range n {
				last++
				lane := int64(m.random.IntN(keys))
				if only >= 0 {
					lane = int64(only)
				}
				r := row{Message: driver.Message{ID: fmt.Sprint(last), Topic: "t", Key: fmt.Sprint(lane)}, id: last, lane: lane}
				if m.random.IntN(20) == 0 {
					r.early = m.now + time.Duration(m.random.IntN(100))*time.Millisecond
				}
				m.rows = append(m.rows, r)
			}
		}
		j := judgement{deadLetters: m.random.IntN(2) == 0, attempts: 1 + m.random.IntN(2), giveUp: m.random.IntN(3) * 4,
			retry: backoff.Policy{First: 10 * time.Millisecond, Max: 40 * time.Millisecond}, random: m.random.Float64}
		for range 4 {
			m.serve(j, m.random.IntN(12), 0.25, add)
		}
		total := int(last)
		for round := 0; len(m.rows) > 0; round++ {
			m.now += 100 * time.Millisecond
			if m.serve(j, 5, 0, func() {}); round > 200 {
				t.Fatalf("seed %d: %d messages are never delivered: %+v, lanes %v", seed, len(m.rows), m.rows[0], m.lanes)
			}
		}
		m.serve(j, 2, 0, func() {})
		m.check(t, seed, total)
	}
}

func (m *model) check(t *testing.T, seed uint64, total int) {
	t.Helper()
	for id := int64(1); id <= int64(total); id++ {
		if !m.sent[id] && !m.dead[id] {
			t.Errorf("seed %d: %d is lost", seed, id)
		}
	}
	if len(m.lanes) != 0 {
		t.Errorf("seed %d: lanes still wait: %v", seed, m.lanes)
	}
	for lane, ids := range m.first {
		// A relay that did not settle may have sent a dead letter.
		ids = slices.DeleteFunc(ids, func(id int64) bool { return m.dead[id] })
		if !slices.IsSorted(ids) {
			t.Fatalf("seed %d: lane %d came as %v", seed, lane, ids)
		}
	}
}
