package nats

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/driver/lanes"
)

// maxMetadata bounds the list of completed messages after the first pending one; it has room for
// hundreds of thousands of gaps.
const maxMetadata = 512 << 10

// position is the record of a partition: its completed messages, and the token of the writer.
type position struct {
	Holder   string `json:"holder"` // the session that wrote it
	Owner    string `json:"owner"`  // its name, for people
	Stream   int64  `json:"stream"` // when the stream was created, in ns: a new stream has new sequence numbers
	Sequence int64  `json:"sequence"`
	Metadata string `json:"metadata"`
}

// begin reads the position, and writes it with a higher token. After that no holder of a former
// token can write it. It returns false if the assignment has ended before.
func (a *assignment) begin() bool {
	s := a.session
	for {
		err := a.takeOver()
		if err == nil || s.ctx.Err() != nil {
			return err == nil
		}
		s.ReportTransient(fmt.Errorf("read a position: %w", err))
		if lanes.Pause(s.ctx, retryPause); driver.IsRevoked(a) {
			return false
		}
	}
}

func (a *assignment) takeOver() error {
	s := a.session
	ctx, cancel := context.WithTimeout(s.ctx, readLimit)
	defer cancel()
	stream, err := s.queue.js.Stream(ctx, s.stream)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	stored := position{}
	revision := uint64(0)
	entry, err := s.bucket.Get(ctx, s.positionKey(a.Partition))
	switch {
	case err == nil:
		revision = entry.Revision()
		if err := json.Unmarshal(entry.Value(), &stored); err != nil {
			return fmt.Errorf("the key %s is not a position: %w", entry.Key(), err)
		}
	case !errors.Is(err, jetstream.ErrKeyNotFound):
		return err
	}
	c := lanes.Decode(stored.Sequence, stored.Metadata)
	c.Held = c.Held && stored.Holder != s.id
	first, end := int64(info.State.FirstSeq), int64(info.State.LastSeq)+1
	switch {
	case stored.Stream != info.Created.UnixNano(), stored.Sequence > end: // of another stream, or of a restored one
		if revision > 0 {
			s.problem(fmt.Errorf("partition %d: its position %d is of another stream; it continues with the first message", a.Partition, stored.Sequence))
		}
		c = lanes.Committed{Prefix: first, Next: first, Token: c.Token}
	case stored.Sequence < first:
		s.problem(fmt.Errorf("partition %d: messages %d to %d were deleted; some may not have been handled", a.Partition, stored.Sequence, first-1))
	}
	o := lanes.Restore(c.Prefix, c, interlock.CounterAt(time.Now()), s.queue.options.Window)
	o.Begin(first)
	text, _ := o.Snapshot(true).Encode(maxMetadata)
	value, err := json.Marshal(position{s.id, s.Owner, info.Created.UnixNano(), o.Prefix(), text})
	if err != nil {
		return err
	}
	if revision == 0 { // also if an operator has deleted it
		revision, err = s.bucket.Create(ctx, s.positionKey(a.Partition), value)
	} else {
		revision, err = s.bucket.Update(ctx, s.positionKey(a.Partition), value, revision)
	}
	if err != nil {
		return err
	}
	s.Update(func() {
		a.revision, a.created = revision, info.Created.UnixNano()
		err = a.Begin(o)
		a.Ready = err == nil && s.IsAssigned(a)
	})
	return err
}

// send writes the positions of assignments concurrently; see [lanes.Commits].
func (s *session) send(answers map[*assignment]error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestLimit)
	defer cancel()
	parts := slices.Collect(maps.Keys(answers))
	errs := make([]error, len(parts))
	var writes sync.WaitGroup
	for i, a := range parts {
		writes.Go(func() { errs[i] = a.write(ctx) })
	}
	writes.Wait()
	for i, a := range parts {
		answers[a] = errs[i]
	}
}

// write writes the position as of the moment before the request is sent.
func (a *assignment) write(ctx context.Context) error {
	s := a.session
	key := s.positionKey(a.Partition)
	for {
		var value []byte
		live := false
		s.Mu.Lock()
		revision := a.revision
		if live = s.IsAssigned(a); live {
			text, _ := a.Offsets.Snapshot(a.Held).Encode(maxMetadata)
			value, _ = json.Marshal(position{s.id, s.Owner, a.created, a.Offsets.Prefix(), text}) // strings and numbers
		}
		s.Mu.Unlock()
		if !live {
			return lost(a)
		}
		revision, err := s.bucket.Update(ctx, key, value, revision)
		if isStale(err) {
			revision, err = a.ownRevision(ctx, key)
			if err == nil {
				s.Update(func() { a.revision = revision })
				continue // an answer was lost
			}
		}
		switch {
		case err == nil:
			s.Update(func() { a.revision = revision })
			return nil
		case errors.Is(err, interlock.ErrLost):
			s.Lose(interlock.ErrLost, s.owns)
			return lost(a)
		}
		return failed(a, classify(err), err)
	}
}

// ownRevision returns the revision of the position if this assignment wrote it, else an ErrLost.
func (a *assignment) ownRevision(ctx context.Context, key string) (uint64, error) {
	entry, err := a.session.bucket.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, interlock.ErrLost
	} else if err != nil {
		return 0, err
	}
	var stored position
	if err := json.Unmarshal(entry.Value(), &stored); err != nil {
		return 0, interlock.ErrLost
	}
	if c := lanes.Decode(stored.Sequence, stored.Metadata); stored.Holder != a.session.id || c.Token != a.Token().Counter() {
		return 0, interlock.ErrLost
	}
	return entry.Revision(), nil
}

func failed(a *assignment, kind interlock.ErrorKind, err error) error {
	return problem("record position", a.Name(), kind, err)
}

func lost(a *assignment) error { return failed(a, interlock.Definite, interlock.ErrLost) }

// isStale reports whether a key was not at the revision that a write expected.
func isStale(err error) bool {
	var answer *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &answer) && answer.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence
}
