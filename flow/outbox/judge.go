package outbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/backoff"
	"github.com/interlock-dev/interlock/internal/sqltable"
	"github.com/interlock-dev/interlock/observe"
)

// Reasons why a key waits, in [Waiting].
const (
	WhyRetry   = "retry"   // its oldest message was not delivered, and is retried
	WhyBlocked = "blocked" // its oldest message was rejected by the receiver
	WhyDead    = "dead"    // its oldest message became a dead letter; see Park
	WhyDelayed = "delayed" // its oldest message is not to be sent yet
	WhyQueued  = "queued"  // it waits no more; its messages are being sent
)

// forever is the duration of a wait without an end.
const forever = 100 * 365 * 24 * time.Hour

// A change makes a lane wait, because of the row at its head.
type change struct {
	row
	why      string
	attempts int
	pause    time.Duration
	err      error
}

// A settlement is what to store after a batch.
type settlement struct {
	sent     []int64  // delivered
	park     []row    // wait with their lanes
	changes  []change // lanes that wait
	dead     []change // messages that become dead letters
	relieved []int64  // lanes that do not wait any more
}

func (s settlement) empty() bool {
	return len(s.sent)+len(s.park)+len(s.changes)+len(s.dead)+len(s.relieved) == 0
}

// held returns the lanes with messages that were not delivered: a relay whose read did not see this
// settlement sends none of their messages.
func (s settlement) held() map[int64]bool {
	held := map[int64]bool{}
	for _, r := range s.park {
		held[r.lane] = true
	}
	for _, c := range slices.Concat(s.changes, s.dead) {
		held[c.lane] = true
	}
	return held
}

// judgement has the rules for failures.
type judgement struct {
	deadLetters bool
	attempts    int // of a rejected message
	giveUp      int // attempts of any message; 0 means no limit
	follow      AfterDeadLetter
	retry       backoff.Policy
	random      func() float64
}

// judge decides the outcome of a batch from the answers of the sink.
func (j judgement) judge(b batch, answers []error) (s settlement, failures []observe.OutboxFailed) {
	s.park, s.changes, s.relieved = b.park, slices.Clone(b.delays), b.idle
	failed, touched := map[int64]bool{}, map[int64]bool{}
	for i, r := range b.send {
		err := answerTo(answers, i)
		switch {
		case err == nil:
			s.sent = append(s.sent, r.id)
			if r.lists != free {
				touched[r.lane] = true
			}
		case failed[r.lane]: // it was not sent
			if !r.parked {
				s.park = append(s.park, r)
			}
		default:
			failed[r.lane] = true
			failures = append(failures, j.fail(&s, r, err))
			if s.follows(r.lane) {
				touched[r.lane] = true
			}
		}
	}
	for _, c := range s.changes {
		delete(touched, c.lane)
	}
	for lane := range touched {
		s.relieved = append(s.relieved, lane)
	}
	slices.Sort(s.relieved)
	return s, failures
}

// follows reports whether a lane continues although its head became a dead letter.
func (s *settlement) follows(lane int64) bool {
	sameLane := func(c change) bool { return c.lane == lane }
	return slices.ContainsFunc(s.dead, sameLane) && !slices.ContainsFunc(s.changes, sameLane)
}

// fail decides the outcome of a message that was not delivered. It replaces the change for a later
// delayed message of the lane.
func (j judgement) fail(s *settlement, r row, err error) observe.OutboxFailed {
	s.changes = slices.DeleteFunc(s.changes, func(c change) bool { return c.lane == r.lane })
	poison := refused(err)
	c := change{row: r, why: WhyRetry, attempts: r.tried() + 1, err: err}
	f := observe.OutboxFailed{ID: r.ID, Topic: r.Topic, Key: r.Key, Attempts: c.attempts, Poison: poison, Err: err}
	if j.deadLetters && (poison && c.attempts >= j.attempts || j.giveUp > 0 && c.attempts >= j.giveUp) {
		f.Dead = true
		s.dead = append(s.dead, c)
		if j.follow == Park && r.Key != "" {
			s.changes = append(s.changes, change{row: r, why: WhyDead, attempts: 0, pause: forever, err: err})
		}
		return f
	}
	c.pause = max(j.retry.Delay(c.attempts, j.random()), min(retryAfter(err), j.retry.Max))
	if poison {
		c.why = WhyBlocked
		if !j.deadLetters {
			c.pause = j.retry.Max
		}
	}
	if !r.parked {
		s.park = append(s.park, r)
	}
	s.changes = append(s.changes, c)
	f.Pause = c.pause
	return f
}

// refused reports whether an error means that the receiver never accepts the message. The end of a
// context means nothing about the message, although it is Definite if the request was not sent; nor
// does a closed sink.
func refused(err error) bool {
	var known interface{ ErrorKind() interlock.ErrorKind }
	if !errors.As(err, &known) || errors.Is(err, interlock.ErrClosed) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	kind := known.ErrorKind()
	return kind == interlock.Definite || kind == interlock.Bug
}

// retryAfter returns the pause that an error requests.
func retryAfter(err error) time.Duration {
	var hint interface{ RetryAfter() time.Duration }
	if errors.As(err, &hint) {
		return hint.RetryAfter()
	}
	return 0
}

var errNoAnswer = &interlock.Error{Op: "publish", Kind: interlock.Uncertain, Err: errors.New("the sink returned fewer answers than messages")}

func answerTo(answers []error, i int) error {
	if i >= len(answers) {
		return errNoAnswer
	}
	return answers[i]
}

// unavailable returns the first error if the sink seems to be unavailable: it neither delivered nor
// rejected a message of several lanes, nor requested a pause. Otherwise it returns nil.
func unavailable(b batch, answers []error) error {
	lanes := map[int64]bool{}
	for i, r := range b.send {
		if err := answerTo(answers, i); err == nil || refused(err) || retryAfter(err) > 0 {
			return nil
		}
		lanes[r.lane] = true
	}
	if len(lanes) < 2 {
		return nil
	}
	return answerTo(answers, 0)
}

// errorText returns the text of an error as it is stored, for people.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	const most = 1000
	s := sqltable.Clean(err.Error())
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
