package idempotency_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/guard/idempotency"
)

// TestLargeAnswerFailsClosed: it is shown once, and the request is never run again.
func TestLargeAnswerFailsClosed(t *testing.T) {
	large := strings.Repeat("x", idempotency.DefaultMaxAnswer+1)
	s := serve(t, memory.NewIdempotency(), nil, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, large) })
	if first := s.ask(t, "k"); first.Status != 200 || first.Body != large {
		t.Errorf("%d, %d bytes", first.Status, len(first.Body))
	}
	for range 2 {
		got := s.ask(t, "k")
		if s.want(t, got, 409, "answer-not-kept"); got.Header.Get("Retry-After") != "" || !strings.Contains(got.Body, "status 200") {
			t.Errorf("%v %s", got.Header, got.Body)
		}
	}
	if s.runs.Load() != 1 {
		t.Errorf("run %d times", s.runs.Load())
	}
}

// TestAnswerBeyondMemory: an answer beyond the memory bound is not sent, and is in
// memory only up to the bound. If it would be stored, the request never runs again;
// otherwise it stays unfinished. A LastPhase is not affected.
func TestAnswerBeyondMemory(t *testing.T) {
	const most, size = 4 << 10, 64 << 20
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	status, held := 200, uint64(0)
	o := &idempotency.HandlerOptions{MaxResponse: most}
	s := serve(t, memory.NewIdempotency(), o, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Exactly") != "" {
			_, _ = w.Write(chunk[:most/2])
			_, _ = w.Write(chunk[:most-most/2])
			return
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte("y"))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range size / len(chunk) {
			if n, err := w.Write(chunk); n != len(chunk) || err != nil {
				t.Errorf("%d, %v", n, err)
			}
		}
		runtime.ReadMemStats(&after)
		held = after.TotalAlloc - before.TotalAlloc
	})
	whole := sha256.New()
	whole.Write([]byte("y"))
	for range size / len(chunk) {
		whole.Write(chunk)
	}
	for range 2 {
		got := s.ask(t, "k")
		if s.want(t, got, 409, "answer-not-kept"); !strings.Contains(got.Body, hex.EncodeToString(whole.Sum(nil))) {
			t.Error(got.Body)
		}
	}
	if s.runs.Load() != 1 || held > size/8 {
		t.Errorf("run %d times, %d bytes allocated", s.runs.Load(), held)
	}
	for _, status = range []int{500, 409} {
		for range 2 {
			s.want(t, s.ask(t, fmt.Sprint(status)), 500, "answer-too-large")
		}
		s.want(t, s.ask(t, fmt.Sprint(status), "body={}"), 422, "mismatch")
	}
	if s.runs.Load() != 5 {
		t.Errorf("run %d times", s.runs.Load())
	}
	for range 2 {
		if got := s.ask(t, "exactly", "Exactly: so"); got.Status != 200 || len(got.Body) != most {
			t.Errorf("%d, %d bytes", got.Status, len(got.Body))
		}
	}
}

// TestHeaderOfAnyBytesIsReplayed: every header that net/http accepts is replayed, and does
// not make the answer unreadable.
func TestHeaderOfAnyBytesIsReplayed(t *testing.T) {
	store := open(t, memory.NewIdempotency(), nil)
	given := http.Header{"Empty": {""}, "Link": {"a: b", "\x01\x7f\xe9\ttab", "two\r\nlines: here"}, "X": {"y"}}
	want := http.Header{"Empty": {""}, "Link": {"a: b", "\x01\x7f\xe9\ttab", "two  lines: here"}, "X": {"y"}}
	_, err := store.Do(t.Context(), order("k"), func(context.Context) (idempotency.Response, error) {
		return idempotency.Response{Header: given}, nil
	})
	ok(t, err)
	got, err := store.Do(t.Context(), order("k"), never)
	if err != nil || !reflect.DeepEqual(got.Header, want) {
		t.Errorf("%q, %v", got.Header, err)
	}
}

// TestUploadsAreRemoved: net/http removes the files of a form only from its own request, and
// the handler gets another one.
func TestUploadsAreRemoved(t *testing.T) {
	name := ""
	s := serve(t, memory.NewIdempotency(), nil, func(_ http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
		f, _, err := r.FormFile("f")
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		if onDisk, ok := f.(*os.File); ok {
			name = onDisk.Name()
		}
	})
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "f")
	ok(t, err)
	_, err = part.Write(make([]byte, 64<<10))
	ok(t, err)
	ok(t, form.Close())
	r, err := http.NewRequest("POST", s.URL+"/orders/7", &body)
	ok(t, err)
	r.Header = http.Header{"Idempotency-Key": {"k"}, "Content-Type": {form.FormDataContentType()}}
	got, err := s.Client().Do(r)
	ok(t, err)
	got.Body.Close()
	if _, err := os.Stat(name); name == "" || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%q: %v", name, err)
	}
}
