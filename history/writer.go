package history

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/interlock-dev/interlock"
)

// Options configure a [Writer]; nil and the zero value are valid.
type Options struct {
	// Clock returns the time of an event: monotonic time shared by all writers
	// that are merged, and the wall clock. Nil reads the host's clocks. Under
	// virtual time, pass one that follows it.
	Clock func() (mono time.Duration, wall time.Time)
}

// A Writer appends events to one history. It is safe for concurrent use.
//
// Each event is one call of the underlying Write before the recording method
// returns, without buffering: events survive a crash of the process. After
// [Writer.Sync] they survive a crash of the machine.
type Writer struct {
	mu    sync.Mutex
	w     io.Writer
	clock func() (time.Duration, time.Time)
	seq   int64
	mono  time.Duration // of the last event
	err   error         // the first failure; nothing is written after it
}

// Create starts a history in a new file, which must not exist.
func Create(path string, h Header, o *Options) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("create history: %w", err)
	}
	w, err := NewWriter(f, h, o)
	if err != nil {
		f.Close()
		return nil, err
	}
	return w, nil
}

// NewWriter starts a history on w and writes the header. If w has Sync or Close,
// the methods of the same name call it.
func NewWriter(w io.Writer, h Header, o *Options) (*Writer, error) {
	hw := &Writer{w: w, clock: hostClock}
	h.Version = Version
	if o != nil && o.Clock != nil {
		hw.clock = o.Clock
	} else if h.Boot == "" {
		h.Boot = hostBoot()
	}
	if err := hw.line(h); err != nil {
		return nil, err
	}
	return hw, nil
}

func hostClock() (time.Duration, time.Time) { return hostMono(), time.Now() }

// Record sets the next Seq and the time of e, writes it, and returns its Seq.
// After a failure it writes nothing and returns 0; [Writer.Close] returns the error.
// It quotes a Key, ID, Owner or Value that is not valid UTF-8, which JSON cannot have.
func (w *Writer) Record(e Event) int64 {
	for _, text := range []*string{&e.Key, &e.ID, &e.Owner, &e.Value} {
		if !utf8.ValidString(*text) {
			*text = strconv.Quote(*text)
		}
	}
	if e.Src == "" {
		e.Src = caller(1)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	mono, wall := w.clock()
	w.mono = max(w.mono, mono)
	e.Seq, e.Mono, e.Wall = w.seq+1, int64(w.mono), wall
	if w.line(e) != nil {
		return 0
	}
	w.seq = e.Seq
	return e.Seq
}

// line writes one value by one Write.
func (w *Writer) line(v any) error {
	if w.err != nil {
		return w.err
	}
	b, err := json.Marshal(v)
	if err == nil {
		_, err = w.w.Write(append(b, '\n'))
	}
	if err != nil {
		w.err = fmt.Errorf("write history: %w", err)
	}
	return w.err
}

// Sync makes recorded events survive a crash of the machine. It returns the first
// failure of any event so far.
func (w *Writer) Sync() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f, ok := w.w.(interface{ Sync() error }); ok && w.err == nil {
		if err := f.Sync(); err != nil {
			w.err = fmt.Errorf("sync history: %w", err)
		}
	}
	return w.err
}

// Close syncs and closes, and returns the first failure of any event: a history with
// a gap proves nothing. Later events are not written.
func (w *Writer) Close() error {
	err := w.Sync()
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, ok := w.w.(io.Closer); ok {
		if cerr := c.Close(); err == nil {
			err = cerr
		}
	}
	if w.err == nil {
		w.err = fmt.Errorf("write history: %w", os.ErrClosed)
	}
	return err
}

// caller returns the place skip levels above its caller, as dir/file.go:line.
func caller(skip int) string {
	_, file, line, ok := runtime.Caller(skip + 1)
	if !ok {
		return ""
	}
	dir, base := filepath.Split(file)
	return fmt.Sprintf("%s/%s:%d", filepath.Base(dir), base, line)
}

// A Call is a running operation. Call exactly one of its methods, once, after the reply.
type Call struct {
	w     *Writer
	start Event
}

// Invoke records that an operation is about to begin, and sets e.Kind. Call it before the
// request is sent.
func (w *Writer) Invoke(e Event) Call {
	if e.Src == "" {
		e.Src = caller(1)
	}
	e.Kind = Invoke
	e.Seq = w.Record(e)
	return Call{w: w, start: e}
}

// OK records that it was done. value is the read or written value, or empty.
func (c Call) OK(value string) { c.end(Event{Kind: OK, Value: value}) }

// Granted records that an acquire got the lock.
func (c Call) Granted(token interlock.Token, owner string) {
	c.end(Event{Kind: Grant, Token: token, Owner: owner})
}

// Fail records that it was definitely not done.
func (c Call) Fail(why string) { c.end(Event{Kind: Fail, Value: why}) }

// Info records that its outcome is unknown.
func (c Call) Info(why string) { c.end(Event{Kind: Info, Value: why}) }

// Reject records that a guard rejected it; seen is the token of the guard's mark.
func (c Call) Reject(seen interlock.Token) { c.end(Event{Kind: Reject, Seen: seen}) }

// EndWith ends the call with an event of any kind that ends a call. If Token, Owner, ID, Amount
// or Stamp of e is zero, the call's value is used.
func (c Call) EndWith(e Event) { c.end(e) }

// End records the outcome by err: nil is OK, an [interlock.StaleTokenError] Reject, an
// uncertain error Info, and everything else Fail.
func (c Call) End(err error) {
	var stale *interlock.StaleTokenError
	switch {
	case err == nil:
		c.end(Event{Kind: OK})
	case errors.As(err, &stale):
		c.end(Event{Kind: Reject, Seen: stale.Seen, Value: err.Error()})
	case interlock.Kind(err) == interlock.Uncertain:
		c.end(Event{Kind: Info, Value: err.Error()})
	default:
		c.end(Event{Kind: Fail, Value: err.Error()})
	}
}

func (c Call) end(e Event) {
	s := c.start
	e.Lane, e.Op, e.Key, e.Cause, e.Src = s.Lane, s.Op, s.Key, s.Seq, caller(2)
	e.Token = cmp.Or(e.Token, s.Token)
	e.Owner = cmp.Or(e.Owner, s.Owner)
	e.ID = cmp.Or(e.ID, s.ID)
	e.Amount = cmp.Or(e.Amount, s.Amount)
	e.Stamp = cmp.Or(e.Stamp, s.Stamp)
	c.w.Record(e)
}
