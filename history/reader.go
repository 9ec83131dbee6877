package history

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
)

// A Reader reads one history, one line at a time.
type Reader struct {
	// Header is the history's first line.
	Header Header

	r    *bufio.Reader
	line int
	last Event
	torn bool
}

// NewReader reads the header. A history of a newer schema is refused.
func NewReader(r io.Reader) (*Reader, error) {
	hr := &Reader{r: bufio.NewReader(r)}
	line, err := hr.r.ReadBytes('\n')
	if err != nil {
		return nil, fmt.Errorf("read history: no header: %w", err)
	}
	hr.line = 1
	if err := json.Unmarshal(line, &hr.Header); err != nil {
		return nil, fmt.Errorf("read history: header: %w", err)
	}
	if v := hr.Header.Version; v < 1 || v > Version {
		return nil, fmt.Errorf("read history: schema version %d is not among 1 to %d", v, Version)
	}
	return hr, nil
}

// Events yields the events once, in order. It ends after an error. It omits a
// truncated last line, as after a full disk, which [Reader.Torn] reports.
func (r *Reader) Events() iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for {
			e, err := r.next()
			if errors.Is(err, io.EOF) || !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// Torn reports, after the last event, whether a truncated line followed.
func (r *Reader) Torn() bool { return r.torn }

func (r *Reader) next() (Event, error) {
	line, err := r.r.ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		r.torn = len(bytes.TrimSpace(line)) > 0
		return Event{}, io.EOF
	}
	r.line++
	var e Event
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	if err == nil {
		err = follows(r.last, e)
	}
	if err != nil {
		return Event{}, fmt.Errorf("read history: line %d: %w", r.line, err)
	}
	r.last = e
	return e, nil
}

// follows checks that e may come after last in the history of one writer.
func follows(last, e Event) error {
	switch {
	case !slices.Contains(kinds, e.Kind):
		return fmt.Errorf("event of kind %q, which is none", e.Kind)
	case e.Seq != last.Seq+1:
		return fmt.Errorf("seq %d follows %d: one file has all events of one writer", e.Seq, last.Seq)
	case e.Mono < last.Mono:
		return fmt.Errorf("time goes back from %d to %d ns: one file has one writer", last.Mono, e.Mono)
	case e.Cause >= e.Seq || e.Cause < 0:
		return fmt.Errorf("event %d has cause %d, which is not an earlier event", e.Seq, e.Cause)
	}
	return nil
}
