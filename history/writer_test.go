package history

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

// ticking returns a clock that advances by step at every reading.
func ticking(start, step time.Duration) func() (time.Duration, time.Time) {
	now := start
	return func() (time.Duration, time.Time) {
		now += step
		return now, time.Unix(0, int64(now)).UTC()
	}
}

func readAll(t *testing.T, r *Reader) []Event {
	t.Helper()
	var all []Event
	for e, err := range r.Events() {
		testbed.OK(t, err)
		all = append(all, e)
	}
	return all
}

func TestWhatIsWrittenIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	h := Header{Run: "r", Seed: 7, Mode: "broken", Backends: map[string]string{"redis": "7.0.15"}, Revision: "abc"}
	w, err := Create(path, h, nil)
	testbed.OK(t, err)
	write := Event{Lane: "A", Op: OpWrite, Key: "a\nb", Token: 10, Owner: "me", Strict: true, Value: "70"}
	w.Invoke(write).OK("60")
	w.Invoke(Event{Lane: "A", Op: OpAcquire, Key: "n"}).Granted(12, "me-1")
	w.Invoke(write).Reject(11)
	w.Record(Event{Lane: "net", Kind: FaultBegin, Op: "cut"})
	testbed.OK(t, w.Close())

	f, err := os.Open(path)
	testbed.OK(t, err)
	defer f.Close()
	r, err := NewReader(f)
	testbed.OK(t, err)
	h.Version, h.Boot = Version, hostBoot()
	if got := fmt.Sprint(r.Header); got != fmt.Sprint(h) {
		t.Errorf("header %v, want %v", got, h)
	}
	want := []Event{
		{Kind: Invoke, Lane: "A", Op: OpWrite, Key: "a\nb", Token: 10, Owner: "me", Strict: true, Value: "70"},
		{Kind: OK, Lane: "A", Op: OpWrite, Key: "a\nb", Token: 10, Owner: "me", Value: "60", Cause: 1},
		{Kind: Invoke, Lane: "A", Op: OpAcquire, Key: "n"},
		{Kind: Grant, Lane: "A", Op: OpAcquire, Key: "n", Token: 12, Owner: "me-1", Cause: 3},
		{Kind: Invoke, Lane: "A", Op: OpWrite, Key: "a\nb", Token: 10, Owner: "me", Strict: true, Value: "70"},
		{Kind: Reject, Lane: "A", Op: OpWrite, Key: "a\nb", Token: 10, Owner: "me", Seen: 11, Cause: 5},
		{Kind: FaultBegin, Lane: "net", Op: "cut"},
	}
	last := int64(0)
	for i, got := range readAll(t, r) {
		if got.Mono < last || got.Wall.IsZero() || !strings.HasPrefix(got.Src, "history/writer_test.go:") {
			t.Errorf("event %d has time %d, %v after %d, from %q", i, got.Mono, got.Wall, last, got.Src)
		}
		last = got.Mono
		want[i].Seq, want[i].Mono, want[i].Wall, want[i].Src = int64(i+1), got.Mono, got.Wall, got.Src
		if got != want[i] {
			t.Errorf("event %d\n got %+v\nwant %+v", i, got, want[i])
		}
	}
	if _, err := Create(path, h, nil); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a history was overwritten: %v", err)
	}
}

func TestEndByKindOfError(t *testing.T) {
	var buf bytes.Buffer
	w, err := NewWriter(&buf, Header{}, nil)
	testbed.OK(t, err)
	refused := &interlock.Error{Op: "write", Kind: interlock.Definite,
		Err: &interlock.StaleTokenError{Resource: "r", Seen: 11, Got: 10}}
	for _, err := range []error{nil, refused, interlock.ErrUncertain, io.ErrUnexpectedEOF, interlock.ErrExpired,
		&interlock.HeldError{Name: "n"}} {
		w.Invoke(Event{Lane: "A", Op: OpWrite, Key: "r", Token: 10}).End(err)
	}
	r, err := NewReader(&buf)
	testbed.OK(t, err)
	var got []Kind
	for _, e := range readAll(t, r) {
		if e.Kind == Invoke {
			continue
		}
		got = append(got, e.Kind)
		if (e.Kind == Reject) != (e.Seen == 11) || (e.Kind == OK) != (e.Value == "") {
			t.Errorf("%+v", e)
		}
	}
	if want := []Kind{OK, Reject, Info, Info, Fail, Fail}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestConcurrentWriters(t *testing.T) {
	var buf bytes.Buffer
	w, err := NewWriter(&buf, Header{}, nil)
	testbed.OK(t, err)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for range 200 {
				w.Invoke(Event{Lane: fmt.Sprint(g), Op: OpWrite, Key: "r", Token: 1}).OK("")
			}
		})
	}
	wg.Wait()
	r, err := NewReader(&buf)
	testbed.OK(t, err)
	report, err := CheckTokens(r.Events())
	if err != nil || report.Accepted != 1600 {
		t.Errorf("%v, %v", report, err)
	}
}

