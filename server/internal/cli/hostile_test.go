package cli_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"
	"time"

	"github.com/interlock-dev/interlock/driver"
	"github.com/interlock-dev/interlock/flow/outbox"
	"github.com/interlock-dev/interlock/internal/testbed"
	"github.com/interlock-dev/interlock/internal/testbed/databases"
)

// hostile is text that another client may store: escape sequences in two forms, a
// carriage return, a bell, a forged line, and changes of direction.
const hostile = "x\x1b[31m\u009b2J\r\a\ninterlock: all is well\u202e\u2066`'\"$(id)"

// hostileID is hostile within the rules of message ids.
const hostileID = "x\x1b[31m\u009b2J\a\u202e\u2066`'\"$(id)"

var raw = regexp.MustCompile("(?m)[\x00-\x08\x0b-\x1f\x7f\u0080-\u009f\u202a-\u202e\u2066-\u2069]|^interlock: all is well")

// saysNothingRaw runs commands in both formats, with any exit code.
func saysNothingRaw(t *testing.T, url string, commands ...[]string) {
	t.Helper()
	for _, words := range commands {
		for _, format := range []string{"text", "json"} {
			code, out, said := outcome(t, append([]string{"--backend", url, "-o", format}, words...)...)
			if out += said; len(out) == 0 {
				t.Errorf("%q -o %s prints nothing, and ends with %d", words, format, code)
			}
			if i := raw.FindStringIndex(out); i != nil {
				t.Errorf("%q -o %s prints %q in\n%q", words, format, out[i[0]:i[1]], out)
			}
		}
	}
}

// Participants, other clients and callers choose names, states and errors. No command
// prints them raw to the terminal.
func TestStoredTextIsNotPrintedRaw(t *testing.T) {
	t.Parallel()
	program(t)
	server := testbed.Etcd(t)
	url := "etcd://" + server.Addr()
	s := serveOrders(t, url)
	s.said = hostile
	s.run(t, hostile, "bad")
	s.book(t, hostile+"2")
	holding(t, url, hostile)
	holding(t, url, "taken"+hostile)
	testbed.Command(t, program(t), "elect", "led"+hostile, "--as", hostile, "--data", hostile, "--backend", url, "--", "sh", "-c", "echo leads; exec sleep 60").Line(patience)
	run(t, 0, "lock", hostile+"3", "--backend", url, "--", plainProgram(t), "guard", "enter", hostile)
	saysNothingRaw(t, url,
		[]string{"locks", "release", "taken" + hostile, "--yes", "--reason", hostile, "--by", hostile},
		[]string{"locks", "ls"}, []string{"locks", "show", hostile}, []string{"locks", "history"},
		[]string{"lock", hostile, "--no-wait", "--", "true"}, []string{"lock", hostile, "--wait", "1s", "--", "true"},
		[]string{"elect", "observe", "led" + hostile, "--once"}, []string{"guard", "show", hostile},
		[]string{"guard", "rebase", hostile, "--to", "0", "--reason", hostile, "--by", hostile}, []string{"guard", "show", hostile},
		[]string{"saga", "ls"}, []string{"saga", "show", hostile}, []string{"saga", "watch", hostile}, []string{"saga", "export"}, []string{"dlq", "sagas"},
		[]string{"saga", "show", hostile + "2"}, []string{"saga", "skip", hostile, hostile, "--reason", hostile},
		[]string{"tcc", "ls"}, []string{"tcc", "show", hostile + "2"}, []string{"tcc", "show", hostile}, []string{"tcc", "skip", hostile + "2", hostile, "--reason", hostile},
		[]string{"xa", "ls"}, []string{"xa", "show", hostile})
}

func TestStoredMessagesAreNotPrintedRaw(t *testing.T) {
	t.Parallel()
	program(t)
	db := databases.Open(t, testbed.Postgres(t), databases.Pgx)
	var box outbox.Table
	db.Do(t, box.Create)
	db.Do(t, func(ctx context.Context, tx driver.SQL) error {
		return box.Add(ctx, tx,
			driver.Message{ID: hostileID, Topic: hostile, Key: hostile, Payload: []byte(hostile), Headers: map[string]string{hostile: hostile}},
			driver.Message{ID: "behind" + hostileID, Topic: hostile, Key: hostile})
	})
	deliver(t, db, outbox.Options{Poison: outbox.ToDeadLetters, Attempts: 1, AfterDeadLetter: outbox.Park, MinPause: time.Millisecond, MaxPause: time.Millisecond},
		hostile, func(s outbox.Status) bool { return s.Dead == 1 })
	saysNothingRaw(t, shopURL(db), []string{"outbox", "status"}, []string{"dlq", "ls"}, []string{"dlq", "show", hostileID},
		[]string{"dlq", "discard", hostile + "x", "--reason", hostile}, []string{"outbox", "retry", "behind" + hostileID},
		[]string{"dlq", "replay", hostileID, "--reason", hostile})
}

func TestAParticipantsAnswersAreNotPrintedRaw(t *testing.T) {
	t.Parallel()
	program(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", "y")
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write([]byte(hostile))
	}))
	defer server.Close()
	saysNothingRaw(t, "", []string{"conformance", server.URL, "--rounds", "1", "--patience", "100ms"})
}
