package observe

import (
	"bytes"
	"errors"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
)

// defaults are the hooks that options leave nil.
var defaults = map[string]any{
	"Lock": (*Lock)(nil).WithDefaults(), "Partition": (*Partition)(nil).WithDefaults(), "RowLock": (*RowLock)(nil).WithDefaults(),
	"Fence": (*Fence)(nil).WithDefaults(), "Deadlock": (*Deadlock)(nil).WithDefaults(),
	"Idempotency": (*Idempotency)(nil).WithDefaults(), "Once": (*Once)(nil).WithDefaults(),
	"Version": (*Version)(nil).WithDefaults(), "Wire": (*Wire)(nil).WithDefaults(), "Proxy": (*Proxy)(nil).WithDefaults(),
	"Keyed": (*Keyed)(nil).WithDefaults(), "Sequence": (*Sequence)(nil).WithDefaults(), "Outbox": (*Outbox)(nil).WithDefaults(), "Queue": (*Queue)(nil).WithDefaults(),
	"Limit":       (*Limit)(nil).WithDefaults(),
	"Coordinator": (*Coordinator)(nil).WithDefaults(), "Saga": (*Saga)(nil).WithDefaults(), "TCC": (*TCC)(nil).WithDefaults(),
	"TwoPC": (*TwoPC)(nil).WithDefaults(),
	// They return every failure to their caller.
	"Isolation": &Isolation{}, "Stock": &Stock{},
}

// quiet are the hooks of routine events, and of failures that a caller receives.
var quiet = map[string][]string{
	"Lock":        {"Waiting", "Acquired", "HandedOver"},
	"Partition":   {"Acquired", "Refused"},
	"RowLock":     {"Locked", "Released"},
	"Idempotency": {"Answered", "Reaped"},
	"Isolation":   {"Retried", "Ended"},
	"Stock":       {"Short", "GivenAway"},
	"Once":        {"Duplicate", "Gap"},
	"Version":     {"Attempted", "Retrying"},
	"Wire":        {"Admitted"},
	"Keyed":       {"Started", "Ended"},
	"Sequence":    {"Gap", "Late", "Dropped"},
	"Outbox":      {"Serving", "Published"},
	"Limit":       {"Refused"},
	"Saga":        {"Started", "Ended"},
	"TCC":         {"Decided", "Ended"},
	"TwoPC":       {"Decided", "Ended"},
}

// capture receives what is logged by default.
func capture(t *testing.T) *bytes.Buffer {
	var out bytes.Buffer
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	limits.Clear()
	return &out
}

// each calls visit with every hook of every struct.
func each(visit func(hooks, hook string, f reflect.Value)) {
	for name, hooks := range defaults {
		v := reflect.ValueOf(hooks).Elem()
		for i := range v.NumField() {
			if v.Field(i).Kind() == reflect.Func {
				visit(name, v.Type().Field(i).Name, v.Field(i))
			}
		}
	}
}

// TestNilHooksLogFailures requires that every hook either logs by default, or is
// listed as quiet.
func TestNilHooksLogFailures(t *testing.T) {
	out := capture(t)
	each(func(hooks, hook string, f reflect.Value) {
		if slices.Contains(quiet[hooks], hook) {
			if !f.IsNil() {
				t.Errorf("%s.%s is quiet, and has a default", hooks, hook)
			}
			return
		}
		if f.IsNil() {
			t.Errorf("%s.%s is nil by default: give it one in WithDefaults, or list it as quiet", hooks, hook)
			return
		}
		out.Reset()
		f.Call([]reflect.Value{filled(f.Type().In(0))})
		got := out.String()
		if strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=WARN") && !strings.Contains(got, "level=ERROR") {
			t.Errorf("%s.%s logs %q", hooks, hook, got)
		}
		if strings.ContainsRune(got, 0x1b) || hooks+hook != "PartitionDraining" && !strings.Contains(got, `\x1b[31mred\nline`) {
			t.Errorf("%s.%s does not escape %q", hooks, hook, got)
		}
	})
}

