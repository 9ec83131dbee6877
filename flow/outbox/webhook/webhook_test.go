package webhook_test

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox/webhook"
	"github.com/interlock-dev/interlock/internal/testbed"
)

func TestMain(m *testing.M) { testbed.Main(m) }

var ok = testbed.OK

var password = []byte("0123456789abcdef0123456789abcdef")

// receiver is a server, and a sink that posts to it.
func receiver(t *testing.T, o *webhook.Options, handle http.HandlerFunc) *webhook.Sink {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	signer, err := webhook.NewSecret(password)
	ok(t, err)
	s, err := webhook.New(server.URL, signer, o)
	ok(t, err)
	t.Cleanup(s.Close)
	return s
}

func post(t *testing.T, s *webhook.Sink, m driver.Message) error {
	t.Helper()
	return s.Publish(t.Context(), []driver.Message{m})[0]
}

func TestReceiversGetWhatWasSent(t *testing.T) {
	t.Parallel()
	public, private, _ := ed25519.GenerateKey(nil)
	signer, err := webhook.NewKey(private)
	ok(t, err)
	other, _ := webhook.NewSecret(password)
	var got driver.Message
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, v := range []webhook.Verifier{{Keys: []ed25519.PublicKey{public}}, {Secrets: [][]byte{[]byte("another"), password}}} {
			if err := v.Verify(r.Header, []byte("{}\x00")); err != nil {
				t.Error(err)
			}
		}
		m, err := webhook.Verifier{Keys: []ed25519.PublicKey{public}}.Read(r)
		if got = m; err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	s, err := webhook.New(server.URL, webhook.Both(other, signer), nil)
	ok(t, err)
	defer s.Close()
	sent := driver.Message{ID: "a b", Topic: "top/ic é\n", Key: "k\x01", Headers: map[string]string{"content-type": "text/plain", "x": "y"}, Payload: []byte("{}\x00")}
	ok(t, post(t, s, sent))
	if got.ID != sent.ID || got.Topic != sent.Topic || got.Key != sent.Key || string(got.Payload) != string(sent.Payload) ||
		got.Headers["Content-Type"] != "text/plain" || got.Headers["X"] != "y" {
		t.Errorf("got %q", got)
	}
}

func TestAnswersDecideAboutMessages(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	s := receiver(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("retry-after", "7")
		w.Header().Set("location", "/elsewhere")
		w.WriteHeader(int(status.Load()))
		fmt.Fprintln(w, "because")
	})
	for code, want := range map[int]interlock.ErrorKind{400: interlock.Definite, 401: interlock.Definite, 410: interlock.Definite,
		422: interlock.Definite, 408: interlock.Retryable, 425: interlock.Retryable, 429: interlock.Retryable, 500: interlock.Retryable,
		503: interlock.Retryable, 302: interlock.Retryable, 307: interlock.Retryable} {
		status.Store(int64(code))
		err := post(t, s, driver.Message{ID: "1", Topic: "t"})
		var answer *webhook.StatusError
		if interlock.Kind(err) != want || !errors.As(err, &answer) || answer.Status != code || answer.RetryAfter() != 7*time.Second || answer.Body != "because" {
			t.Errorf("%d: %v (%v)", code, err, interlock.Kind(err))
		}
	}
	for _, code := range []int{200, 202, 204} {
		status.Store(int64(code))
		if err := post(t, s, driver.Message{ID: "1", Topic: "t"}); err != nil {
			t.Errorf("%d: %v", code, err)
		}
	}
}

// TestSwitchedProtocol: a receiver that keeps the connection of an unasked upgrade does not hold the sink.
func TestSwitchedProtocol(t *testing.T) {
	t.Parallel()
	s := receiver(t, nil, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		ok(t, err)
		t.Cleanup(func() { conn.Close() })
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
	})
	if err := post(t, s, driver.Message{ID: "1", Topic: "t"}); interlock.Kind(err) != interlock.Retryable {
		t.Error(err)
	}
}

