package conformance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver/memory"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/virtual"
	"github.com/interlock-dev/interlock/txn/barrier"
	"github.com/interlock-dev/interlock/txn/barrier/conformance"
	"github.com/interlock-dev/interlock/txn/branch"
)

// TestConformingParticipantPasses, in all protocols, and Run plays everything.
func TestConformingParticipantPasses(t *testing.T) {
	t.Parallel()
	p := newSimple(none)
	report := plays(t, conformance.Options{URL: served(t, p.work, p.effects), Protocols: conformance.Protocols(), Patience: testbed.Patience})
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	// Sequences, each twice as well; scenes; pairs.
	if want := 2*(18+89+89) + 3*5 + 10*(6+8+8); report.Plays != want || report.Messages < 3*want {
		t.Errorf("%d plays of %d messages, want %d plays", report.Plays, report.Messages, want)
	}
}

// TestFlawedParticipantIsConvicted by a play that shows the flaw.
func TestFlawedParticipantIsConvicted(t *testing.T) {
	t.Parallel()
	for f, want := range map[flaw]string{
		emptyUndo:       "tcc: cancel: message 1, cancel: expected done (held 0, confirmed 0), got 500",
		emptyUndoRuns:   "tcc: cancel: message 1, cancel: expected done (held 0, confirmed 0), got done (held -1, confirmed 0)",
		hanging:         "tcc: cancel, try: message 2, try: expected refused (held 0, confirmed 0), got done (held 1, confirmed 0)",
		doubleFirst:     "tcc: try, try: message 2, try: expected done (held 1, confirmed 0), got done (held 2, confirmed 0)",
		businessFirst:   "tcc: try, try: message 2, try: expected done (held 1, confirmed 0), got refused (held 1, confirmed 0)",
		otherResult:     "tcc: try, try: message 2, try: expected the result of the first time, map[hold:",
		doubleUndo:      "tcc: cancel, cancel: message 2, cancel: expected done (held 0, confirmed 0), got done (held -1, confirmed 0)",
		confirmUndone:   "tcc: cancel, confirm: message 2, confirm: expected not done (held 0, confirmed 0), got done (held -1, confirmed 1)",
		confirmNothing:  "tcc: confirm: message 1, confirm: expected not done (held 0, confirmed 0), got done (held -1, confirmed 1)",
		doubleConfirm:   "tcc: each twice (try, confirm): message 2, confirm: expected done (held 0, confirmed 1), got done (held -1, confirmed 2)",
		undoConfirmed:   "tcc: try, confirm, cancel: message 3, cancel: expected not done (held 0, confirmed 1), got done (held -1, confirmed 1)",
		forgetful:       "tcc: a refusal is remembered (try, try, try, cancel, try, confirm, cancel, cancel, try, try): message 5, try: expected refused (held 0, confirmed 0), got done (held 1, confirmed 0)",
		undoRefused:     "tcc: a refusal is remembered",
		unkeyed:         "tcc: another input under a key (try, try, try, cancel): message 2, try: expected not done (held 1, confirmed 0), got done (held 1, confirmed 0)",
		byTransaction:   "tcc: branches and steps are apart",
		racy:            "tcc: at once (",
		unhurried:       "tcc: after its deadline (try, try, cancel, try): message 1, try: expected unheard (held 0, confirmed 0), got done",
		careless:        "tcc: no branch (try, try, cancel, try): message 1, try: expected unheard (held 0, confirmed 0), got done",
		dumb:            "tcc: cancel, try: message 2, try: expected refused (held 0, confirmed 0), got 500",
		chatty:          "tcc: try: message 1, try: expected done (held 1, confirmed 0), got 200 OK ok (held 1, confirmed 0)",
		refusesForGood:  "tcc: after its deadline (try, try, cancel, try): message 1, try: expected unheard (held 0, confirmed 0), got refused",
		busyRefused:     "tcc: at once (try, try): message 1, try: expected done and done (held 1, confirmed 0), got ",
		remembersNoUndo: "tcc: try, cancel, try: message 3, try: expected refused (held 0, confirmed 0), got done (held 1, confirmed 0)",
	} {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			virtual.Test(t, func(t *testing.T) {
				p := newSimple(f)
				report := plays(t, conformance.Options{URL: "http://participant/", Client: &http.Client{Transport: inside{p.spoil(handler(p.work, p.effects))}},
					Rounds: 1, Protocols: []conformance.Protocol{conformance.TCC}})
				for _, failure := range report.Failures {
					if strings.HasPrefix(failure.Error(), want) {
						return
					}
				}
				t.Errorf("it was not convicted of that, but of:\n%v", report.Err())
			})
		})
	}
}

