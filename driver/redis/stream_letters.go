package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

//go:embed script/stream_letters.lua
var streamLettersLua string

//go:embed script/stream_replay.lua
var streamReplayLua string

//go:embed script/stream_resume.lua
var streamResumeLua string

var (
	streamLettersScript = newScript(constants + streamConstants + drawLua + streamQueueLua + streamLettersLua)
	streamReplayScript  = newDrainingScript(streamReplayLua)
	streamResumeScript  = newDrainingScript(streamResumeLua)
)

// ErrNotFound means that a dead letter, or a parked key, is not there. Errors with it are
// Definite, and nothing was changed.
var ErrNotFound = errors.New("not found")

// A Letter is a message that is not delivered any more. Its Attempt is that of the last delivery.
// Without an entry in the stream, which somebody deleted, it has a Place only.
type Letter struct {
	driver.Received
	Reason string
	Died   time.Time // by the clock of the server
}

// Letters are the dead letters of a queue behind a place, in the order in which they were added, 1
// to 1000 at most.
func (q *Queue) Letters(ctx context.Context, name string, after int64, most int) (all []Letter, err error) {
	asked := request{op: "list dead letters", name: name}
	keys, err := q.keys(asked.op, name)
	if err != nil {
		return nil, err
	}
	s := &streamStore{q, name, keys}
	found, err := s.eval(ctx, asked.op, streamLettersScript, []string{strconv.FormatInt(after, 10), strconv.Itoa(min(max(most, 1), 1000))})
	if err != nil {
		return nil, harmless(asked, err)
	}
	for _, m := range found {
		r, rest, err := parseReceived(m)
		if err != nil || len(rest) != 2 {
			return nil, problem(asked, interlock.Retryable, errReply)
		}
		r.Queue, r.Attempt = name, r.Attempt-1
		died, _ := rest[0].AsInt64()
		reason, _ := rest[1].ToString()
		all = append(all, Letter{r, reason, time.UnixMilli(died).UTC()})
	}
	return all, nil
}

// Replay delivers dead letters again, each in its former place: before what was added to its key
// later and is not handled. If one is not there the error is an [ErrNotFound].
func (q *Queue) Replay(ctx context.Context, name string, places ...int64) error {
	return q.dispose(ctx, "replay", name, places)
}

// Discard deletes dead letters. If one is not there the error is an [ErrNotFound].
func (q *Queue) Discard(ctx context.Context, name string, places ...int64) error {
	return q.dispose(ctx, "discard", name, places)
}

func (q *Queue) dispose(ctx context.Context, action, name string, places []int64) error {
	asked := request{op: action + " dead letters", name: name}
	keys, err := q.keys(asked.op, name)
	if err != nil {
		return err
	}
	args := []string{q.options.Group, action}
	for _, p := range places {
		args = append(args, strconv.FormatInt(p, 10))
	}
	m, err := q.conn.eval(ctx, asked, streamReplayScript, batch{keys, args})
	if err != nil {
		return err
	}
	if n, err := m.AsInt64(); err != nil || int(n) != len(places) {
		return problem(asked, interlock.Definite, fmt.Errorf("%w: there are %d of %d dead letters", ErrNotFound, n, len(places)))
	}
	return nil
}

// Resume lets a parked key go on. One that is not parked is an [ErrNotFound].
func (q *Queue) Resume(ctx context.Context, name, key string) error {
	asked := request{op: "resume key", name: name}
	keys, err := q.keys(asked.op, name)
	if err != nil {
		return err
	}
	m, err := q.conn.eval(ctx, asked, streamResumeScript, batch{keys, []string{key}})
	if err != nil {
		return err
	}
	if n, err := m.AsInt64(); err != nil || n != 1 {
		return problem(asked, interlock.Definite, fmt.Errorf("%w: key %q is not parked", ErrNotFound, key))
	}
	return nil
}