// filled returns an event of a failure, with text that would change a terminal.
func filled(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	for i := range v.NumField() {
		f := v.Field(i)
		switch f.Kind() {
		case reflect.String:
			f.SetString("\x1b[31mred\nline")
		case reflect.Int, reflect.Int64:
			f.SetInt(1)
		case reflect.Slice:
			f.Set(reflect.ValueOf([]string{"\x1b[31mred\nline"}))
		case reflect.Interface:
			f.Set(reflect.ValueOf(errors.New("\x1b[31mred\nline")))
		}
	}
	if f := v.FieldByName("Cause"); f.IsValid() && strings.HasPrefix(t.Name(), "Partition") {
		f.SetZero() // a partition without a cause was lost
	}
	return v
}

// TestRoutineIsSilent requires that default hooks log no success.
func TestRoutineIsSilent(t *testing.T) {
	out := capture(t)
	(*Lock)(nil).WithDefaults().Renewed(LockRenewed{Name: "n"})
	(*Lock)(nil).WithDefaults().Ended(LockEnded{Name: "n", Cause: interlock.ErrReleased})
	(*Partition)(nil).WithDefaults().Released(PartitionReleased{Cause: errors.New("moved")})
	(*Once)(nil).WithDefaults().Cleaned(OnceCleaned{Rows: 3})
	(*Outbox)(nil).WithDefaults().Stopped(OutboxStopped{Err: interlock.ErrClosed})
	(*Proxy)(nil).WithDefaults().Sent(ProxySent{Status: 200})
	(*TwoPC)(nil).WithDefaults().Scanned(TwoPCScanned{InDoubt: 3})
	if out.Len() > 0 {
		t.Errorf("logged %s", out)
	}
}

// TestEveryHooksStructIsListed requires that defaults lists every struct of hooks.
func TestEveryHooksStructIsListed(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(gotoken.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			if st, ok := s.Type.(*ast.StructType); ok && slices.ContainsFunc(st.Fields.List, func(f *ast.Field) bool {
				_, ok := f.Type.(*ast.FuncType)
				return ok
			}) && defaults[s.Name.Name] == nil {
				t.Errorf("%s: add %s to defaults", file, s.Name.Name)
			}
			return true
		})
	}
}