// TestFlawedSagaIsConvicted: the same barrier, with the other operations.
func TestFlawedSagaIsConvicted(t *testing.T) {
	t.Parallel()
	p := newSimple(hanging)
	report := plays(t, conformance.Options{URL: served(t, p.work, p.effects), Protocols: []conformance.Protocol{conformance.Saga}})
	if len(report.Failures) == 0 {
		t.Fatal("it was not convicted")
	}
	got := report.Failures[0]
	if got.Protocol != conformance.Saga || got.Play != "" || !slices.Equal(got.Sequence, []branch.Operation{branch.Undo, branch.Do}) ||
		got.Position != 2 || got.Operation != branch.Do || got.Expected != "refused (held 0, confirmed 0)" || got.Got != "done (held 0, confirmed 1)" {
		t.Errorf("%+v", got)
	}
	if err := report.Err(); !strings.HasPrefix(err.Error(), "saga: undo, do: message 2, do: expected refused") {
		t.Error(err)
	}
}

// TestParticipantAtWorkIsAskedAgain: 425 is no failure, and neither is a server that fails
// one of two concurrent messages.
func TestParticipantAtWorkIsAskedAgain(t *testing.T) {
	t.Parallel()
	virtual.Test(t, testParticipantAtWork)
}

func testParticipantAtWork(t *testing.T) {
	p := newSimple(none)
	var mu sync.Mutex
	seen, working := map[string]bool{}, 0
	work := func(ctx context.Context, input []byte) ([]byte, error) {
		mu.Lock()
		key := branch.From(ctx).Key()
		again := seen[key]
		seen[key] = true
		working++
		crowded := working > 1
		mu.Unlock()
		defer func() { mu.Lock(); working--; mu.Unlock() }()
		switch {
		case !again:
			return nil, branch.InProgress(0)
		case crowded:
			return nil, branch.Retry(errors.New("one at a time"))
		}
		time.Sleep(time.Millisecond) // the other one of two finds it in progress
		return p.work(ctx, input)
	}
	if err := plays(t, conformance.Options{URL: "http://participant/", Client: &http.Client{Transport: inside{handler(work, p.effects)}}, Concurrency: 1, Rounds: 1}).Err(); err != nil {
		t.Error(err)
	}
}

// TestParticipantForEverAtWorkIsConvicted within Options.Patience.
func TestParticipantForEverAtWorkIsConvicted(t *testing.T) {
	t.Parallel()
	virtual.Test(t, testParticipantForEverAtWork)
}

func testParticipantForEverAtWork(t *testing.T) {
	p := newSimple(none)
	work := func(context.Context, []byte) ([]byte, error) { return nil, branch.InProgress(0) }
	report := plays(t, conformance.Options{URL: "http://participant/", Client: &http.Client{Transport: inside{handler(work, p.effects)}},
		Patience: 200 * time.Millisecond, Concurrency: 100, Rounds: 1, Protocols: []conformance.Protocol{conformance.Saga}})
	if len(report.Failures) != report.Plays || !strings.Contains(fmt.Sprint(report.Err()), "425 Too Early") {
		t.Errorf("%d of %d: %v", len(report.Failures), report.Plays, report.Err())
	}
}