type failing struct{ after int }

func (f *failing) Write(p []byte) (int, error) {
	if f.after--; f.after < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

func TestAHoleInTheHistoryIsTold(t *testing.T) {
	w, err := NewWriter(&failing{after: 2}, Header{}, nil)
	testbed.OK(t, err)
	if w.Record(Event{Kind: State}) != 1 || w.Record(Event{Kind: State}) != 0 {
		t.Error("Record does not tell what was written")
	}
	if err := w.Close(); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("Close says %v", err)
	}
	if _, err := NewWriter(&failing{}, Header{}, nil); err == nil {
		t.Error("a header that was not written is no error")
	}
}

func TestReaderRefuses(t *testing.T) {
	const head = `{"interlock_history":1}` + "\n"
	for name, text := range map[string]string{
		"nothing":         "",
		"no header":       "{}\n",
		"a later version": `{"interlock_history":2}` + "\n",
		"no JSON":         head + "hello\n",
		"no kind":         head + `{"seq":1}` + "\n",
		"another kind":    head + `{"seq":1,"kind":"OK"}` + "\n",
		"a lost line":     head + `{"seq":1,"kind":"state"}` + "\n" + `{"seq":3,"kind":"state"}` + "\n",
		"a lost start":    head + `{"seq":2,"kind":"state"}` + "\n",
		"two writers":     head + `{"seq":1,"kind":"ok"}` + "\n" + `{"seq":1,"kind":"ok"}` + "\n",
		"time going back": head + `{"seq":1,"t_mono_ns":5,"kind":"ok"}` + "\n" + `{"seq":2,"t_mono_ns":4,"kind":"ok"}` + "\n",
		"a later cause":   head + `{"seq":1,"kind":"ok","cause":1}` + "\n",
	} {
		r, err := NewReader(strings.NewReader(text))
		if err == nil {
			for _, e := range r.Events() {
				err = e
			}
		}
		if err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestBinaryValuesStayDifferent: JSON has no invalid UTF-8, and would replace both by the same text.
func TestBinaryValuesStayDifferent(t *testing.T) {
	var buf bytes.Buffer
	w, err := NewWriter(&buf, Header{}, nil)
	testbed.OK(t, err)
	w.Invoke(Event{Op: OpWrite, Key: "k", Value: "\xfe"}).OK("")
	w.Invoke(Event{Op: OpWrite, Key: "k", Value: "\xff"}).Fail("rolled back")
	w.Invoke(Event{Op: OpRead, Key: "k"}).OK("\xff")
	r, err := NewReader(&buf)
	testbed.OK(t, err)
	if v, err := CheckReads(r.Events()); err != nil || v.Total != 1 {
		t.Errorf("a read of a rolled-back value: %v, %v", v, err)
	}
}

func TestACutLastLineIsLeftOut(t *testing.T) {
	r, err := NewReader(strings.NewReader(`{"interlock_history":1}` + "\n" + `{"seq":1,"kind":"state"}` + "\n" + `{"seq":2,"ki`))
	testbed.OK(t, err)
	if got := readAll(t, r); len(got) != 1 || !r.Torn() {
		t.Errorf("read %d events, torn %v", len(got), r.Torn())
	}
}

func TestHostClockIsShared(t *testing.T) {
	a := hostMono()
	b := hostMono()
	if a <= 0 || b < a || b-a > time.Minute {
		t.Errorf("read %v, then %v", a, b)
	}
}

// recorded returns a history of count writes by lane.
func recorded(t *testing.T, lane string, start, step time.Duration, count int) *Reader {
	t.Helper()
	var buf bytes.Buffer
	w, err := NewWriter(&buf, Header{}, &Options{Clock: ticking(start, step)})
	testbed.OK(t, err)
	for i := range count {
		w.Invoke(Event{Lane: lane, Op: OpWrite, Key: "r", Token: interlock.Token(i + 1)}).OK("")
	}
	r, err := NewReader(&buf)
	testbed.OK(t, err)
	return r
}

func TestMergeOrdersByTimeAndKeepsWriters(t *testing.T) {
	var got []string
	last := int64(0)
	for e, err := range Merge(recorded(t, "A", 0, 10, 2), recorded(t, "B", 5, 10, 2), recorded(t, "C", 100, 1, 1)) {
		testbed.OK(t, err)
		if e.Mono < last {
			t.Errorf("%d after %d", e.Mono, last)
		}
		last = e.Mono
		got = append(got, fmt.Sprintf("%s%d/%d", e.Lane, e.Seq, e.Writer))
	}
	if want := "A1/0 B1/1 A2/0 B2/1 A3/0 B3/1 A4/0 B4/1 C1/2 C2/2"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestMergeTakesEqualTimesAsOverlapping(t *testing.T) {
	// A returns in the same nanosecond in which B, with a lower token, begins.
	a := `{"interlock_history":1}
{"seq":1,"t_mono_ns":1,"lane":"A","kind":"invoke","op":"write","key":"r","token":2}
{"seq":2,"t_mono_ns":2,"lane":"A","kind":"ok","cause":1}
`
	b := `{"interlock_history":1}
{"seq":1,"t_mono_ns":2,"lane":"B","kind":"invoke","op":"write","key":"r","token":1}
{"seq":2,"t_mono_ns":3,"lane":"B","kind":"ok","cause":1}
`
	for _, later := range []string{b, strings.Replace(b, `"t_mono_ns":2`, `"t_mono_ns":3`, 1)} {
		ra, err := NewReader(strings.NewReader(a))
		testbed.OK(t, err)
		rb, err := NewReader(strings.NewReader(later))
		testbed.OK(t, err)
		report, err := CheckTokens(Merge(ra, rb))
		if err != nil || report.OK() != (later == b) {
			t.Errorf("%v, %v", report, err)
		}
	}
}

func TestMergeRefusesDifferentClocks(t *testing.T) {
	a, b := recorded(t, "A", 0, 1, 1), recorded(t, "B", 0, 1, 1)
	b.Header.Boot = "another"
	if _, err := CheckTokens(Merge(a, b)); err == nil {
		t.Error("merged histories of different boots")
	}
}

func TestMergeStopsAtABrokenHistory(t *testing.T) {
	bad, err := NewReader(strings.NewReader(`{"interlock_history":1}` + "\nhello\n"))
	testbed.OK(t, err)
	if _, err := CheckTokens(Merge(recorded(t, "A", 0, 1, 3), bad)); err == nil {
		t.Error("a broken history was judged")
	}
}

func TestCheckFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	wa, err := Create(a, Header{}, nil)
	testbed.OK(t, err)
	wb, err := Create(b, Header{}, nil)
	testbed.OK(t, err)
	wa.Invoke(Event{Lane: "A", Op: OpWrite, Key: "r", Token: 9}).OK("")
	wb.Invoke(Event{Lane: "B", Op: OpWrite, Key: "r", Token: 8}).OK("")
	testbed.OK(t, wa.Close())
	testbed.OK(t, wb.Close())
	report, err := CheckFiles(a, b)
	if err != nil || report.Total != 1 || report.Violations[0].Second != (Ref{Writer: 1, Seq: 2, Lane: "B"}) {
		t.Errorf("%v, %v", report, err)
	}
	testbed.OK(t, os.Remove(b))
	if _, err := CheckFiles(a, b); err == nil {
		t.Error("a missing file is no error")
	}
}
