package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
)

var (
	streamLettersScript = newReader(streamLua("letters"))
	streamShowScript    = newReader(streamLua("show"))
	streamReplayScript  = newDrainingScript("replay")
	streamResumeScript  = newDrainingScript("resume")
)

// ErrNotFound means that a dead letter, or a parked key, does not exist. Errors with it
// are Definite, and nothing was changed.
var ErrNotFound = errors.New("not found")

// A DeadLetter is a message that is no longer delivered. Its Attempt is that of the last delivery.
// If its entry was deleted from the stream, only Place is set.
type DeadLetter struct {
	driver.Received
	Reason string
	Died   time.Time // by the clock of the server
}

// DeadLetters returns the dead letters of a queue after a place, in the order of their addition, 1
// to 1000 at most.
func (q *Queue) DeadLetters(ctx context.Context, name string, after int64, most int) (all []DeadLetter, err error) {
	asked := request{op: "list dead letters", name: name}
	keys, err := q.keys(asked.op, name)
	if err != nil {
		return nil, err
	}
	s := &streamStore{q, name, keys}
	found, err := s.eval(ctx, asked.op, streamLettersScript, []string{strconv.FormatInt(after, 10), strconv.Itoa(min(max(most, 1), 1000))})
	if err != nil {
		return nil, err
	}
	for _, m := range found {
		var l DeadLetter
		parts, err := m.ToArray()
		if err != nil || len(parts) != received+2 || parseReceived(&l.Received, parts) != nil {
			return nil, problem(asked, interlock.Retryable, errReply)
		}
		l.Queue, l.Attempt = name, l.Attempt-1
		died, _ := parts[received].AsInt64()
		l.Reason, _ = parts[received+1].ToString()
		l.Died = time.UnixMilli(died).UTC()
		all = append(all, l)
	}
	return all, nil
}

// Replay delivers dead letters again, each in its former place: before unhandled messages that were
// added to its key later. If one does not exist the error is an [ErrNotFound]. The reason and the
// operator are added to the stream interlock:{TAG}:queue:audit:GROUP/STREAM, which keeps about the
// last 10,000.
func (q *Queue) Replay(ctx context.Context, name, reason, by string, places ...int64) error {
	return q.dispose(ctx, "replay", name, reason, by, places)
}

// Discard deletes dead letters, also from the stream. If one does not exist the error is
// an [ErrNotFound]. It is recorded like a Replay.
func (q *Queue) Discard(ctx context.Context, name, reason, by string, places ...int64) error {
	return q.dispose(ctx, "discard", name, reason, by, places)
}

func (q *Queue) dispose(ctx context.Context, action, name, reason, by string, places []int64) error {
	args := []string{q.options.Group, action, reason, by}
	for _, p := range places {
		args = append(args, strconv.FormatInt(p, 10))
	}
	return q.act(ctx, streamReplayScript, action+" dead letters", name, args, reason, by, len(places), "not all of the dead letters are there")
}

// Resume resumes the delivery of a parked key. If it is not parked the error is an [ErrNotFound].
// It is recorded like a Replay.
func (q *Queue) Resume(ctx context.Context, name, key, reason, by string) error {
	return q.act(ctx, streamResumeScript, "resume key", name, []string{key, reason, by}, reason, by, 1, "the key "+strconv.Quote(key)+" is not parked")
}

// act runs a script that answers how many it found, and changes nothing unless it found all.
func (q *Queue) act(ctx context.Context, s *script, op, name string, args []string, reason, by string, all int, missing string) error {
	asked := request{op: op, name: name}
	keys, err := q.keys(op, name)
	if err != nil {
		return err
	}
	if strings.TrimSpace(reason) == "" || strings.TrimSpace(by) == "" {
		return problem(asked, interlock.Bug, errors.New("a reason and an operator are required"))
	}
	n, err := q.conn.number(ctx, asked, s, batch{keys, args})
	switch {
	case err != nil:
		return err
	case int(n) != all:
		return problem(asked, interlock.Definite, fmt.Errorf("%w: %s", ErrNotFound, missing))
	}
	return nil
}