// TestParticipantThatCannotBeJudged is an error, not a report without failures.
func TestParticipantThatCannotBeJudged(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "http://" + l.Addr().String()
	l.Close()
	p := newSimple(none)
	good := served(t, p.work, p.effects)
	silent := httptest.NewServer(http.NotFoundHandler())
	defer silent.Close()
	stuck := make(chan struct{})
	defer close(stuck)
	hangs := served(t, func(ctx context.Context, _ []byte) ([]byte, error) {
		select {
		case <-stuck:
		case <-ctx.Done():
		}
		return nil, context.Cause(ctx)
	}, p.effects)
	for name, c := range map[string]struct {
		o    conformance.Options
		kind interlock.ErrorKind
	}{
		"nobody there":   {conformance.Options{URL: nobody}, interlock.Uncertain},
		"no accounts":    {conformance.Options{URL: good, Inspect: silent.URL}, interlock.Definite},
		"never answers":  {conformance.Options{URL: hangs, Patience: 100 * time.Millisecond}, interlock.Uncertain},
		"no address":     {conformance.Options{}, interlock.Bug},
		"bad address":    {conformance.Options{URL: "participant:80"}, interlock.Bug},
		"bad inspection": {conformance.Options{URL: good, Inspect: ":"}, interlock.Bug},
		"secret query":   {conformance.Options{URL: nobody + "/?token=s3cret"}, interlock.Uncertain},
		"secret inquiry": {conformance.Options{URL: good, Inspect: nobody + "/?token=s3cret"}, interlock.Uncertain},
		"secret user":    {conformance.Options{URL: "http://me:s3cret@" + strings.TrimPrefix(good, "http://")}, interlock.Bug},
		"secret scheme":  {conformance.Options{URL: "ftp://me:s3cret@participant/"}, interlock.Bug},
		"bad protocol":   {conformance.Options{URL: good, Protocols: []conformance.Protocol{"3pc"}}, interlock.Bug},
		"long prefix":    {conformance.Options{URL: good, Prefix: strings.Repeat("x", 65)}, interlock.Bug},
		"negative":       {conformance.Options{URL: good, Rounds: -1}, interlock.Bug},
	} {
		c.o.Client = client(t)
		report, err := conformance.Run(t.Context(), c.o)
		if err == nil || interlock.Kind(err) != c.kind || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v (%v), %+v", name, err, interlock.Kind(err), report)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := conformance.Run(ctx, conformance.Options{URL: good, Client: client(t)}); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
}

// TestParticipantOfAnotherProtocolIsConvicted: the wait for it is bounded.
func TestParticipantOfAnotherProtocolIsConvicted(t *testing.T) {
	t.Parallel()
	p := newSimple(none)
	inspects := served(t, p.work, p.effects)
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n")
		_, _ = conn.Read(make([]byte, 1)) // until the kit disconnects
	}))
	defer silent.Close()
	done := make(chan conformance.Report, 1)
	go func() {
		done <- plays(t, conformance.Options{URL: silent.URL, Inspect: inspects, Rounds: 1, Patience: time.Minute, Protocols: []conformance.Protocol{conformance.Saga}})
	}()
	select {
	case report := <-done:
		if len(report.Failures) != report.Plays || !strings.Contains(report.Failures[0].Got, "101") {
			t.Errorf("%d failures in %d plays", len(report.Failures), report.Plays)
		}
	case <-time.After(3 * time.Minute):
		t.Fatal("it is waited for")
	}
}

func ExampleRun() {
	p := newSimple(hanging) // a participant in this process, with a flaw
	server := httptest.NewServer(handler(p.work, p.effects))
	defer server.Close()
	client := server.Client()
	report, err := conformance.Run(context.Background(), conformance.Options{URL: server.URL, Client: client})
	if err != nil {
		panic(err)
	}
	fmt.Println(report.Failures[0])
	// Output:
	// saga: undo, do: message 2, do: expected refused (held 0, confirmed 0), got done (held 0, confirmed 1)
}

// TestMemoryBarrierPasses: the executable specification agrees with the page.
func TestMemoryBarrierPasses(t *testing.T) {
	t.Parallel()
	seats, p := memory.NewBarrier(), newSimple(none)
	participant := barrier.Keyed[memory.Business]{Barrier: seats, Business: func(ctx context.Context, input []byte) (memory.Business, error) {
		var in conformance.Input
		if err := json.Unmarshal(input, &in); err != nil {
			return nil, err
		}
		return func([]byte, bool) ([]byte, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			output, err := p.business.run(branch.From(ctx), in)
			if err != nil {
				err = memory.Refusal(err.Error())
			}
			return output, err
		}, nil
	}}
	everything(t, served(t, participant.Call, p.effects))
}
