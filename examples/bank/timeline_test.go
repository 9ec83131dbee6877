package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/history"
)

// timeline is one story as rows of cells.
type timeline struct {
	s       *story
	start   int64
	tokens  map[interlock.Token]int // numbered in the order of the grants
	read    map[string]string       // the balance that a lane read
	stopped bool
	rows    []row
}

// row is one instant. The cells are those of A, B and the database.
type row struct {
	at    time.Duration
	lane  string // the lane of the event
	call  int64  // the Seq of the invocation that it shows; 0 for others
	cells [3]string
	tone  tone
}

// learned is the text of a worker's report, by the cause with which its claim ended.
var learned = map[string]string{
	"expired":       "has expired",
	"lost":          "is lost",
	"session ended": "went with its session",
}

const (
	laneA = iota
	laneB
	database
)

func newTimeline(s *story) *timeline {
	t := &timeline{s: s, start: s.events[0].Mono,
		tokens: map[interlock.Token]int{}, read: map[string]string{}}
	for _, e := range s.events {
		t.event(e)
	}
	return t
}

// event adds a row for e. Releases and unanswered calls have none.
func (t *timeline) event(e history.Event) {
	lane := laneA
	if e.Lane == "B" {
		lane = laneB
	}
	switch e.Kind {
	case history.Invoke:
		t.invoked(e, lane)
	case history.Grant:
		t.granted(e, lane)
	case history.OK:
		t.done(e, lane)
	case history.Reject:
		t.answered(e, "REFUSED: token "+t.name(e.Token)+" < "+t.name(e.Seen)).tone = good
	case history.Fail, history.Info:
		t.add(e, lane, "fails: "+e.Value)
	case history.Expire, history.Lose:
		t.add(e, lane, "learns: its claim "+learned[e.Value])
	case history.FaultBegin:
		t.add(e, laneA, "STOPPED").tone = fault
		t.stopped = true
	case history.FaultEnd:
		t.stopped = false
		t.add(e, laneA, "GOES ON").tone = fault
	case history.State:
		t.add(e, database, e.Op+" "+e.Value)
	}
}

// invoked shows the invocations that need a row before their answer.
func (t *timeline) invoked(e history.Event, lane int) {
	switch {
	case e.Op == history.OpAcquire && lane == laneB: // A's is answered immediately
		t.add(e, lane, "asks for the lock, waits")
	case e.Op == history.OpWrite:
		t.add(e, lane, t.writing(e)).call = e.Seq
	}
}

// answered shows the database's answer, in the row of the call if no event followed
// it.
func (t *timeline) answered(e history.Event, text string) *row {
	r := &t.rows[len(t.rows)-1]
	if r.call != e.Cause || r.lane != e.Lane {
		return t.add(e, database, text)
	}
	r.cells[database] = text
	return r
}

func (t *timeline) granted(e history.Event, lane int) {
	t.tokens[e.Token] = len(t.tokens) + 1
	r := t.add(e, lane, "has the lock, token "+t.name(e.Token))
	if t.stopped {
		r.cells[laneA] = "| believes it has the lock"
	}
}

func (t *timeline) done(e history.Event, lane int) {
	entered := ""
	if t.s.mode != "broken" {
		entered = "token " + t.name(e.Token) + " enters"
	}
	switch e.Op {
	case history.OpRead:
		t.read[e.Lane] = e.Value
		t.add(e, lane, "reads "+e.Value).cells[database] = entered
	case history.OpWrite:
		r := t.answered(e, strings.TrimPrefix(entered+", balance "+e.Value, ", "))
		if t.s.mode == "broken" && lane == laneA {
			r.tone = bad
		}
	}
}

func (t *timeline) writing(e history.Event) string {
	amount, read := amountA, 0
	if e.Lane == "B" {
		amount = amountB
	}
	if _, err := fmt.Sscan(t.read[e.Lane], &read); err != nil {
		return "writes, without having read"
	}
	return fmt.Sprintf("writes %d - %d = %d", read, amount, read-amount)
}

// name returns the token's number in the story; the whole number is in the legend.
func (t *timeline) name(token interlock.Token) string { return fmt.Sprintf("#%d", t.tokens[token]) }

func (t *timeline) add(e history.Event, lane int, text string) *row {
	r := row{at: time.Duration(e.Mono - t.start), lane: e.Lane}
	if t.stopped {
		r.cells[laneA] = "|"
	}
	r.cells[lane] = text
	t.rows = append(t.rows, r)
	return &t.rows[len(t.rows)-1]
}
