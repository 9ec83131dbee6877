package proxy_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/internal/testbed"

	"github.com/interlock-dev/interlock"
	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/guard/fence"
	"github.com/interlock-dev/interlock/guard/proxy"
	"github.com/interlock-dev/interlock/internal/testbed/crash"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

func TestMain(m *testing.M) {
	crash.Main(m, map[string]crash.Role{"owner": owner, "worker": worker})
}

// bound limits each wait for a condition.
const bound = 30 * time.Second

// token returns the n-th token of a system that is the same in all processes of a test.
func token(n int) interlock.Token { return interlock.Token(int64(n) << 12) }

type claim = testbed.Claim

func grant(n int, ttl time.Duration) *claim {
	return testbed.NewClaim("api", fmt.Sprint("owner of ", token(n)), token(n), ttl)
}

// api is a foreign API: it checks no token, and records requests.
type api struct {
	*httptest.Server
	answer func(w http.ResponseWriter, r *http.Request) // nil: 200

	mu   sync.Mutex
	got  []string // bodies, in the order of arrival
	keys []string
	in   atomic.Int32
	most atomic.Int32 // at the same time
}

func newAPI(tb testing.TB, answer http.HandlerFunc) *api {
	tb.Helper()
	a := &api{answer: answer}
	a.Server = httptest.NewServer(a)
	tb.Cleanup(a.Close)
	return a
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the request was incomplete
	}
	a.most.Store(max(a.most.Load(), a.in.Add(1)))
	defer a.in.Add(-1)
	a.mu.Lock()
	a.got, a.keys = append(a.got, string(body)), append(a.keys, r.Header.Get("Idempotency-Key"))
	a.mu.Unlock()
	if a.answer != nil {
		a.answer(w, r)
	}
}

func (a *api) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.got...)
}

func (a *api) seenKeys() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.keys...)
}

// post returns a Send that posts text to url by t.
func post(t http.RoundTripper, url, text string) proxy.Send {
	return func(ctx context.Context, _ *proxy.Call) (int, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewBufferString(text))
		if err != nil {
			return 0, err
		}
		resp, err := (&http.Client{Transport: t}).Do(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, err
	}
}

// transport returns a Transport that sends the key; its connections end with the test.
func transport(tb testing.TB) *proxy.Transport {
	tb.Helper()
	t := proxy.NewTransport(&proxy.TransportOptions{Base: &http.Transport{}, KeyHeader: "Idempotency-Key"})
	tb.Cleanup(t.CloseIdleConnections)
	return t
}

// prepared is a database with the tables.
func prepared(tb testing.TB, db *databases.DB) *databases.DB {
	tb.Helper()
	db.Do(tb, fence.Table{}.Create)
	db.Do(tb, proxy.Calls{}.Create)
	return db
}

// caller returns a strict Caller.
func caller(tb testing.TB, db driver.Beginner[driver.SQL], o *proxy.Options) *proxy.Caller {
	tb.Helper()
	c, err := proxy.NewRecorded(db, fence.Table{}, proxy.Calls{}, o)
	testbed.OK(tb, err)
	return c
}

// TestStrict runs every test on one server of each kind, in its own database.
func TestStrict(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T, *databases.DB){
		"CallsAreInOrder":                     testCallsAreInOrder,
		"OperationsAreMadeOnce":               testOperationsAreMadeOnce,
		"WhatIsKnownToBeUnsentLeavesNoDoubt":  testWhatIsKnownToBeUnsentLeavesNoDoubt,
		"StatusesMeanWhatTheTableSays":        testStatusesMeanWhatTheTableSays,
		"DoubtsAreSettled":                    testDoubtsAreSettled,
		"CleaningBlocksNoCall":                testCleaningBlocksNoCall,
		"OlderTable":                          testOlderTable,
		"ALivingCallKeepsItsTurn":             testALivingCallKeepsItsTurn,
		"AnAnswerOutlivesTheClaim":            testAnAnswerOutlivesTheClaim,
		"NothingIsSentUnderAnEndedClaim":      testNothingIsSentUnderAnEndedClaim,
		"BadCallsAreRefused":                  testBadCallsAreRefused,
		"Costs":                               testCosts,
		"TheProxyPassesOnWhatItShould":        testTheProxyPassesOnWhatItShould,
		"ACrashAfterTheCallForgetsNothing":    testACrashAfterTheCallForgetsNothing,
		"ACallEndsWithItsConnection":          testACallEndsWithItsConnection,
		"AnEarlierIdleTimeout":                testAnEarlierIdleTimeout,
		"ACauseIsNoProof":                     testACauseIsNoProof,
		"ACallThatIsOverSendsNothing":         testACallThatIsOverSendsNothing,
		"AnAnswerIsRecordedWhoeverTriesAgain": testAnAnswerIsRecordedWhoeverTriesAgain,
		"AnAttemptForgetsOnlyItself":          testAnAttemptForgetsOnlyItself,
		"ARepeatedCallHasOneAnswer":           testARepeatedCallHasOneAnswer,
	}
	databases.Each(t, func(t *testing.T, open func(testing.TB) *databases.DB) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				test(t, prepared(t, open(t)))
			})
		}
	}, databases.Pgx, databases.Maria)
}

// record returns the table's record of an operation on "api".
func record(tb testing.TB, db *databases.DB, operation string) (r proxy.Record) {
	tb.Helper()
	db.Do(tb, func(ctx context.Context, tx driver.SQL) (err error) {
		r, err = proxy.Calls{}.Show(ctx, tx, "api", operation)
		return err
	})
	return r
}

var ok, wantKind = testbed.OK, testbed.WantKind