func TestNoAnswerIsUncertain(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	s := receiver(t, &webhook.Options{Timeout: 2 * time.Second}, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(webhook.HeaderID) == "cut" {
			panic(http.ErrAbortHandler)
		}
		<-over
	})
	defer close(over)
	for _, id := range []string{"slow", "cut"} {
		if err := post(t, s, driver.Message{ID: id, Topic: "t"}); interlock.Kind(err) != interlock.Uncertain {
			t.Errorf("%s: %v (%v)", id, err, interlock.Kind(err))
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := s.Publish(ctx, []driver.Message{{ID: "1", Topic: "t"}})[0]; err == nil || interlock.Kind(err) == interlock.Definite {
		t.Errorf("ended: %v (%v)", err, interlock.Kind(err))
	}
	signer, _ := webhook.NewSecret(password)
	nobody, _ := webhook.New("http://127.0.0.1:1", signer, nil)
	if err := post(t, nobody, driver.Message{ID: "1", Topic: "t"}); interlock.Kind(err) != interlock.Retryable {
		t.Errorf("no connection: %v (%v)", err, interlock.Kind(err))
	}
}

func TestKeysAreInOrderAndHostsBounded(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	var inside, most atomic.Int64
	s := receiver(t, &webhook.Options{PerHost: 3}, func(w http.ResponseWriter, r *http.Request) {
		if n := inside.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer inside.Add(-1)
		time.Sleep(time.Millisecond)
		id := r.Header.Get(webhook.HeaderID)
		if id == "bad/2" {
			w.WriteHeader(400)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		got = append(got, id)
	})
	var messages []driver.Message
	for i := 1; i <= 3; i++ {
		for _, key := range []string{"a", "b", "bad", "c", "d", "e"} {
			messages = append(messages, driver.Message{ID: fmt.Sprintf("%s/%d", key, i), Topic: "t", Key: key})
		}
	}
	for i, err := range s.Publish(t.Context(), messages) {
		switch id := messages[i].ID; {
		case id == "bad/3" && !errors.Is(err, driver.ErrNotSent), id == "bad/2" && interlock.Kind(err) != interlock.Definite,
			err != nil && id != "bad/2" && id != "bad/3":
			t.Errorf("%s: %v", id, err)
		}
	}
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		own := slices.DeleteFunc(slices.Clone(got), func(id string) bool { return !strings.HasPrefix(id, key+"/") })
		if !slices.Equal(own, []string{key + "/1", key + "/2", key + "/3"}) {
			t.Errorf("%s came as %v", key, own)
		}
	}
	if most.Load() > 3 || slices.Contains(got, "bad/3") {
		t.Errorf("%d at once, got %v", most.Load(), got)
	}
}

func TestWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	s := receiver(t, &webhook.Options{Address: func(m driver.Message) string { return string(m.Payload) }}, func(http.ResponseWriter, *http.Request) {
		t.Error("it was sent")
	})
	const somewhere = "http://127.0.0.1:1"
	for _, m := range []driver.Message{{ID: "a.b", Payload: []byte(somewhere)}, {Payload: []byte(somewhere)}, {ID: "a\nb", Payload: []byte(somewhere)},
		{ID: "a", Payload: []byte("ftp://x")}, {ID: "a", Payload: []byte(":")}, {ID: "a", Headers: map[string]string{"Webhook-Id": "b"}, Payload: []byte(somewhere)},
		{ID: "a\x01", Payload: []byte(somewhere)}, {ID: "a", Headers: map[string]string{"a b": "c"}, Payload: []byte(somewhere)},
		{ID: "a", Headers: map[string]string{"": "c"}, Payload: []byte(somewhere)}, {ID: "a", Headers: map[string]string{"é": "c"}, Payload: []byte(somewhere)},
		{ID: "a", Headers: map[string]string{"x": "a\nb"}, Payload: []byte(somewhere)}, {ID: "a", Headers: map[string]string{"x": "\x7f"}, Payload: []byte(somewhere)}} {
		if err := post(t, s, m); interlock.Kind(err) != interlock.Definite || err == nil {
			t.Errorf("%q: %v (%v)", m, err, interlock.Kind(err))
		}
	}
	good, _ := webhook.NewSecret(password)
	_, short := webhook.NewSecret([]byte("short"))
	_, none := webhook.NewKey(nil)
	_, unsigned := webhook.New(somewhere, nil, nil)
	_, nowhere := webhook.New("nowhere", good, nil)
	_, blank := webhook.New(somewhere, webhook.Both(), nil)
	_, never := webhook.New(somewhere, good, &webhook.Options{Timeout: -1})
	for _, err := range []error{short, none, unsigned, blank, nowhere, never} {
		if interlock.Kind(err) != interlock.Bug {
			t.Errorf("%v", err)
		}
	}
}

