package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/claim/elect/schedule"
	"github.com/interlock-dev/interlock/driver"
)

// job records each tick under its own key, once.
type job struct {
	*backend
	name string
	work time.Duration
	out  io.Writer
}

// run does the work of one tick. It enters the guard before it reads the result of an
// earlier run of the tick: from then on that run can write nothing.
func (j *job) run(ctx context.Context, tick schedule.Tick) error {
	j.tell("begun", tick, nil)
	guard := driver.Raise{Resource: j.name, Token: tick.Term.Token(), Source: tick.Term.Owner()}
	if tick.Begun {
		if err := j.fence.Enter(ctx, guard); err != nil {
			return j.tell("refused", tick, err)
		}
		if done, err := j.get(ctx, j.key(tick)); done != "" || err != nil {
			return j.tell("done before", tick, err)
		}
	}
	time.Sleep(j.work)
	note := driver.Write{Key: j.key(tick), Value: []byte(tick.Term.Owner())}
	// The context may have ended meanwhile; the guard decides whether the write still
	// counts.
	if err := j.fence.Enter(context.WithoutCancel(ctx), guard, note); err != nil {
		return j.tell("refused", tick, err)
	}
	return j.tell("accepted", tick, nil)
}

func (j *job) report(_ context.Context, tick schedule.Tick) { _ = j.tell("reported", tick, nil) }

func (j *job) key(tick schedule.Tick) string {
	return j.name + "/" + tick.At.Format(time.RFC3339Nano)
}

// line is one line of output.
type line struct {
	What   string          `json:"what"`
	Tick   time.Time       `json:"tick"`
	LateMS int64           `json:"late_ms"` // when it was begun or reported
	Again  bool            `json:"again,omitempty"`
	Token  interlock.Token `json:"token,string"`
	At     time.Time       `json:"at"`
	Error  string          `json:"error,omitempty"`
}

// tell prints a line and returns err.
func (j *job) tell(what string, tick schedule.Tick, err error) error {
	l := line{What: what, Tick: tick.At, LateMS: tick.Late.Milliseconds(), Again: tick.Begun,
		Token: tick.Term.Token(), At: time.Now().UTC()}
	if err != nil {
		l.Error = err.Error()
	}
	text, _ := json.Marshal(l) // cannot fail
	fmt.Fprintf(j.out, "%s\n", text)
	return err
}