// TestEveryUserAppliesDefaults requires that a package with hooks among its options
// calls WithDefaults.
func TestEveryUserAppliesDefaults(t *testing.T) {
	for _, room := range []string{"claim", "guard", "flow", "txn"} {
		uses, applies := map[string]bool{}, map[string]bool{}
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(source)) {
				words := strings.Fields(line)
				if len(words) == 2 && (words[0] == "Hooks" || words[0] == "Observe") && words[1] != "observe.Isolation" && words[1] != "observe.Stock" {
					uses[filepath.Dir(path)] = true
				}
				if strings.Contains(line, "WithDefaults()") || strings.Contains(line, "Hooks.Lock}") {
					applies[filepath.Dir(path)] = true
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(uses) == 0 {
			t.Errorf("%s: no package has hooks", room)
		}
		for dir := range uses {
			if !applies[dir] {
				t.Errorf("%s has hooks and no call of WithDefaults", dir)
			}
		}
	}
}

func TestSilent(t *testing.T) {
	out := capture(t)
	h := (&Lock{Log: Silent}).WithDefaults()
	if h.Ended != nil || h.Renewed != nil || h.HeldLong != nil || h.ReleaseFailed != nil {
		t.Error("Silent hooks are not nil")
	}
	var other bytes.Buffer
	called := 0
	h = (&Lock{Log: slog.New(slog.NewTextHandler(&other, nil)), Ended: func(LockEnded) { called++ }}).WithDefaults()
	h.Ended(LockEnded{Cause: interlock.ErrLost})
	h.ReleaseFailed(LockReleaseFailed{Name: "n", Err: errors.New("boom")})
	if called != 1 || !strings.Contains(other.String(), `msg="lock release not confirmed, it is left to expire" name=n owner="" error=boom`) {
		t.Errorf("called %d times, logged %s", called, &other)
	}
	if out.Len() > 0 {
		t.Errorf("the default logger has %s", out)
	}
}

// TestLogIsLimited requires that an event floods no log and hides no other.
func TestLogIsLimited(t *testing.T) {
	out := capture(t)
	h := (*Keyed)(nil).WithDefaults()
	for range 10 * burst {
		h.Refused(KeyedRefused{Key: "k", Err: errors.New("full")})
	}
	if n := strings.Count(out.String(), "\n"); n > 5*burst {
		t.Errorf("%d lines", n)
	}
	l, now := &LogLimit{}, time.Now()
	for range burst {
		if _, ok := l.admit(now); !ok {
			t.Fatal("refused too early")
		}
	}
	for range 3 {
		if _, ok := l.admit(now); ok {
			t.Fatal("admitted too much")
		}
	}
	if skipped, ok := l.admit(now.Add(period)); !ok || skipped != 3 {
		t.Errorf("%d, %v after a period", skipped, ok)
	}
	gaps, sent := (*Sequence)(nil).WithDefaults(), (*Outbox)(nil).WithDefaults()
	for range 10 * burst {
		gaps.Overdue(SequenceGap{Key: "k"})
		sent.Failed(OutboxFailed{ID: "i"})
	}
	for name, tell := range map[string]func(){
		"of another type": func() { (*Lock)(nil).WithDefaults().HeldLong(LockHeldLong{Name: "n"}) },
		"of another hook": func() { gaps.Halted(SequenceGap{Key: "k"}) },
		"dead letter":     func() { sent.Failed(OutboxFailed{ID: "i", Dead: true}) },
	} {
		out.Reset()
		if tell(); out.Len() == 0 || strings.Contains(out.String(), "suppressed") {
			t.Errorf("an event, %s, is logged as %q", name, out)
		}
	}
}

func TestLogLocks(t *testing.T) {
	var out bytes.Buffer
	limits.Clear()
	h := LogLocks(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	boom := errors.New("boom")
	for _, c := range []struct {
		tell func()
		want string
	}{
		{func() { h.Waiting(LockWaiting{Name: "n", Owner: "o", Ahead: 2, Holder: "x"}) }, `DEBUG msg="waiting for lock" name=n owner=o ahead=2 holder=x`},
		{func() { h.Acquired(LockAcquired{Name: "n", Owner: "o", Token: 4096, Wait: time.Second}) }, `DEBUG msg="lock acquired" name=n owner=o token=4096 wait=1s`},
		{func() { h.Acquired(LockAcquired{Name: "n", Wait: time.Second, Err: boom}) }, `DEBUG msg="lock not acquired" name=n owner="" token=0 wait=1s error=boom`},
		{func() { h.HandedOver(LockHandedOver{Name: "n", Owner: "o", Token: 4097}) }, `DEBUG msg="lock handed over in process" name=n owner=o token=4097`},
		{func() { h.Renewed(LockRenewed{Name: "n", Owner: "o", Took: time.Second, Err: boom}) }, `WARN msg="lock renewal failed" name=n owner=o took=1s error=boom`},
		{func() { h.Renewed(LockRenewed{Name: "n", Owner: "o"}) }, ""},
		{func() {
			h.Ended(LockEnded{Name: "n", Owner: "o", Token: 4096, Held: time.Second, Cause: interlock.ErrReleased})
		}, `DEBUG msg="lock released" name=n owner=o token=4096 held=1s cause="claim released"`},
		{func() {
			h.Ended(LockEnded{Name: "n", Owner: "o", Token: 4096, Held: time.Second, Cause: interlock.ErrLost})
		}, `WARN msg="lock lost" name=n owner=o token=4096 held=1s cause=`},
		{func() {
			h.HeldLong(LockHeldLong{Name: "n", Owner: "o", Token: 4096, Held: 3 * time.Second, Max: 4 * time.Second})
		}, `WARN msg="lock held for long" name=n owner=o token=4096 held=3s max=4s`},
		{func() { h.ReleaseFailed(LockReleaseFailed{Name: "n", Owner: "o", Err: boom}) }, `WARN msg="lock release not confirmed, it is left to expire" name=n owner=o error=boom`},
	} {
		out.Reset()
		c.tell()
		if got := out.String(); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
			t.Errorf("got  %swant %s", got, c.want)
		}
	}
}

// TestDisabledLevelsCostNothing logs the events of each lock at a level that few loggers write.
func TestDisabledLevelsCostNothing(t *testing.T) {
	h := LogLocks(slog.New(slog.NewTextHandler(io.Discard, nil)))
	if n := testing.AllocsPerRun(100, func() { h.Acquired(LockAcquired{Name: "n", Owner: "o"}) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
