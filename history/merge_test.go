package history

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/internal/testbed"
)

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
