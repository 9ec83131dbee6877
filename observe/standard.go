// Package observe defines the events of Interlock and the hooks that receive them. It stores
// nothing, samples nothing and uses no metrics library; adapters are in other packages.
//
// A panic in a hook is not recovered. Most hooks run in goroutines of Interlock, where it ends the
// process.
package observe

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/interlock-dev/interlock"
)

// Silent discards everything. Use it as the Log of hooks to disable the default logging:
// lock.Options{Hooks: &observe.Lock{Log: observe.Silent}}.
var Silent = slog.New(slog.DiscardHandler)

// WithDefaults of a struct of hooks returns a copy whose nil hooks for failures log.
// It accepts nil. A failure that a caller receives as an error is not logged too,
// except for refusals at the edge of a service.

const (
	warn = slog.LevelWarn
	loud = slog.LevelError // waits for an operator
)

// A process logs at most burst events of one type and one text in a period. The next such line
// has the attribute "suppressed", which is the number of events that it left out.
const (
	burst  = 20
	period = time.Second
)

// OnNil sets a nil *hook to a function that logs an event to log at a level, with the fields of the event as
// attributes. A nil log means slog.Default at the time of the event. message returns the text of an event, one of
// a few: each of them is limited to 20 lines in a second. An empty text logs nothing.
//
// Hooks log failures by default with it. It is exported for packages with their own events.
func OnNil[E any](hook *func(E), log *slog.Logger, level slog.Level, message func(E) string) {
	if *hook != nil || log == Silent {
		return
	}
	*hook = func(e E) {
		text := message(e)
		if text == "" {
			return
		}
		suppressed, ok := limitOf(kind{reflect.TypeFor[E](), text}).Admit()
		if !ok {
			return
		}
		write(log, level, text, e, suppressed)
	}
}

// write logs one event; a nil log means slog.Default.
func write[E any](log *slog.Logger, level slog.Level, text string, e E, suppressed int) {
	if log == nil {
		log = slog.Default()
	}
	if !log.Enabled(context.Background(), level) {
		return
	}
	attrs := fields(reflect.ValueOf(e))
	if suppressed > 0 {
		attrs = append(attrs, slog.Int("suppressed", suppressed))
	}
	log.LogAttrs(context.Background(), level, text, attrs...)
}

// copyOf returns a copy of hooks; h may be nil.
func copyOf[H any](h *H) *H {
	r := new(H)
	if h != nil {
		*r = *h
	}
	return r
}

// always returns the text for every event of a hook.
func always[E any](text string) func(E) string { return func(E) string { return text } }

// whenFailed returns the text for events with an error that is not a shutdown.
func whenFailed[E any](text string, failure func(E) error) func(E) string {
	return func(e E) string {
		if err := failure(e); err == nil || errors.Is(err, context.Canceled) || errors.Is(err, interlock.ErrReleased) {
			return ""
		}
		return text
	}
}

// kind identifies the events that are limited together. Hooks share types of events, so by the type alone a
// flood of one hook would hide the events of another.
type kind struct {
	event reflect.Type
	text  string
}

// A LogLimit admits at most 20 lines in a second, as the hooks of [OnNil] do for each kind of event. It is
// for packages that log without hooks. The zero value works. It is safe for concurrent use.
type LogLimit struct {
	mu              sync.Mutex
	since           time.Time
	logged, skipped int
}

var limits sync.Map // of kind to *LogLimit

func limitOf(k kind) *LogLimit {
	l, ok := limits.Load(k)
	if !ok {
		l, _ = limits.LoadOrStore(k, &LogLimit{})
	}
	return l.(*LogLimit)
}

// Admit reports whether a line may be logged now. suppressed is the number of lines that were left out
// before it; log it as the attribute "suppressed".
func (l *LogLimit) Admit() (suppressed int, ok bool) { return l.admit(time.Now()) }

func (l *LogLimit) admit(now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if since := now.Sub(l.since); since >= period || since < 0 {
		l.since, l.logged = now, 0
	}
	if l.logged >= burst {
		l.skipped++
		return 0, false
	}
	l.logged++
	suppressed, l.skipped = l.skipped, 0
	return suppressed, true
}

// fields returns the fields of an event: Err as "error", others in lower case with underscores. It omits nil
// errors and truncates long ones. An event that is a slog.LogValuer has the attributes of its group instead.
func fields(e reflect.Value) []slog.Attr {
	if v, ok := e.Interface().(slog.LogValuer); ok {
		return v.LogValue().Group()
	}
	var attrs []slog.Attr
	for i := range e.NumField() {
		field := e.Type().Field(i)
		if !field.IsExported() {
			continue
		}
		key := snake(field.Name)
		switch v := e.Field(i).Interface().(type) {
		case nil:
		case error:
			attrs = append(attrs, slog.String(key, fmt.Sprintf("%.2000s", v.Error())))
		case interlock.Token: // a string, because many readers of JSON round numbers of that size
			attrs = append(attrs, slog.String(key, v.String()))
		default:
			attrs = append(attrs, slog.Any(key, v))
		}
	}
	return attrs
}

// snake returns a field's name as a key of a log: in_doubt for InDoubt.
func snake(name string) string {
	if name == "Err" {
		return "error"
	}
	var b strings.Builder
	previous := 'A'
	for _, r := range name {
		if unicode.IsUpper(r) && !unicode.IsUpper(previous) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
		previous = r
	}
	return b.String()
}
