package choreography

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/internal/failure"
)

// DefaultStalled is the default of [Definition].Stalled.
const DefaultStalled = time.Minute

// MaxEvent is the maximum length of the name of an event or a definition, in bytes.
const MaxEvent = 50

// MaxSaga is the maximum length of a saga's id, in bytes.
const MaxSaga = driver.MaxTransaction - MaxEvent - len("/")

// A Definition lists the events of sagas. It must not change while it is used.
type Definition struct {
	Name  string // 1 to [MaxEvent] bytes, without a slash
	Topic string // the outbox sends all events to it; their key is the saga's id
	// Steps have different events. Their order matters only for lists: the services decide
	// which event causes which.
	Steps []Step
	// Cancelled is the event by which a user, or [Tracker.Reconcile], cancels a saga.
	Cancelled string
	// Stalled is the time without a new event after which an unfinished saga is stalled; 0
	// means [DefaultStalled].
	Stalled time.Duration
}

// A Step is the work of one service in a saga, described by the events that report it.
type Step struct {
	Done   string // required, and names the step
	Undone string // required: the step is not done, and will not be done
	Failed string // the step was refused, and all services undo the saga; empty: it is never refused
	Pivot  bool   // once done, the step cannot be undone
}

// Validate returns an error of kind Bug if d is invalid.
func (d *Definition) Validate() error {
	const op = "define choreographed saga"
	if d == nil {
		return failure.Bug(op, "", "a definition is required")
	}
	if strings.Contains(d.Name, "/") || d.Stalled < 0 || len(d.Steps) == 0 {
		return failure.Bug(op, d.Name, "a name without a slash, steps, and a Stalled of 0 or more are required")
	}
	if err := cmp.Or(driver.CheckName(op, "a definition's name", d.Name, MaxEvent), driver.CheckName(op, "a topic", d.Topic, 255)); err != nil {
		return err
	}
	seen := map[string]bool{}
	for i, name := range d.events() {
		if err := driver.CheckName(op, "an event's name", name, MaxEvent); err != nil {
			return err
		}
		if seen[name] {
			return failure.Bug(op, d.Name, "event %d, %q, already has another meaning", i+1, name)
		}
		seen[name] = true
	}
	return nil
}

// events returns the names of all events.
func (d *Definition) events() []string {
	all := []string{d.Cancelled}
	for _, s := range d.Steps {
		all = append(all, s.Done, s.Undone)
		if s.Failed != "" {
			all = append(all, s.Failed)
		}
	}
	return all
}

// Undoes reports whether an event causes every service to undo its step: the cancellation, and
// the failure of a step.
func (d *Definition) Undoes(event string) bool {
	return event != "" && (event == d.Cancelled || slices.ContainsFunc(d.Steps, func(s Step) bool { return event == s.Failed }))
}

func (d *Definition) stalled() time.Duration { return cmp.Or(d.Stalled, DefaultStalled) }

// An Event is one event of a saga.
type Event struct {
	Saga    string            // its id, unique for all time among sagas of the definition; 1 to [MaxSaga] bytes
	Name    string            // 1 to [MaxEvent] bytes
	Cause   string            // the [Definition.ID] of the event that caused it; empty means none
	Begun   time.Time         // when the saga began, in whole milliseconds, the same in all of its events
	Headers map[string]string // without those of this package
	Payload []byte            // the same in every message of the event
}

// The headers of an event.
const (
	HeaderSaga  = "Interlock-Saga"  // the correlation id: the definition's name, a slash, and the saga's id
	HeaderEvent = "Interlock-Event" // the event's name
	HeaderCause = "Interlock-Cause" // the causation id, only if there is one
	HeaderBegun = "Interlock-Begun" // in milliseconds since 1970
)

// ID returns the id of an event, the same in every message of the event. It is the causation id
// of the events that it causes.
func (d *Definition) ID(e Event) string { return d.transaction(e) + "/" + e.Name }

// transaction returns the id of the saga in barriers.
func (d *Definition) transaction(e Event) string { return d.Name + "/" + e.Saga }

// Message returns the message of an event, for an outbox. It has no id, so the outbox assigns one:
// a Participant and a Tracker recognize several messages of one event. If e.Begun is zero, the saga
// begins now.
func (d *Definition) Message(e Event) driver.Message {
	headers := maps.Clone(e.Headers)
	if headers == nil {
		headers = map[string]string{}
	}
	if e.Begun.IsZero() {
		e.Begun = time.Now()
	}
	headers[HeaderSaga], headers[HeaderEvent], headers[HeaderBegun] = d.transaction(e), e.Name, strconv.FormatInt(e.Begun.UnixMilli(), 10)
	if e.Cause != "" {
		headers[HeaderCause] = e.Cause
	}
	return driver.Message{Topic: d.Topic, Key: e.Saga, Headers: headers, Payload: e.Payload}
}

// Read returns the event of a message. If the message is not an event of this definition, ok is
// false.
func (d *Definition) Read(m driver.QueueMessage) (e Event, ok bool) {
	begun, err := strconv.ParseInt(m.Headers[HeaderBegun], 10, 64)
	e = Event{Name: m.Headers[HeaderEvent], Cause: m.Headers[HeaderCause], Begun: time.UnixMilli(begun), Payload: m.Payload}
	e.Saga, ok = strings.CutPrefix(m.Headers[HeaderSaga], d.Name+"/")
	if !ok || err != nil || begun <= 0 || check(e) != nil {
		return Event{}, false
	}
	if driver.CheckName("read event", "a cause", e.Cause, 255) != nil {
		e.Cause = "" // it is no event's id
	}
	e.Headers = maps.Clone(m.Headers)
	for _, h := range []string{HeaderSaga, HeaderEvent, HeaderCause, HeaderBegun} {
		delete(e.Headers, h)
	}
	return e, true
}

func check(e Event) error {
	return cmp.Or(driver.CheckName("read event", "a saga's id", e.Saga, MaxSaga), driver.CheckName("read event", "an event's name", e.Name, MaxEvent))
}

// String returns the event for errors and logs.
func (e Event) String() string { return fmt.Sprintf("%q of saga %q", e.Name, e.Saga) }