// A StuckKey is a key, or a message without one, that is parked or whose first message has failed.
// Received is that message; its Attempt is that of the last delivery.
type StuckKey struct {
	driver.Received
	Reason string
	Parked bool          // until Resume
	Wait   time.Duration // until the next attempt, if it is not parked; 0 if it is due
}

// A QueueStatus is the state of a queue.
type QueueStatus struct {
	Queue    string
	Messages int64 // unfinished, including those being handled
	Dead     int64
	Parked   int64         // keys
	Leased   int64         // keys, or messages without one
	Oldest   time.Duration // age of the oldest unfinished message that a consumer has seen
}

// Status returns all queues of the prefix and the group that a consumer has joined, by name. It
// scans the keys of the database, and the keys of each queue, without blocking the server.
func (q *Queue) Status(ctx context.Context) (all []QueueStatus, err error) {
	mark := "}:" + queueMark + "lanes:" + q.options.Group + "/" + q.options.Prefix
	names, err := scan(ctx, q.conn, escapeGlob(reserved)+"*"+escapeGlob(mark)+"*", func(key string) (string, bool) {
		_, name, ok := strings.Cut(key, mark)
		return name, ok
	})
	for _, name := range names {
		status, _, err := q.show(ctx, "show queues", name, -1)
		if err != nil {
			return nil, err
		}
		if status.Messages+status.Dead > 0 {
			all = append(all, status)
		}
	}
	return all, err
}

// Stuck lists keys that are parked or failing, by place, 1 to 1000 at most. It scans the keys of
// the queue.
func (q *Queue) Stuck(ctx context.Context, name string, most int) ([]StuckKey, error) {
	_, all, err := q.show(ctx, "show queue", name, min(max(most, 1), 1000))
	slices.SortFunc(all, func(a, b StuckKey) int { return cmp.Compare(a.Place, b.Place) })
	return all[:min(len(all), max(most, 1))], err
}

// show reads a queue, until it has found most stuck keys; a negative most keeps none.
func (q *Queue) show(ctx context.Context, op, name string, most int) (status QueueStatus, stuck []StuckKey, err error) {
	asked := request{op: op, name: name}
	keys, err := q.keys(op, name)
	if err != nil {
		return status, nil, err
	}
	s, status, seen := &streamStore{q, name, keys}, QueueStatus{Queue: name}, map[int64]bool{}
	for cursor := "0"; ; {
		page, err := s.eval(ctx, op, streamShowScript, []string{q.options.Group, cursor})
		if err != nil {
			return status, nil, err
		}
		if len(page) != 7 {
			return status, nil, problem(asked, interlock.Retryable, errReply)
		}
		var numbers [6]int64
		for i := range numbers {
			numbers[i], _ = page[i].AsInt64()
		}
		status.Messages, status.Dead = numbers[1], numbers[2]
		status.Leased, status.Parked = status.Leased+numbers[3], status.Parked+numbers[4]
		status.Oldest = max(status.Oldest, time.Duration(numbers[5])*time.Millisecond)
		some, _ := page[6].ToArray()
		for _, m := range some {
			k, err := parseStuck(m)
			if err != nil {
				return status, nil, problem(asked, interlock.Retryable, err)
			}
			if !seen[k.Place] && most > 0 { // a scan may return one twice
				seen[k.Place] = true
				stuck = append(stuck, k)
			}
		}
		if cursor, _ = page[0].ToString(); cursor == "0" || cursor == "" || most > 0 && len(stuck) >= most {
			return status, stuck, nil
		}
	}
}

func parseStuck(m rueidis.RedisMessage) (k StuckKey, err error) {
	parts, err := m.ToArray()
	if err != nil || len(parts) != received+3 || parseReceived(&k.Received, parts) != nil {
		return k, errReply
	}
	k.Attempt--
	parked, _ := parts[received].AsInt64()
	wait, _ := parts[received+1].AsInt64()
	k.Parked = parked == 1
	k.Reason, _ = parts[received+2].ToString()
	if !k.Parked {
		k.Wait = time.Duration(wait) * time.Millisecond
	}
	return k, nil
}