// TestAddressesKeepTheirSecrets: errors are stored with dead letters and logged.
func TestAddressesKeepTheirSecrets(t *testing.T) {
	t.Parallel()
	s := receiver(t, &webhook.Options{Address: func(m driver.Message) string { return string(m.Payload) }}, nil)
	for address, kind := range map[string]interlock.ErrorKind{
		"http://me:s3cret@127.0.0.1:1/x":           interlock.Definite,
		"http://s3cret@127.0.0.1:1/x":              interlock.Definite,
		"ftp://127.0.0.1:1/?token=s3cret":          interlock.Definite,
		"http://127.0.0.1:s3cret/?token=s3cret":    interlock.Definite,
		"http://127.0.0.1:1/x?token=s3cret#s3cret": interlock.Retryable,
	} {
		err := post(t, s, driver.Message{ID: "a", Payload: []byte(address)})
		if err == nil || interlock.Kind(err) != kind || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v (%v)", address, err, interlock.Kind(err))
		}
	}
	signer, _ := webhook.NewSecret(password)
	for _, address := range []string{"http://me:s3cret@127.0.0.1/", "ftp://127.0.0.1/?s3cret", "http://127.0.0.1:s3cret/"} {
		if _, err := webhook.New(address, signer, nil); interlock.Kind(err) != interlock.Bug || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestForgedRequestsAreRefused(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	signer, _ := webhook.NewSecret(password)
	header := func(id, at, signature string) http.Header {
		return http.Header{"Webhook-Id": {id}, "Webhook-Timestamp": {at}, "Webhook-Signature": {signature}}
	}
	v := webhook.Verifier{Secrets: [][]byte{password, {}}, Now: func() time.Time { return now }}
	right := signer.Sign([]byte("id.1700000000.body"))
	if err := v.Verify(header("id", "1700000000", "v1,AAAA v2,x "+right), []byte("body")); err != nil {
		t.Error(err)
	}
	old := signer.Sign([]byte("id.1699999000.body"))
	empty, _ := webhook.NewSecret(make([]byte, 32))
	for what, h := range map[string]http.Header{
		"another id":                 header("di", "1700000000", right),
		"another time":               header("id", "1700000001", right),
		"an old one":                 header("id", "1699999000", old),
		"a shifted id":               header("id.1", "1700000000", signer.Sign([]byte("id.1.1700000000.body"))),
		"no signature":               header("id", "1700000000", ""),
		"another secret's":           header("id", "1700000000", empty.Sign([]byte("id.1700000000.body"))),
		"no time":                    header("id", "", right),
		"another algorithm":          header("id", "1700000000", strings.Replace(right, "v1,", "v1a,", 1)),
		"a time in another spelling": header("id", "+1700000000", right),
	} {
		if err := v.Verify(h, []byte("body")); !errors.Is(err, webhook.ErrSignature) || interlock.Kind(err) != interlock.Definite {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := v.Verify(header("id", "1700000000", right), []byte("ydob")); !errors.Is(err, webhook.ErrSignature) {
		t.Errorf("another body: %v", err)
	}
	long := strings.Repeat("x", 20)
	for most, read := range map[int64]int{10: 0, math.MaxInt64: 20} {
		r := httptest.NewRequest("POST", "/", strings.NewReader(long))
		r.Header, v.MaxBody = header("id", "1700000000", signer.Sign([]byte("id.1700000000."+long))), most
		m, err := v.Read(r)
		if (err == nil) != (read > 0) || err != nil && interlock.Kind(err) != interlock.Definite || errors.Is(err, webhook.ErrSignature) || len(m.Payload) != read {
			t.Errorf("a limit of %d: %d bytes, %v", most, len(m.Payload), err)
		}
	}
}
